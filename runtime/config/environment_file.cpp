// Environment files (EDF): search, inheritance, variables, and the options that their keys stand
// for.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "reference/location.hpp"

namespace spc {

// --- variables ---

namespace {

using Variables = std::map<std::string, std::string>;

constexpr std::size_t kMostOfEnvironment = 1 << 20;
constexpr std::size_t kMostValues = 1000;
constexpr std::size_t kMostLevels = 10;
constexpr std::size_t kMostFiles = 200;

Result<std::string> expanded(std::string_view text, const Variables& variables);

/// Returns the value of `NAME` or `NAME:-DEFAULT`, the text between braces.
Result<std::string> value_of(std::string_view text, const Variables& variables) {
  const auto* const after = std::ranges::find_if_not(text, is_shell_name_character);
  const std::string name(text.begin(), after);
  const std::string_view rest = text.substr(name.size());
  const bool has_default = rest.starts_with(":-") || rest.starts_with('-');
  if (!is_shell_name(name) || (!rest.empty() && !has_default)) {
    return Error(ErrorKind::invalid,
                 formatted("{} is not expanded", in_quotes("${" + std::string(text) + "}")))
        .hint("${NAME} or ${NAME:-DEFAULT}; $$ is a dollar sign");
  }
  const auto found = variables.find(name);
  const bool is_set = found != variables.end() && !(rest.starts_with(':') && found->second.empty());
  if (is_set) return found->second;
  if (has_default) return expanded(rest.substr(rest.find('-') + 1), variables);
  return Error(ErrorKind::invalid, formatted("the variable {} is not set", name))
      .hint(formatted("export {0}, or write ${{{0}:-DEFAULT}}", name));
}

/// Returns the length of the text up to the brace that closes it; npos if there is none.
std::size_t closing_brace(std::string_view text) {
  std::size_t open = 1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with("${")) ++open;
    if (text[i] == '}' && --open == 0) return i;
  }
  return std::string_view::npos;
}

/// Replaces ${NAME}, ${NAME:-DEFAULT} and $NAME; $$ becomes $.
Result<std::string> expanded(std::string_view text, const Variables& variables) {
  std::string result;
  for (;;) {
    const std::size_t dollar = text.find('$');
    result += text.substr(0, dollar);
    if (dollar == std::string_view::npos) return result;
    text.remove_prefix(dollar + 1);
    if (text.starts_with('{')) {
      text.remove_prefix(1);
      const std::size_t end = closing_brace(text);
      if (end == std::string_view::npos)
        return Error(ErrorKind::invalid, "${ without }").hint("$$ is a dollar sign");
      result += SPC_TRY(value_of(text.substr(0, end), variables));
      text.remove_prefix(end + 1);
      continue;
    }
    const auto* const after = std::ranges::find_if_not(text, is_shell_name_character);
    const std::string_view name = text.substr(0, static_cast<std::size_t>(after - text.begin()));
    if (is_shell_name(name)) {
      result += SPC_TRY(value_of(name, variables));
      text.remove_prefix(name.size());
      continue;
    }
    result += '$';
    if (text.starts_with('$')) text.remove_prefix(1);
  }
}

}  // namespace

// --- options ---

namespace {

/// Returns the text as one item of an option's list: next_piece() of request/mount_spec.hpp.
std::string list_item(std::string_view text, std::string_view escaped) {
  std::string item;
  for (const char c : text) {
    if (escaped.find(c) != std::string_view::npos) item += '\\';
    item += c;
  }
  return item;
}

/// Returns SRC[:DST[:FLAGS]] as one mount of --container-mounts, which joins flags by +.
std::string mount_item(const std::string& text) {
  std::string item = list_item(text, ",\"\\ ");
  const std::size_t first = item.find(':');
  const std::size_t flags = first == std::string::npos ? first : item.find(':', first + 1);
  if (flags == std::string::npos) return item;
  for (std::size_t comma = item.find("\\,", flags); comma != std::string::npos;
       comma = item.find("\\,", comma))
    item.replace(comma, 2, "+");
  return item;
}

/// Annotations of CSCS's Container Engine that this package reads. `option`: given if the value is
/// "true"; empty: the hook does it for every container.
struct KnownAnnotation {
  std::string_view name;
  const char* option;
};
constexpr KnownAnnotation kAnnotations[] = {
    {"com.pyxis.entrypoint_log", "container-entrypoint-log"},
    {"com.sarus.perfmon", "container-verbose"},
    {"com.hooks.ssh.enabled", "container-ssh"},
    {"com.hooks.ssh.authorize_ssh_key", ""},
    {"com.pyxis.pytorch_remap_vars", ""},
    {"com.hooks.cxi.enabled", ""},
    {"com.hooks.aws_ofi_nccl.enabled", ""},
    {"com.hooks.aws_ofi_nccl.variant", ""},
};

const KnownAnnotation* find_annotation(std::string_view name) {
  const auto* const found = std::ranges::find(kAnnotations, name, &KnownAnnotation::name);
  return found == std::end(kAnnotations) ? nullptr : found;
}

constexpr std::string_view kEnvPrefix = "env.";
constexpr std::string_view kAnnotationPrefix = "annotations.";

/// A key outside of tables.
struct EnvironmentKey {
  std::string_view name;
  const char* option;               ///< also that of a flag that is true
  const char* otherwise = nullptr;  ///< of a flag: the option if it is false
};
constexpr EnvironmentKey kKeys[] = {
    {"image", "container-image"},
    {"workdir", "container-workdir"},
    {"mounts", "container-mounts"},
    {"devices", "container-device"},
    {"writable", "container-writable", "container-readonly"},
    {"entrypoint", "container-entrypoint", "no-container-entrypoint"},
};
constexpr std::string_view kKeyNames[] = {
    "base_environment", "description", "image",      "workdir", "mounts",
    "devices",          "writable",    "entrypoint", "env",     "annotations"};

/// A value of [env] that continues the variable's value in the container: `${PATH}:/x`.
struct Addition {
  std::string_view mark;  ///< `+=`: behind it; `+`: in front of it; empty: neither
  std::string text;       ///< without the variable
};

Addition addition_of(std::string_view key, const std::string& text) {
  if (!key.starts_with(kEnvPrefix)) return {};
  const std::string name(key.substr(kEnvPrefix.size()));
  const std::string self = "${" + name + "}";
  if (text.size() > self.size() && text.starts_with(self)) return {"+=", text.substr(self.size())};
  const std::string plain = "$" + name;
  if (text.size() > plain.size() && text.starts_with(plain) &&
      !is_shell_name_character(text[plain.size()]))
    return {"+=", text.substr(plain.size())};
  for (const std::string& end : {self, plain}) {
    const std::size_t size = text.size() - std::min(text.size(), end.size());
    if (size > 0 && text.ends_with(end) && text[size - 1] != '$')
      return {"+", text.substr(0, size)};
  }
  return {};
}

/// Turns the entries of one file into values.
class EnvironmentEntries {
 public:
  EnvironmentEntries(const std::string& file, const Variables& variables)
      : file_(file), variables_(variables) {}

  Result<void> add(const TomlEntry& entry, std::vector<EnvironmentValue>& into) const {
    const std::string_view key = entry.key;
    if (key == "base_environment" || key == "description") return {};
    for (std::size_t i = 0; i < entry.texts.size(); ++i) {
      const Place place{key, entry.lines[i]};
      const auto addition = addition_of(key, entry.texts[i]);
      auto text =
          SPC_TRY_OR(.during(name_of(place)),
                     expanded(addition.mark.empty() ? entry.texts[i] : addition.text, variables_));
      EnvironmentValue value{.key = entry.key,
                             .text = std::move(text),
                             .option = {},
                             .value = {},
                             .origin = formatted("{}:{}", file_, place.line)};
      SPC_TRY_OR(.during(name_of(place)), translate(value, addition.mark));
      into.push_back(std::move(value));
    }
    return {};
  }

  /// Refuses an unknown key or a wrong type.
  Result<void> check(const TomlEntry& entry) const {
    const std::string_view key = entry.key;
    const Place place{key, entry.lines.front()};
    const bool in_table = key.starts_with(kEnvPrefix) || key.starts_with(kAnnotationPrefix);
    const auto wrong = [&](const char* why) {
      return Error(ErrorKind::invalid, why).during(name_of(place));
    };
    using Kind = TomlEntry::Kind;
    if (in_table && (entry.kind == Kind::list || entry.kind == Kind::other))
      return wrong("expected text in quotes");
    if (in_table) return {};
    if (std::ranges::find(kKeyNames, key) == std::end(kKeyNames) || key == "env" ||
        key == "annotations") {
      const std::string_view meant = nearest(key, kKeyNames);
      return wrong("unknown key")
          .hint(meant.empty()
                    ? std::string("the keys are described in spank-container(7), ENVIRONMENT FILES")
                    : formatted("did you mean {}?", in_quotes(meant)));
    }
    const bool is_list = key == "mounts" || key == "devices" || key == "base_environment";
    if (is_list && entry.kind != Kind::list && entry.kind != Kind::text)
      return wrong("expected a list: [\"...\", \"...\"]");
    if (key == "writable" || key == "entrypoint") {
      const bool is_flag =
          entry.kind == Kind::flag ||
          (entry.kind == Kind::text && (entry.texts[0] == "true" || entry.texts[0] == "false"));
      if (!is_flag) return wrong("expected true or false");
    } else if (!is_list && entry.kind != Kind::text) {
      return wrong("expected text in quotes");
    }
    return {};
  }

 private:
  struct Place {
    std::string_view key;
    std::int64_t line;
  };

  [[nodiscard]] std::string name_of(const Place& place) const {
    return formatted("{}: {}", in_environment(formatted("{}:{}", file_, place.line)),
                     printable(place.key));
  }

  /// Sets option and value.
  static Result<void> translate(EnvironmentValue& value, std::string_view mark) {
    const std::string_view key = value.key;
    if (key.starts_with(kEnvPrefix)) {
      const std::string name(key.substr(kEnvPrefix.size()));
      const std::string self = "${" + name + "}";
      if (!mark.empty()) {
        const bool in_front = mark == "+=";
        value.option = "container-env";
        value.value = in_front ? name : "+" + name;
        value.value += (in_front ? "+=" : "=") + list_item(value.text, ",\"\\");
        value.text = in_front ? self + value.text : value.text + self;
        return {};
      }
      const bool unset = value.text.empty();
      value.option = unset ? "container-unsetenv" : "container-env";
      value.value = unset ? name : name + "=" + list_item(value.text, ",\"\\");
      if (is_shell_name(name)) return {};
      return Error(ErrorKind::invalid, "is not the name of a variable");
    }
    if (key.starts_with(kAnnotationPrefix)) {
      const KnownAnnotation* const known = find_annotation(key.substr(kAnnotationPrefix.size()));
      if (known != nullptr && *known->option != '\0' && value.text == "true") {
        value.option = known->option;
      } else {
        value.option = NamedEnvironment::kAnnotation;
        value.value = std::string(key.substr(kAnnotationPrefix.size())) + "=" + value.text;
      }
      return {};
    }
    const auto* const row = std::ranges::find(kKeys, key, &EnvironmentKey::name);
    if (row == std::end(kKeys) || value.text.empty()) return {};
    value.option = row->option;
    if (row->otherwise != nullptr) {
      if (value.text == "false") value.option = row->otherwise;
      return {};
    }
    value.value = key == "mounts" ? mount_item(value.text) : value.text;
    // podman's form of a device node
    if (key == "devices" && value.text.starts_with("/dev/")) {
      value.option = "container-mounts";
      value.value = mount_item(value.text);
    }
    return {};
  }

  const std::string& file_;
  const Variables& variables_;
};

}  // namespace

std::string in_environment(std::string_view origin) {
  const std::size_t colon = origin.rfind(':');
  if (colon == std::string_view::npos) return "environment " + in_quotes(origin);
  return formatted("environment {}, line {}", in_quotes(origin.substr(0, colon)),
                   printable(origin.substr(colon + 1)));
}

// --- files ---

namespace {

constexpr std::string_view kEnd = ".toml";

/// Reads a file and its base environments.
class EnvironmentReader {
 public:
  explicit EnvironmentReader(const EnvironmentPlaces& places) : places_(places) {}

  /// `asked_by`: where the name is, for errors; empty: on the command line.
  Result<void> read(const std::string& name, const std::string& asked_by) {
    std::string file =
        asked_by.empty() ? SPC_TRY(file_of(name)) : SPC_TRY_DURING(asked_by, file_of(name));
    if (files_.empty()) first_file_ = file;
    if (std::ranges::find(files_, file) != files_.end()) {
      std::string chain;
      for (const std::string& one : files_) chain += in_quotes(one) + " > ";
      return Error(ErrorKind::invalid,
                   formatted("{}: is a cycle: {}", asked_by, chain + in_quotes(file)))
          .hint(formatted("remove {} from base_environment", in_quotes(name)));
    }
    if (files_.size() > kMostLevels || ++read_ > kMostFiles) {
      return Error(ErrorKind::invalid,
                   formatted("{}: more than {} levels of base environments, or {} files", asked_by,
                             kMostLevels, kMostFiles))
          .hint("join some of the files");
    }
    files_.push_back(file);
    SPC_TRY(read_file_of(file));
    files_.pop_back();
    return {};
  }

  NamedEnvironment result(const std::string& name) && {
    return {.name = name, .file = first_file_, .values = std::move(values_)};
  }

 private:
  Result<std::string> file_of(const std::string& name) const {
    const std::string path = SPC_TRY(places_.paths.resolve(name));
    if (path.find('/') != std::string::npos) return path;
    if (path.ends_with(kEnd) && ::access(path.c_str(), F_OK) == 0) return path;
    const std::string in_directories = path.ends_with(kEnd) ? path : path + std::string(kEnd);
    for (const std::string& directory : places_.directories) {
      std::string file = directory + "/" + in_directories;
      if (::access(file.c_str(), F_OK) == 0) return file;
    }
    std::vector<std::string_view> known;
    const auto all = places_.list();
    for (const auto& [one, file] : all) known.emplace_back(one);
    const auto meant = nearest(path, known);
    return Error(ErrorKind::not_found,
                 formatted("find environment {}: no file of that name in {}", in_quotes(name),
                           places_.directories.empty() ? "any directory"
                                                       : joined(places_.directories, ", ")))
        .hint(meant.empty()
                  ? std::string("scontainer env list shows them; a path has a slash: ./") +
                        printable(in_directories)
                  : formatted("did you mean {}?", in_quotes(meant)));
  }

  Result<void> read_file_of(const std::string& file) {
    const std::string what = "environment " + in_quotes(file);
    const UniqueFd opened(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!opened) return Error::from_errno(errno, "read " + what);
    const std::string text =
        SPC_TRY_DURING("read " + what, read_file(opened.get(), kMostOfEnvironment));
    const auto entries = SPC_TRY(read_entries(text, what));
    const EnvironmentEntries here(file, places_.variables);
    for (const TomlEntry& entry : entries) SPC_TRY(here.check(entry));
    for (const TomlEntry& entry : entries) {
      if (entry.key != "base_environment") continue;
      for (std::size_t i = 0; i < entry.texts.size(); ++i) {
        const std::string line = formatted("{}, line {}", what, entry.lines[i]);
        const auto base = SPC_TRY_DURING(line, expanded(entry.texts[i], places_.variables));
        if (!base.empty()) SPC_TRY(read(base, line + ": base_environment"));
      }
    }
    std::vector<EnvironmentValue> found;
    for (const TomlEntry& entry : entries) SPC_TRY(here.add(entry, found));
    for (EnvironmentValue& value : found) put(std::move(value));
    if (values_.size() <= kMostValues) return {};
    return Error(ErrorKind::invalid, formatted("{}: more than {} values", what, kMostValues));
  }

  /// Replaces an earlier value of the key, or appends to a list.
  void put(EnvironmentValue value) {
    const bool is_list = value.key == "mounts" || value.key == "devices";
    std::erase_if(values_, [&](const EnvironmentValue& old) {
      return old.key == value.key && (!is_list || old.text == value.text);
    });
    values_.push_back(std::move(value));
  }

  const EnvironmentPlaces& places_;
  std::vector<std::string> files_;  // being read: a file, and the one that names it before it
  std::string first_file_;
  std::size_t read_ = 0;
  std::vector<EnvironmentValue> values_;
};

}  // namespace

EnvironmentPlaces EnvironmentPlaces::of_this_process(UserPaths paths) {
  EnvironmentPlaces places{.variables = {}, .paths = std::move(paths), .directories = {}};
  for (const char* const* variable = environ; variable != nullptr && *variable != nullptr;
       ++variable) {
    std::string_view value = *variable;
    const std::string name(next_part(value, '='));
    places.variables[name] = value;
  }
  const auto own = places.variables.find("EDF_PATH");
  if (own != places.variables.end() && !own->second.empty()) {
    for (const std::string_view directory : split(own->second, ':')) {
      if (!directory.empty()) places.directories.emplace_back(directory);
    }
  } else if (places.paths.home.starts_with('/')) {
    places.directories.push_back(places.paths.home + "/.edf");
  }
  if (const auto config = read_valid_config(SPC_CONFIG_FILE)) {
    for (const std::string& directory : config->environments)
      places.directories.push_back(directory);
  }
  places.directories.push_back(directory_of_catalogue());
  return places;
}

std::map<std::string, std::string> EnvironmentPlaces::list() const {
  std::map<std::string, std::string> found;
  for (const std::string& directory : directories) {
    UniqueFd opened(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!opened) continue;
    DirectoryReader entries(std::move(opened));
    while (entries.next()) {
      std::string name(entries.name());
      if (!name.ends_with(kEnd) || name.starts_with('.')) continue;
      const std::string file = directory + "/" + name;
      name.resize(name.size() - kEnd.size());
      found.try_emplace(name, file);
    }
  }
  return found;
}

Result<NamedEnvironment> EnvironmentPlaces::read(const std::string& name) const {
  EnvironmentReader reader(*this);
  SPC_TRY(reader.read(name, ""));
  return std::move(reader).result(name);
}

std::vector<std::string> NamedEnvironment::foreign_annotations() const {
  std::vector<std::string> names;
  for (const EnvironmentValue& value : values) {
    if (!value.key.starts_with(kAnnotationPrefix)) continue;
    const std::string annotation = value.key.substr(kAnnotationPrefix.size());
    const bool is_off = value.text == "false" && annotation.ends_with(".enabled");
    const KnownAnnotation* const known = find_annotation(annotation);
    const bool is_obeyed = known != nullptr && (!is_off || *known->option != '\0');
    // A hook of another package that is off is no loss.
    if (!is_obeyed && (known != nullptr || !is_off)) names.push_back(annotation);
  }
  return names;
}

std::string warning_about(const std::vector<std::string>& annotations, const std::string& file) {
  return formatted(
      "environment {}: annotations without effect, unless a hook of the site reads them: {} (hint: "
      "spank-container(7), ENVIRONMENT FILES)",
      in_quotes(file), printable(joined(annotations, ", ")));
}

// --- the variable ---

namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

/// Escapes separators and everything that a shell or Slurm may not pass on.
std::string field(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    const bool is_plain = c > ' ' && c < 0x7f && c != '%' && c != ',' && c != ';';
    if (is_plain) {
      escaped += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      escaped += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return escaped;
}

}  // namespace

Result<std::string> NamedEnvironment::record() const {
  std::string record = field(name) + "," + field(file);
  for (const EnvironmentValue& value : values) {
    if (!value.option.empty())
      record += "," + field(value.option) + "," + field(value.value) + "," + field(value.origin);
  }
  if (record.size() < kMostVariable) return record;
  return Error(ErrorKind::invalid, formatted("environment {}: is too large", in_quotes(file)))
      .hint("remove variables or mounts from it");
}

}  // namespace spc
