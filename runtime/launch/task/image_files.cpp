#include "launch/task/image_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "hooks/loader/elf.hpp"
#include "launch/site/enroot_compat.hpp"
#include "task/root_setup.hpp"

namespace spc {

// --- image files ---

namespace {

constexpr std::size_t kMaxFile = 1 << 20;
constexpr std::size_t kMaxFiles = 256;
constexpr char kApptainerEnvironment[] = "/.singularity.d/env";

/// Apptainer's own scripts, which are in every image: they implement its features and hold no
/// settings of the image.
constexpr std::array<std::string_view, 5> kOfApptainer{"01-base.sh", "94-appsbase.sh", "95-apps.sh",
                                                       "99-base.sh", "99-runtimevars.sh"};

/// Returns the text of a regular file; empty if it is missing, too large, or no regular file. Never
/// blocks, even on a FIFO.
std::optional<std::string> text_inside(const std::string& path) {
  const UniqueFd file = open_inside(path.c_str(), O_RDONLY | O_NONBLOCK);
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  auto text = read_file(file.get(), kMaxFile);
  return text ? std::optional(*std::move(text)) : std::nullopt;
}

/// Returns the scripts' paths in Apptainer's order; empty if the image is not Apptainer's.
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

/// An iterator over lines; an empty last line is skipped.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}
  bool next(std::string_view& line) {
    if (rest_.empty()) return false;
    line = next_part(rest_, '\n');
    return true;
  }

 private:
  std::string_view rest_;
};

/// A shell word with its quotes and references resolved.
class ShellWord {
 public:
  using Variables = std::map<std::string, std::string>;
  ShellWord(std::string_view text, const Variables& first, const Variables& second)
      : rest_(text), first_(first), second_(second) {}

  /// Returns the word; empty if only a shell can evaluate it.
  std::optional<std::string> read() {
    std::string value;
    if (!read_until(value, '\0', 0)) return std::nullopt;
    return value;
  }
  /// Returns the text after the word.
  [[nodiscard]] std::string_view rest() const { return rest_; }

 private:
  static constexpr int kMaxDepth = 8;

  /// Reads up to `end` and consumes it; '\0' reads up to the end of the word and consumes no
  /// separator.
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

/// Parses `[export] NAME=VALUE …` or `export NAME …`. Returns false if the line contains anything
/// else; then `variables` are meaningless.
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

/// Returns the change in nesting of conditions, loops and functions after this line.
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

/// Reads Apptainer's scripts. Their references use the container's PATH and otherwise the job's
/// variables.
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

// --- missing program ---

namespace {

bool is_there(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

std::vector<std::string> places_along(std::string_view path) {
  std::vector<std::string> places;
  for (const std::string_view directory : split(path, ':'))
    places.emplace_back(directory.empty() ? "." : directory);
  return places;
}

/// Returns the program's path as Slurm and shells find it, or else a file that cannot be executed;
/// empty if not found.
std::string found_along(const std::string& program, std::string_view path) {
  if (program.find('/') != std::string::npos) return is_there(program) ? program : "";
  std::string found;
  for (const std::string& directory : places_along(path)) {
    std::string candidate = directory + "/" + program;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    if (found.empty() && is_there(candidate)) found = std::move(candidate);
  }
  return found;
}

/// Returns how far a program's name is from the one that was typed: another version of it (python3
/// for python) first, then single and swapped letters.
std::size_t letters_off(std::string_view typed, std::string_view name) {
  const auto version = name.substr(std::min(typed.size(), name.size()));
  if (name.starts_with(typed) && version.find_first_not_of("0123456789.") == version.npos) return 0;
  const auto at = std::ranges::mismatch(typed, name);
  std::string swapped(typed);
  const auto first = static_cast<std::size_t>(at.in1 - typed.begin());
  if (first + 1 < swapped.size()) std::swap(swapped[first], swapped[first + 1]);
  return swapped == name ? 1 : letters_between(typed, name);
}

/// Returns the program along PATH whose name is nearest to a name that is not there; empty if none
/// is near.
std::string nearest_along(std::string_view typed, std::string_view path) {
  constexpr int kMostEntries = 20'000;
  const std::size_t most = typed.size() < 3 ? 0 : typed.size() < 7 ? 1 : 2;
  std::string nearest;
  std::size_t least = most + 1;
  int entries = 0;
  for (const std::string& directory : places_along(path)) {
    DirectoryReader files(directory);
    while (entries++ < kMostEntries && files.next()) {
      const std::string_view name = files.name();
      if (name.size() > typed.size() + 6 || name.size() + most < typed.size()) continue;
      const std::size_t off = letters_off(typed, name);
      const bool is_nearer = off < least || (off == least && name < nearest);
      if (!is_nearer || off > most || name == typed ||
          ::faccessat(files.descriptor(), files.c_name(), X_OK, 0) != 0)
        continue;
      nearest = name;
      least = off;
    }
  }
  return nearest;
}

/// Links of distributions that have merged /usr.
struct MergedDirectory {
  std::string_view link, to;
};
constexpr std::array<MergedDirectory, 8> kMerged{{{"/lib64", "/usr/lib64"},
                                                  {"/lib64", "/usr/lib"},
                                                  {"/lib", "/usr/lib"},
                                                  {"/bin", "/usr/bin"},
                                                  {"/sbin", "/usr/sbin"},
                                                  {"/sbin", "/usr/bin"},
                                                  {"/usr/lib64", "/usr/lib"},
                                                  {"/usr/sbin", "/usr/bin"}}};

/// Returns advice on a path that is missing because a layer has replaced the link above it by a
/// directory; empty for others.
std::string advice_on_replaced_link(const std::string& path) {
  const std::string real = without_links(path);
  for (const auto& [link, to] : kMerged) {
    struct stat status {};
    if (!real.starts_with(std::string(link) + "/") || ::lstat(link.data(), &status) != 0) continue;
    if (!S_ISDIR(status.st_mode) || !is_there(std::string(to) + real.substr(link.size()))) continue;
    return formatted(
        "a layer of the image replaces the link {} to {}, which has it, by a directory: "
        "rebuild the layer with its files in {}",
        in_quotes(link), to, to);
  }
  return {};
}

/// Returns the interpreter in a script's first line; empty if it is not a script.
std::string interpreter_in(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t", 2), line.size()));
  return std::string(line.substr(0, line.find_first_of(" \t\r")));
}

/// Returns whether the kernel starts ELF programs of other processors by an emulator.
bool has_emulator() {
  for (DirectoryReader formats("/proc/sys/fs/binfmt_misc"); formats.next();) {
    if (formats.name().starts_with("qemu-")) return true;
  }
  return false;
}

/// Returns the processor of an ELF program that this machine cannot execute; empty for others.
std::string other_machine(std::string_view elf) {
  constexpr std::size_t kOrderAt = 5, kMachineAt = 18;
  if (elf.size() < kMachineAt + 2) return {};
  auto machine = number_at<std::uint16_t>(elf, kMachineAt);
  const bool is_swapped = elf[kOrderAt] == 2;  // ELFDATA2MSB
  if (is_swapped) machine = static_cast<std::uint16_t>(machine << 8 | machine >> 8);
  const std::string name = machine_name(machine), own = machine_name(own_machine());
  const bool is_32_bit = (own == "x86-64" && name == "i386") || (own == "aarch64" && name == "arm");
  if ((!is_swapped && (name == own || is_32_bit)) || has_emulator()) return {};
  return name;
}

/// A reason why the kernel does not execute a file, and the cure; no reason: it does, as far as is
/// known.
struct Obstacle {
  std::string reason, hint;
};

Obstacle obstacle_of_permission(const std::string& found, const struct stat& status,
                                const std::string& typed) {
  struct statvfs mount {};
  if ((status.st_mode & 0111) == 0) return {"the file is not executable", "chmod +x " + typed};
  if (::statvfs(found.c_str(), &mount) == 0 && (mount.f_flag & ST_NOEXEC) != 0)
    return {"it is on a noexec mount", "copy it elsewhere, or mount it without noexec"};
  return {"permission denied",
          "its owner, or the image, must let others execute it: chmod a+rx " + typed};
}

/// Returns the loader that an ELF program names; empty for other files.
std::string loader_of(const std::string& program) {
  const UniqueFd file(::open(program.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  const auto elf = read_elf(file.get());
  return elf ? elf->interpreter : std::string();
}

/// Returns the obstacle of a file without which a program does not start. `whose`: before its kind.
Obstacle obstacle_of_starter(const std::string& path, const std::string& whose,
                             const std::string& image, const char* hint) {
  if (path.empty() || is_there(path)) return {};
  const std::string advice = advice_on_replaced_link(path);
  return {formatted("{} {} is not in image {}", whose, in_quotes(path), image),
          advice.empty() ? hint : advice};
}

constexpr char kOtherLibrary[] = "it was built for another C library: build it in the image";

Obstacle obstacle_of_script(std::string_view line, const std::string& image,
                            const std::string& typed) {
  const std::string path = interpreter_in(line);
  if (line.ends_with('\r'))
    return {"its first line ends in a carriage return: the script has Windows line ends",
            "sed -i 's/\\r$//' " + typed};
  if (path.empty()) return {};
  if (!is_there(path))
    return obstacle_of_starter(path, "its interpreter", image, "its first line names it");
  return obstacle_of_starter(loader_of(path), formatted("for {}, the loader", in_quotes(path)),
                             image, kOtherLibrary);
}

Obstacle obstacle_of_elf(const std::string& program, std::string_view begin,
                         const std::string& image) {
  if (const std::string machine = other_machine(begin); !machine.empty()) {
    return {formatted("it is a program for {}, and this node is {}", machine,
                      machine_name(own_machine())),
            "build it on a node, or use its build for this processor"};
  }
  return obstacle_of_starter(loader_of(program), "its loader", image, kOtherLibrary);
}

/// `image` is in quotes.
Obstacle obstacle_of(const std::string& found, const std::string& image, const std::string& typed) {
  struct stat status {};
  if (::stat(found.c_str(), &status) != 0) return {};
  if (S_ISDIR(status.st_mode)) return {"it is a directory", "name a program"};
  if (!S_ISREG(status.st_mode)) return {};
  if (::access(found.c_str(), X_OK) != 0) return obstacle_of_permission(found, status, typed);
  const UniqueFd file(::open(found.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  std::array<char, 256> bytes{};
  const ssize_t got = file ? ::pread(file.get(), bytes.data(), bytes.size(), 0) : -1;
  if (got < 0) return {};  // it may be executed and not read
  const std::string_view begin(bytes.data(), static_cast<std::size_t>(got));
  if (begin.empty()) return {"the file is empty", "copy it again"};
  const std::string_view line = begin.substr(0, begin.find('\n'));
  if (begin.starts_with("#!")) return obstacle_of_script(line, image, typed);
  if (begin.starts_with("\177ELF")) return obstacle_of_elf(found, begin, image);
  if (begin.find('\0') != begin.npos || begin.starts_with("MZ")) return {};
  return {"it is a text whose first line names no interpreter", "begin it with #!/bin/sh"};
}

}  // namespace

std::string why_missing(const std::string& program, std::string_view path, std::string_view image,
                        bool has_submit_directory) {
  const std::string what = "execute " + in_quotes(program);
  const std::string found = found_along(program, path);
  if (const auto colon = program.find(":/"); found.empty() && colon != std::string::npos) {
    return formatted(
        "{}: it has the form of a mount (hint: --container-mounts={}; -v is Slurm's "
        "--verbose)",
        what, printable(program));
  }
  if (found.empty() && program.find('/') == std::string::npos) {
    const std::string near = nearest_along(program, path);
    const std::string hint = !near.empty() ? formatted("did you mean {}?", in_quotes(near))
                             : path != kDefaultPath
                                 ? formatted("PATH is {}", printable(path))
                                 : "use an image that has it, or build one: scontainer build";
    return formatted("{}: image {} has no such program along PATH (hint: {})", what,
                     in_quotes(image), hint);
  }
  if (found.empty() && !program.starts_with('/')) {
    const std::unique_ptr<char, void (*)(void*)> here(::getcwd(nullptr, 0), ::free);
    return formatted(
        "{}: not in the work directory {} of the container (hint: {})", what,
        in_quotes(here ? here.get() : "?"),
        has_submit_directory ? "check the name: ls" : "--container-mount-cwd, if ./ has it");
  }
  if (found.empty()) {
    std::string advice = advice_on_replaced_link(program);
    if (advice.empty()) {
      // A mount of a directory that the image has would hide the image's files.
      const std::string directory = program.substr(0, program.rfind('/'));
      const bool has_directory = directory.empty() || ::access(directory.c_str(), F_OK) == 0;
      advice = "if the host has it: --container-mounts=" +
               printable(has_directory ? program : directory);
    }
    return formatted("{}: neither in image {} nor mounted (hint: {})", what, in_quotes(image),
                     advice);
  }
  const auto [reason, hint] = obstacle_of(found, in_quotes(image), printable(program));
  return reason.empty() ? "" : formatted("{}: {} (hint: {})", what, reason, hint);
}

// --- program of a task ---

namespace {

/// Returns whether a rank is one of `0,2-4`, `0-8:2` or `*`; empty: the text is no list of ranks.
std::optional<bool> has_rank(std::string_view list, std::uint32_t rank) {
  if (list == "*") return true;
  bool has = false;
  for (std::string_view range : split(list, ',')) {
    std::uint32_t step = 1;
    const auto colon = range.find(':');
    if (colon != range.npos && (!read_number(range.substr(colon + 1), step) || step == 0))
      return {};
    range = range.substr(0, colon);
    const auto first = parse_number(range.substr(0, range.find('-')));
    const auto last = parse_number(range.substr(range.find('-') + 1));
    if (!first || !last) return {};
    has = has || (rank >= *first && rank <= *last && (rank - *first) % step == 0);
  }
  return has;
}

/// One line of the file of srun --multi-prog.
struct ProgramOfRanks {
  std::string_view ranks, program;
};

/// Returns the lines of such a file; none if the text is something else.
std::vector<ProgramOfRanks> programs_of_ranks(std::string_view text) {
  std::vector<ProgramOfRanks> all;
  bool continues = false;
  Lines lines(text);
  for (std::string_view line; lines.next(line);) {
    const bool is_rest = std::exchange(continues, line.ends_with('\\'));
    line = trimmed(line);
    if (is_rest || line.empty() || line[0] == '#') continue;
    const auto end = std::min(line.find_first_of(" \t"), line.size());
    const std::string_view rest = trimmed(line.substr(end));
    if (rest.empty() || !has_rank(line.substr(0, end), 0)) return {};
    all.push_back({line.substr(0, end), unquoted(rest.substr(0, rest.find_first_of(" \t")))});
  }
  return all;
}

}  // namespace

std::vector<std::string> programs_told_by(const std::vector<std::uint32_t>& ranks,
                                          const std::vector<std::string>& command) {
  const auto is_own = [&](std::uint32_t rank) {
    return std::ranges::find(ranks, rank) != ranks.end();
  };
  if (command.empty() || ranks.empty()) return {};
  // With --multi-prog the command is that file's name, and its text.
  auto lines =
      programs_of_ranks(command.size() < 2 ? std::string_view() : std::string_view(command[1]));
  if (lines.empty()) return is_own(0) ? std::vector{command[0]} : std::vector<std::string>();
  std::vector<std::string> told;
  const std::uint32_t last = *std::ranges::max_element(ranks);
  for (std::uint32_t rank = 0; rank <= last && !lines.empty(); ++rank) {
    const auto line =
        std::ranges::find_if(lines, [&](const auto& one) { return *has_rank(one.ranks, rank); });
    if (line == lines.end() || line->program.empty()) continue;
    if (is_own(rank)) told.emplace_back(line->program);
    line->program = {};
  }
  return told;
}

}  // namespace spc
