#include "launch/inside/image_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/directory.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "launch/site/enroot_text.hpp"
#include "task/root/root_setup.hpp"

namespace spc {
namespace {

constexpr std::size_t kMaxFile = 1 << 20;
constexpr std::size_t kMaxFiles = 256;
constexpr char kApptainerEnvironment[] = "/.singularity.d/env";

/// Apptainer's own, in every image: they serve its features, not the image's settings.
constexpr std::array<std::string_view, 5> kOfApptainer{"01-base.sh", "94-appsbase.sh", "95-apps.sh",
                                                       "99-base.sh", "99-runtimevars.sh"};

/// Nothing if it is missing, no file or too large. Never waits: a FIFO in an image holds nobody up.
std::optional<std::string> text_inside(const std::string& path) {
  const UniqueFd file = open_inside(path.c_str(), O_RDONLY | O_NONBLOCK);
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  auto text = read_file(file.get(), kMaxFile);
  return text ? std::optional(*std::move(text)) : std::nullopt;
}

/// Paths of the scripts in the order in which Apptainer reads them; nothing if it has not made this
/// image.
std::optional<std::vector<std::string>> apptainer_scripts() {
  UniqueFd directory = open_inside(kApptainerEnvironment, O_RDONLY | O_DIRECTORY);
  if (!directory) return std::nullopt;
  std::vector<std::string> names;
  for (DirectoryReader scripts(std::move(directory)); names.size() < kMaxFiles && scripts.next();) {
    const auto name = scripts.name();
    if (name.ends_with(".sh") &&
        std::find(kOfApptainer.begin(), kOfApptainer.end(), name) == kOfApptainer.end()) {
      names.push_back(std::string(kApptainerEnvironment) + "/" + std::string(name));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Lines one after the other; an empty last one does not count.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}
  bool next(std::string_view& line) {
    if (rest_.empty()) return false;
    const auto end = std::min(rest_.find('\n'), rest_.size());
    line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return true;
  }

 private:
  std::string_view rest_;
};

/// One word of a shell, its quotes and references resolved.
class ShellWord {
 public:
  using Variables = std::map<std::string, std::string>;
  ShellWord(std::string_view text, const Variables& first, const Variables& second)
      : rest_(text), first_(first), second_(second) {}

  /// Nothing: it takes a shell to know.
  std::optional<std::string> read() {
    std::string value;
    if (!read_until(value, '\0', 0)) return std::nullopt;
    return value;
  }
  /// What is behind the word.
  [[nodiscard]] std::string_view rest() const { return rest_; }

 private:
  static constexpr int kMaxDepth = 8;

  /// Up to `end`, which is taken too; '\0': up to the end of the word, which is not.
  bool read_until(std::string& value, char end, int depth) {
    bool quoted = false;
    while (!rest_.empty()) {
      const char c = rest_[0];
      if (!quoted && end != '\0' && c == end) {
        rest_.remove_prefix(1);
        return true;
      }
      if (!quoted && end == '\0' && (c == ' ' || c == '\t' || c == ';' || c == '\r')) return true;
      rest_.remove_prefix(1);
      if (c == '"') {
        quoted = !quoted;
      } else if (c == '\'' && !quoted) {
        const auto close = rest_.find('\'');
        if (close == std::string_view::npos) return false;
        value += rest_.substr(0, close);
        rest_.remove_prefix(close + 1);
      } else if (c == '\\') {
        if (rest_.empty()) return false;
        if (quoted && std::string_view("$`\"\\").find(rest_[0]) == std::string_view::npos)
          value += c;
        value += rest_[0];
        rest_.remove_prefix(1);
      } else if (c == '$') {
        if (!read_reference(value, depth)) return false;
      } else if (c == '`' ||
                 (!quoted && std::string_view("|&<>()").find(c) != std::string_view::npos)) {
        return false;
      } else {
        value += c;
      }
    }
    return !quoted && end == '\0';
  }

  bool read_reference(std::string& value, int depth) {
    const bool braces = rest_.starts_with('{');
    if (braces) rest_.remove_prefix(1);
    const auto size = std::min(
        static_cast<std::size_t>(
            std::find_if_not(rest_.begin(), rest_.end(), is_shell_name_character) - rest_.begin()),
        rest_.size());
    const std::string name(rest_.substr(0, size));
    if (!is_shell_name(name)) return false;
    rest_.remove_prefix(size);
    const std::string* known = find(name);
    if (!braces) {
      if (known != nullptr) value += *known;
      return true;
    }
    if (rest_.starts_with('}')) {
      rest_.remove_prefix(1);
      if (known != nullptr) value += *known;
      return true;
    }
    const bool default_if_empty = rest_.starts_with(":-");
    if (!default_if_empty && !rest_.starts_with('-')) return false;
    rest_.remove_prefix(default_if_empty ? 2 : 1);
    std::string fallback;
    if (depth == kMaxDepth || !read_until(fallback, '}', depth + 1)) return false;
    const bool use = known == nullptr || (default_if_empty && known->empty());
    value += use ? fallback : *known;
    return true;
  }

  const std::string* find(const std::string& name) const {
    for (const Variables* variables : {&first_, &second_}) {
      if (const auto found = variables->find(name); found != variables->end())
        return &found->second;
    }
    return nullptr;
  }

  std::string_view rest_;
  const Variables& first_;
  const Variables& second_;
};

/// `[export] NAME=VALUE …` or `export NAME …`: whether all of the line was that. If not,
/// `variables` make no sense.
bool assign(std::string_view line, const std::map<std::string, std::string>& known,
            std::map<std::string, std::string>& variables) {
  bool exports = false;
  if (line.starts_with("export ") || line.starts_with("export\t")) {
    line = trimmed(line.substr(6));
    exports = true;
  }
  while (!line.empty() && line[0] != '#') {
    const auto size = static_cast<std::size_t>(
        std::find_if_not(line.begin(), line.end(), is_shell_name_character) - line.begin());
    const std::string name(line.substr(0, size));
    if (!is_shell_name(name)) return false;
    line.remove_prefix(size);
    if (line.starts_with('=')) {
      ShellWord word(line.substr(1), variables, known);
      const auto value = word.read();
      if (!value) return false;
      line = word.rest();
      variables[name] = *value;
    } else if (!exports) {
      return false;
    }
    line = trimmed(line);
    if (!line.starts_with(';')) continue;
    line = trimmed(line.substr(1));
    exports = false;
    if (line.starts_with("export ")) {
      line = trimmed(line.substr(6));
      exports = true;
    }
  }
  return true;
}

/// How much deeper the next line is in conditions, loops and functions.
int change_of_depth(std::string_view line) {
  const auto begins = [&](std::string_view word) {
    return line.starts_with(word) &&
           (line.size() == word.size() || !is_shell_name_character(line[word.size()]));
  };
  int change = 0;
  for (const std::string_view word : {"if", "case", "for", "while", "until"})
    change += begins(word);
  if (line.ends_with('{')) ++change;
  for (const std::string_view word : {"fi", "esac", "done", "}"})
    change -= begins(word) || line.ends_with("; " + std::string(word));
  return change;
}

/// Apptainer's scripts. What they may refer to: PATH is the container's in any case, the rest is
/// the job's.
void read_scripts(const std::vector<std::string>& paths, std::map<std::string, std::string> known,
                  ImageSettings& settings, Log* log) {
  const bool has_shell = ::access("/bin/sh", X_OK) == 0;
  bool needs_shell = false;
  std::vector<std::string> assignments;
  known["PATH"] = kDefaultPath;
  for (const std::string& path : paths) {
    const auto text = text_inside(path);
    if (!text) continue;
    const auto found = parse_shell_assignments(*text, known);
    for (const auto& [variable, value] : found.variables) {
      known[variable] = value;
      assignments.push_back(variable + "=" + value);
    }
    needs_shell = needs_shell || found.left_out != 0;
    if (found.left_out == 0 || has_shell || log == nullptr) continue;
    log->write(LogLevel::warning, formatted("the image's {}: line {} and similar lines need "
                                            "/bin/sh, which the image lacks, and are "
                                            "ignored; plain assignments are used",
                                            in_quotes(path), found.left_out));
  }
  if (!needs_shell || !has_shell) {
    settings.environment.insert(settings.environment.end(), assignments.begin(), assignments.end());
    return;
  }
  settings.environment_scripts = paths;
  settings.assignments = std::move(assignments);
}

}  // namespace

std::string workdir_in_rc(std::string_view text) {
  static const std::map<std::string, std::string> none;
  Lines lines(text);
  for (std::string_view line; lines.next(line);) {
    if (!line.starts_with("cd ")) continue;
    ShellWord word(trimmed(line.substr(3)), none, none);
    const auto directory = word.read();
    if (directory && directory->starts_with('/')) return *directory;
  }
  return {};
}

ShellAssignments parse_shell_assignments(std::string_view script,
                                         const std::map<std::string, std::string>& known) {
  ShellAssignments found;
  Lines lines(script);
  unsigned number = 0;
  int depth = 0;
  for (std::string_view line; lines.next(line);) {
    ++number;
    line = trimmed(line);
    if (line.empty() || line[0] == '#') continue;
    const int change = change_of_depth(line);
    auto variables = found.variables;
    const bool is_plain = depth == 0 && change == 0 && assign(line, known, variables);
    depth = std::max(depth + change, 0);
    if (is_plain) found.variables = std::move(variables);
    if (!is_plain && found.left_out == 0) found.left_out = number;
  }
  return found;
}

void read_image_files(const std::map<std::string, std::string>& job, ImageSettings& settings,
                      Log* log) {
  const auto scripts = apptainer_scripts();
  const char* const start_script = scripts ? "/.singularity.d/runscript" : kEnrootScript;
  if (::access(start_script, R_OK) == 0) settings.start_script = start_script;
  if (scripts) return read_scripts(*scripts, job, settings, log);
  if (const auto text = text_inside("/etc/environment")) {
    for (auto& variable : parse_environment_file(*text))
      settings.environment.push_back(std::move(variable));
  }
  if (const auto text = text_inside("/etc/rc"); text && settings.workdir.empty())
    settings.workdir = workdir_in_rc(*text);
}

}  // namespace spc
