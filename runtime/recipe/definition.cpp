#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/format.hpp"
#include "base/json.hpp"
#include "base/text.hpp"
#include "recipe/recipe.hpp"

namespace spc {

namespace {

constexpr char kFiles[] = "/.singularity.d/";
constexpr char kEnvironmentFile[] = "/.singularity.d/env/90-environment.sh";
/// Runs the run script with the image's environment, where only the OCI configuration is known.
constexpr char kRun[] =
    "for f in /.singularity.d/env/*.sh; do [ ! -r \"$f\" ] || . \"$f\"; done; "
    "exec /bin/sh /.singularity.d/runscript \"$@\"";

constexpr std::array<std::string_view, 11> kSections{
    "setup", "files",  "environment", "post",      "runscript", "startscript",
    "test",  "labels", "help",        "arguments", "pre"};

struct Section {
  std::string name;
  std::string words;  ///< after the name
  std::string text;
  unsigned line = 0;
};

struct DefinitionStage {
  std::vector<std::pair<std::string, std::string>> header;
  std::vector<Section> sections;
  unsigned line = 0;

  [[nodiscard]] std::string value(std::string_view key) const {
    for (const auto& [name, text] : header) {
      if (name == key) return text;
    }
    return {};
  }
};

std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

/// Translates a definition file to the instructions of a Dockerfile.
class Definition {
 public:
  Definition(std::string_view text, const std::string& name, const Variables& arguments)
      : name_(name), text_(text), arguments_(arguments) {}

  Result<Dockerfile> read() {
    SPC_TRY(read_stages());
    if (stages_.empty())
      return Error(ErrorKind::invalid, formatted("{}: has no Bootstrap", name_))
          .hint("Bootstrap: docker and From: debian:12 are the first lines");
    for (const DefinitionStage& stage : stages_) SPC_TRY(translate(stage));
    return std::move(file_);
  }

 private:
  [[nodiscard]] Error wrong(unsigned line, const std::string& reason) const {
    return {ErrorKind::invalid, formatted("{}:{}: {}", name_, line, reason)};
  }

  Result<void> read_stages() {
    unsigned number = 0;
    Section* section = nullptr;
    for (std::string_view left = text_; !left.empty();) {
      std::string_view line = next_part(left, '\n');
      ++number;
      if (line.ends_with('\r')) line.remove_suffix(1);
      const bool begins_stage = lower_case(line).starts_with("bootstrap:");
      if (begins_stage) {
        stages_.push_back({.header = {}, .sections = {}, .line = number});
        section = nullptr;
      }
      if (line.starts_with('%') && !line.starts_with("%%")) {
        section = SPC_TRY(begin_section(line.substr(1), number));
      } else if (section != nullptr) {
        section->text.append(line) += '\n';
      } else {
        SPC_TRY(read_header(line, number));
      }
    }
    return {};
  }

  Result<Section*> begin_section(std::string_view line, unsigned number) {
    std::string_view rest = line;
    const std::string name = lower_case(trimmed(next_part(rest, ' ')));
    if (stages_.empty()) return wrong(number, formatted("%{} precedes Bootstrap", name));
    if (std::find(kSections.begin(), kSections.end(), name) == kSections.end()) {
      const std::string near(nearest(name, kSections));
      return wrong(number, formatted("unknown section %{}", name))
          .hint(near.empty() ? "sections of %app are not supported"
                             : formatted("did you mean %{}?", near));
    }
    if (name == "setup" || name == "pre")
      return wrong(number, formatted("%{} would run on the host, which is refused", name))
          .hint("copy with %files, and run commands in %post");
    stages_.back().sections.push_back(
        {.name = name, .words = std::string(trimmed(rest)), .text = {}, .line = number});
    return &stages_.back().sections.back();
  }

  Result<void> read_header(std::string_view line, unsigned number) {
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) return {};
    const auto colon = line.find(':');
    if (colon == std::string_view::npos || stages_.empty())
      return wrong(number, formatted("{} is not KEY: VALUE", in_quotes(line)))
          .hint("Bootstrap: docker is the first line");
    stages_.back().header.emplace_back(lower_case(trimmed(line.substr(0, colon))),
                                       trimmed(line.substr(colon + 1)));
    return {};
  }

  /// Replaces {{ NAME }} by the argument of that name.
  Result<std::string> filled(const DefinitionStage& stage, std::string_view text,
                             unsigned line) const {
    Variables known;
    for (const Section& section : stage.sections) {
      if (section.name != "arguments") continue;
      for (const std::string_view row : split(section.text, '\n')) {
        const auto equals = row.find('=');
        if (equals == std::string_view::npos) continue;
        known[std::string(trimmed(row.substr(0, equals)))] = trimmed(row.substr(equals + 1));
      }
    }
    for (const auto& [name, value] : arguments_) known[name] = value;
    std::string result;
    for (;;) {
      const auto begin = text.find("{{");
      const auto end = begin == std::string_view::npos ? begin : text.find("}}", begin);
      if (end == std::string_view::npos) return result + std::string(text);
      const auto name = trimmed(text.substr(begin + 2, end - begin - 2));
      const auto found = known.find(name);
      if (found == known.end())
        return wrong(line, formatted("{{{{ {} }}}} has no value", name))
            .hint(formatted("--build-arg {}=VALUE, or a line in %arguments", name));
      result.append(text.substr(0, begin)) += found->second;
      text.remove_prefix(end + 2);
    }
  }

  Result<void> translate(const DefinitionStage& stage) {
    const std::string image = SPC_TRY(image_of(stage));
    Instruction& from = add("FROM", stage.line, image);
    if (const std::string name = stage.value("stage"); !name.empty()) from.text += " AS " + name;
    add("APPTAINER", stage.line, "the environment of the base image");
    for (const char* name : {"files", "post", "environment", "labels"}) {
      for (const Section& section : stage.sections) {
        if (section.name != name) continue;
        const std::string text = SPC_TRY(filled(stage, section.text, section.line));
        if (section.name == "files") SPC_TRY(copies(section, text));
        if (section.name == "post") post(section, text);
        if (section.name == "environment") environment(section, text);
        if (section.name == "labels") labels(section, text);
      }
    }
    for (const Section& section : stage.sections) {
      const std::string text = SPC_TRY(filled(stage, section.text, section.line));
      if (section.name == "runscript") {
        script(section, "runscript", text);
        Instruction& entry = add("ENTRYPOINT", section.line, "the run script");
        entry.is_list = true;
        entry.list = {"/bin/sh", "-c", kRun, "runscript"};
      }
      if (section.name == "startscript") script(section, "startscript", text);
      if (section.name == "help") write(section, std::string(kFiles) + "runscript.help", text);
    }
    for (const Section& section : stage.sections) {
      if (section.name != "test") continue;
      script(section, "test", SPC_TRY(filled(stage, section.text, section.line)));
      Instruction& run = add("RUN", section.line, "/.singularity.d/test");
      run.is_list = true;
      run.list = {"/bin/sh", "/.singularity.d/test"};
    }
    return {};
  }

  Result<std::string> image_of(const DefinitionStage& stage) const {
    const std::string how = lower_case(stage.value("bootstrap"));
    std::string from = SPC_TRY(filled(stage, stage.value("from"), stage.line));
    if (how == "scratch") return how;
    if (from.empty())
      return wrong(stage.line, formatted("Bootstrap: {} needs From", how)).hint("From: debian:12");
    if (how == "docker") {
      if (const auto space = stage.value("namespace"); !space.empty()) from = space + "/" + from;
      if (const auto host = stage.value("registry"); !host.empty()) from = host + "/" + from;
      return from;
    }
    if (how == "localimage") return (from.starts_with('/') ? "" : "./") + from;
    constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kForms{{
        {"docker-archive", "docker-archive:"},
        {"docker-daemon", "dockerd://"},
        {"oci", "oci:"},
        {"oci-archive", "oci-archive:"},
        {"oras", "oras://"},
    }};
    for (const auto& [name, prefix] : kForms) {
      if (how == name) return std::string(prefix) + from;
    }
    return wrong(stage.line, formatted("Bootstrap: {} is not supported", how))
        .hint("use an image of a registry: Bootstrap: docker, From: debian:12");
  }

  Instruction& add(const char* name, unsigned line, std::string text) {
    Instruction one;
    one.name = name;
    one.line = line;
    one.text = std::move(text);
    file_.instructions.push_back(std::move(one));
    return file_.instructions.back();
  }

  void write(const Section& section, const std::string& path, const std::string& text,
             const char* mode = "644") {
    Instruction& copy = add("COPY", section.line, "%" + section.name);
    copy.flags.emplace_back("chmod", mode);
    copy.is_list = true;
    copy.list = {"<<" + section.name, path};
    copy.documents.push_back({.name = section.name, .text = text, .expands = false});
  }

  void script(const Section& section, const std::string& file, const std::string& text) {
    const std::string first = text.starts_with("#!") ? "" : "#!/bin/sh\n";
    write(section, kFiles + file, first + text, "755");
  }

  Result<void> copies(const Section& section, const std::string& text) {
    std::string_view rest = section.words;
    const bool is_from = next_part(rest, ' ') == "from";
    unsigned line = section.line;
    for (const std::string_view row : split(text, '\n')) {
      ++line;
      const auto words = expand_words(trimmed(row.substr(0, row.find('#'))), {});
      if (!words) return wrong(line, words.error().message());
      if (words->empty()) continue;
      if (words->size() > 2) return wrong(line, "is not SOURCE [TARGET]");
      Instruction& copy = add("COPY", line, joined(*words, " "));
      copy.flags.emplace_back("as", "cp");
      if (is_from) copy.flags.emplace_back("from", trimmed(rest));
      copy.is_list = true;
      copy.list = {words->front(), words->back()};
    }
    return {};
  }

  void post(const Section& section, const std::string& text) {
    std::string_view rest = section.words;
    const bool has_shell = next_part(rest, ' ') == "-c";
    Instruction& run = add("RUN", section.line, "%post");
    run.is_list = true;
    run.list = {has_shell ? std::string(trimmed(rest)) : "/bin/sh", "-ex", "-c", text};
  }

  /// Keeps the script, and sets what a plain `export NAME=VALUE` sets for tools that only know the
  /// OCI configuration.
  void environment(const Section& section, const std::string& text) {
    write(section, kEnvironmentFile, "#!/bin/sh\n" + text, "755");
    unsigned line = section.line;
    for (std::string_view row : split(text, '\n')) {
      ++line;
      row = trimmed(row);
      if (row.starts_with("export ")) row = trimmed(row.substr(7));
      const auto equals = row.find('=');
      if (equals == std::string_view::npos || equals == 0 || row.starts_with('#')) continue;
      if (row.find_first_of("`;|&<>()") != std::string_view::npos) continue;
      if (row.substr(0, equals).find_first_of(" \t$") != std::string_view::npos) continue;
      add("ENV", line, std::string(row));
    }
  }

  void labels(const Section& section, const std::string& text) {
    Json all = Json::object();
    unsigned line = section.line;
    for (std::string_view row : split(text, '\n')) {
      ++line;
      row = trimmed(row);
      if (row.empty() || row.starts_with('#')) continue;
      const std::string name(next_part(row, ' '));
      const std::string value(trimmed(row));
      all[name] = value;
      std::string quoted;
      for (const char c : value) {
        if (c == '"' || c == '\\' || c == '$') quoted += '\\';
        quoted += c;
      }
      add("LABEL", line, name + "=\"" + quoted + "\"");
    }
    write(section, std::string(kFiles) + "labels.json", all.str(1, '\t') + "\n");
  }

  const std::string& name_;
  std::string_view text_;
  const Variables& arguments_;
  std::vector<DefinitionStage> stages_;
  Dockerfile file_;
};

}  // namespace

bool is_definition(std::string_view text) {
  while (!text.empty()) {
    const auto line = trimmed(next_part(text, '\n'));
    if (line.empty() || line.starts_with('#')) continue;
    return lower_case(line).starts_with("bootstrap:");
  }
  return false;
}

Result<Dockerfile> parse_definition(std::string_view text, const std::string& name,
                                    const Variables& arguments) {
  if (text.find('\0') != std::string_view::npos)
    return Error(ErrorKind::invalid, formatted("{}: is not a text file", name));
  return Definition(text, name, arguments).read();
}

}  // namespace spc
