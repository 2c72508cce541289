// The container options of all programs: rows, syntax, and combination into one request.

#include "request/options.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "hooks/cdi/names.hpp"
#include "reference/location.hpp"
#include "request/container_name.hpp"
#include "request/mount_spec.hpp"

namespace spc {

// --- device names ---

Result<void> add_device_names(std::vector<std::string>& devices, std::string_view list) {
  for (;;) {
    const std::string_view text = list.substr(0, list.find(','));
    const std::string name = SPC_TRY(CdiName::parse(text)).str();
    if (std::find(devices.begin(), devices.end(), name) == devices.end()) devices.push_back(name);
    if (text.size() == list.size()) return {};
    list.remove_prefix(text.size() + 1);
  }
}

// --- namespaces ---

namespace {

Result<std::uint32_t> parse_one(std::string_view name) {
  if (name.empty())
    return Error(ErrorKind::invalid, "--container-unshare: empty namespace argument")
        .hint("NS[,NS...]");
  for (const NamespaceKind& kind : kNamespaceKinds) {
    if (kind.bit != own_user && name == kind.name) return std::uint32_t{kind.bit};
  }
  std::string shown = in_quotes(name);
  shown.front() = shown.back() = '\'';  // pyxis's text
  return Error(ErrorKind::invalid, "--container-unshare: unknown namespace " + shown)
      .hint("net, ipc, uts, pid or cgroup");
}

}  // namespace

Result<std::uint32_t> parse_namespaces(std::string_view list) {
  std::uint32_t bits = 0;
  for (;;) {
    const auto comma = list.find(',');
    bits |= SPC_TRY(parse_one(list.substr(0, comma)));
    if (comma == std::string_view::npos) return bits;
    list.remove_prefix(comma + 1);
  }
}

// --- environment requests ---

namespace {

/// Returns whether the text is a valid variable name; others are typing errors.
bool is_name(std::string_view text) {
  const bool sane = std::all_of(text.begin(), text.end(),
                                [](char c) { return c > 0x20 && c < 0x7f && c != '='; });
  return sane && !text.empty() && (text[0] < '0' || text[0] > '9');
}

bool is_pattern(std::string_view text) {
  return text.find_first_of("*?") != std::string_view::npos;
}

}  // namespace

bool EnvironmentWishes::assign(std::string name, const std::string& value) {
  const bool in_front = name.starts_with('+');
  const bool appends = !in_front && name.ends_with('+');
  if (in_front) name.erase(0, 1);
  if (appends) name.pop_back();
  if (!is_name(name) || is_pattern(name) || name[0] == '-') return false;
  if (in_front) {
    before[name].insert(0, value);
  } else if (appends) {
    behind[name] += value;
  } else {
    values[name] = value;
  }
  return true;
}

Result<void> EnvironmentWishes::add(std::string_view list) {
  const auto refused = [&] {
    return Error(ErrorKind::invalid, "invalid format: " + in_quotes(list))
        .hint("NAME, PATTERN, NAME=VALUE or -NAME, joined by commas");
  };
  for (std::string_view rest = list;;) {
    auto piece = next_piece(rest, "=,");
    if (!piece) return refused();
    std::string name = std::move(piece->text);
    if (piece->end == '=') {
      piece = next_piece(rest, ",");
      if (!piece || !assign(name, piece->text)) return refused();
    } else if (const auto equals = name.find('='); equals != std::string::npos) {
      // The item is "NAME=VALUE" in quotes.
      if (!assign(name.substr(0, equals), name.substr(equals + 1))) return refused();
    } else if (!is_name(name) || name == "-" || name[0] == '+') {
      return refused();
    } else if (name.starts_with('-')) {
      unset.push_back(name.substr(1));
    } else {
      keep.push_back(std::move(name));
    }
    if (piece->end == '\0') return {};
  }
}

Result<void> EnvironmentWishes::add_unset(std::string_view list) {
  for (std::string_view rest = list;;) {
    const std::string_view name = rest.substr(0, rest.find(','));
    if (!is_name(name)) {
      return Error(ErrorKind::invalid, "invalid format: " + in_quotes(list))
          .hint("NAME or PATTERN, joined by commas");
    }
    unset.emplace_back(name);
    if (name.size() == rest.size()) return {};
    rest.remove_prefix(name.size() + 1);
  }
}

namespace {

bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::ranges::any_of(patterns,
                             [&](const auto& pattern) { return matches_pattern(pattern, name); });
}

}  // namespace

bool EnvironmentWishes::keeps(std::string_view name) const { return matches_any(keep, name); }
bool EnvironmentWishes::unsets(std::string_view name) const { return matches_any(unset, name); }

std::string EnvironmentWishes::missing_in(const std::map<std::string, std::string>& job) const {
  std::vector<std::string> missing;
  for (const std::string& name : keep) {
    const bool is_pattern = name.find_first_of("*?") != std::string::npos;
    if (!is_pattern && !job.contains(name) && !values.contains(name)) missing.push_back(name);
  }
  if (missing.empty()) return {};
  return formatted("{} not set (hint: export {}, or write {}=VALUE)",
                   printable(joined(missing, ", ")) + (missing.size() > 1 ? " are" : " is"),
                   missing.size() > 1 ? "them" : "it", printable(missing.front()));
}

EnvironmentWishes EnvironmentWishes::of_site(const SitePolicy& site) {
  EnvironmentWishes wishes;
  wishes.keep = site.keep_env;
  wishes.unset = site.unsetenv;
  for (const std::string& variable : site.env) {
    const auto equals = std::min(variable.find('='), variable.size());
    if (equals > 0 && equals < variable.size())
      wishes.values[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  return wishes;
}

std::string EnvironmentWishes::serialize() const {
  std::string records;
  for (const auto& name : keep) add_record(records, "keep", name);
  for (const auto& name : unset) add_record(records, "unset", name);
  for (const auto& [name, value] : values) add_record(records, "value", name + "=" + value);
  for (const auto& [name, value] : before) add_record(records, "value", "+" + name + "=" + value);
  for (const auto& [name, value] : behind) add_record(records, "value", name + "+=" + value);
  return records;
}

EnvironmentWishes EnvironmentWishes::parse(std::string_view records) {
  EnvironmentWishes wishes;
  for (Records record(records); record.next();) {
    const std::string_view value = record.value();
    const auto equals = value.find('=');
    if (record.key() == "keep") wishes.keep.emplace_back(value);
    if (record.key() == "unset") wishes.unset.emplace_back(value);
    if (record.key() == "value" && equals != std::string_view::npos)
      wishes.assign(std::string(value.substr(0, equals)), std::string(value.substr(equals + 1)));
  }
  return wishes;
}

bool matches_pattern(std::string_view pattern, std::string_view text) {
  // Position of the last * in the pattern, and the end of the text that it matches so far.
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t covered = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      covered = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++covered;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

// --- messages ---

namespace {

/// A message text; {} is the object, [] the detail.
struct Wording {
  Event event;
  std::string_view text;
};
constexpr Wording kPyxis[] = {
    {Event::import_begins, "importing docker image: {}"},
    {Event::import_ends, "imported docker image: {}"},
    {Event::import_fails, "failed to import docker image: {}"},
    {Event::no_mount_source, "source path does not exist: {}"},
    {Event::no_workdir, "couldn't chdir to {}: []"},
};

}  // namespace

MessageStyle message_style(const SitePolicy& site) {
  return site.messages == "pyxis" ? MessageStyle::pyxis : MessageStyle::own;
}

const char* message_prefix(MessageStyle style) {
  return style == MessageStyle::pyxis ? "pyxis: " : "spank-container: ";
}

std::string in_words_of_pyxis(Event event, std::string_view object, std::string_view detail) {
  const auto* wording = std::find_if(std::begin(kPyxis), std::end(kPyxis),
                                     [&](const Wording& one) { return one.event == event; });
  std::string text;
  for (std::string_view rest = wording->text; !rest.empty();) {
    const bool is_object = rest.starts_with("{}");
    if (is_object || rest.starts_with("[]")) {
      text += printable(is_object ? object : detail);
      rest.remove_prefix(2);
    } else {
      text += rest.front();
      rest.remove_prefix(1);
    }
  }
  return text;
}

Error in_words(const MessageStyle* style, Event event, std::string_view object, Error ours) {
  if (style == nullptr || *style == MessageStyle::own) return ours;
  return {
      ours.kind(),
      in_words_of_pyxis(event, object, ours.sys_errno() == 0 ? "" : ::strerror(ours.sys_errno()))};
}

// --- options ---

namespace {

using Kind = ContainerOption::Kind;

constexpr char kEnvironment[] = "environment";
constexpr char kYes[] = "yes";
constexpr char kNo[] = "no";

std::string typed_name(const ContainerOption& option) { return std::string("--") + option.name; }

/// Parses a boolean. Options have an empty value on the command line, variables have a boolean.
Result<bool> read_switch(const ContainerOption& option, const std::string& value) {
  constexpr std::array<std::string_view, 5> kOn{"", "1", "true", "yes", "y"};
  constexpr std::array<std::string_view, 4> kOff{"0", "false", "no", "n"};
  if (std::find(kOn.begin(), kOn.end(), value) != kOn.end()) return true;
  if (std::find(kOff.begin(), kOff.end(), value) != kOff.end()) return false;
  return Error(ErrorKind::invalid,
               option.argument == nullptr
                   ? formatted("{}: {} is not a boolean", typed_name(option), in_quotes(value))
                   : formatted("{}: {} is not allowed", typed_name(option), in_quotes(value)))
      .hint(option.argument == nullptr ? "1, true, yes, 0, false or no"
                                       : formatted("{0}, or {0}{1}", typed_name(option),
                                                   "=" + std::string(option.argument)));
}

/// Returns whether `value` is one of those that a switch like `--NAME[=ONE|OTHER]` can have.
bool is_value_of(const ContainerOption& option, std::string_view value) {
  if (option.argument == nullptr) return false;
  const auto all = split(option.argument, '|');
  return std::find(all.begin(), all.end(), value) != all.end();
}

/// Returns whether a site can disable the option. Image names are restricted by
/// `allowed_registries` and `allowed_paths`; `batch` and the options that begin with no- give users
/// nothing that a site could restrict.
bool can_be_off(const ContainerOption& option) {
  const std::string_view name = option.name;
  return !name.starts_with("no-") && name != "container-image" && name != "container-batch";
}

Error contradiction(const std::string& one, const std::string& other) {
  return {ErrorKind::invalid, formatted("{} and {} cannot be combined", one, other)};
}

Result<void> check_combinations(const LaunchRequest& request) {
  if (request.image.empty() && !request.name && !request.environment_file.empty()) {
    return Error(ErrorKind::invalid,
                 formatted("environment {}: has no image", in_quotes(request.environment_file)))
        .hint("add image = \"...\" to the file, or --container-image");
  }
  if (request.image.empty() && !request.name)
    return Error(ErrorKind::invalid, "--container-image: argument required");
  if (request.contain && request.mount_home.value_or(false))
    return contradiction("--container-contain", "--container-mount-home");
  if (request.contain && request.mount_cwd.value_or(false))
    return contradiction("--container-contain", "--container-mount-cwd");
  if (request.slurm.value_or(false) && request.remap_root.value_or(false)) {
    return contradiction("--container-slurm", "--container-remap-root")
        .hint("drop one: munge knows the user only");
  }
  if (request.private_layer && (request.name || !request.save.empty())) {
    const std::string other = request.name ? "--container-name" : "--container-save";
    return Error(
        ErrorKind::invalid,
        formatted("--container-private and {} cannot be combined: each task has its own container",
                  other));
  }
  return {};
}

}  // namespace

const ContainerOption* find_option(std::string_view name) {
  const auto all = container_options();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& row) { return row.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::vector<std::string_view> feature_names() {
  std::vector<std::string_view> names;
  for (const ContainerOption& option : container_options()) {
    if (can_be_off(option)) names.emplace_back(option.name);
  }
  return names;
}

Result<void> OptionTexts::add(std::string_view text) {
  const std::string_view name = text.substr(0, text.find('='));
  const ContainerOption* option = find_option(name);
  if (option == nullptr) return Error(ErrorKind::invalid, "unknown option --" + printable(name));
  return add(*option, std::string(text.substr(std::min(name.size() + 1, text.size()))));
}

Result<void> refuse_carriage_return(std::string_view value) {
  const auto last = value.find_last_not_of(" \t\r");
  const auto end = value.substr(last == std::string_view::npos ? 0 : last + 1);
  if (end.find('\r') == std::string_view::npos) return {};
  return Error(ErrorKind::invalid, "the value ends in a carriage return")
      .hint("the script has Windows line ends: sed -i 's/\\r$//' SCRIPT");
}

Result<void> OptionTexts::add_switch(const ContainerOption& option, const std::string& value) {
  if (is_value_of(option, value)) {
    values_[option.name] = {value};
    return {};
  }
  const bool on = SPC_TRY(read_switch(option, value));
  const char* opposite = option.opposite == nullptr ? option.name : option.opposite;
  // A false switch is its opposite.
  const char* said = on ? option.name : opposite;
  const char* now = on || said != option.name ? kYes : kNo;
  auto& old = values_[said];
  const char* contrary = on ? opposite : option.name;
  if ((contrary != said && is_given(contrary)) || (!old.empty() && old.front() != now)) {
    const bool is_yes = option.kind == Kind::on;
    return Error(ErrorKind::invalid,
                 formatted("both --{} and --{} were specified", is_yes ? option.name : opposite,
                           is_yes ? opposite : option.name));
  }
  old = {now};
  return {};
}

Result<void> OptionTexts::add(const ContainerOption& option, const std::string& value) {
  SPC_TRY_DURING(typed_name(option), refuse_carriage_return(value));
  if (option.is_switch()) return add_switch(option, value);
  const std::string name = typed_name(option);
  if (option.kind == Kind::file && value.ends_with('/'))
    return Error(ErrorKind::invalid, name + ": target is a directory");
  if (value.empty()) return Error(ErrorKind::invalid, name + ": argument required");
  auto& old = values_[option.name];
  if (std::find(old.begin(), old.end(), value) != old.end()) return {};
  // Slurm may pass the same value twice; two different values are an error.
  if (option.kind != Kind::list && !old.empty())
    return Error(ErrorKind::invalid, name + " specified multiple times");
  old.push_back(value);
  return {};
}

Result<void> OptionTexts::add_twins(const Variables& variables) {
  for (const ContainerOption& option : container_options()) {
    // The command line overrides the environment, one whole option at a time.
    if (option.twin == nullptr || is_given(option.name)) continue;
    if (option.opposite != nullptr && is_given(option.opposite)) continue;
    for (const std::string_view prefix : kTwinPrefixes) {
      const auto found = variables.find(std::string(prefix) + option.twin);
      if (found == variables.end() || found->second.empty()) continue;
      SPC_TRY_DURING(found->first, add(option, found->second));
      variables_[option.name] = found->first;
      break;
    }
  }
  return {};
}

std::string OptionTexts::environment(const Variables& variables) const {
  std::string name = last(kEnvironment);
  for (const std::string_view prefix : kTwinPrefixes) {
    const auto found = variables.find(std::string(prefix) + find_option(kEnvironment)->twin);
    if (name.empty() && found != variables.end()) name = found->second;
  }
  return name;
}

Result<void> OptionTexts::add_before(const ContainerOption& option,
                                     const NamedEnvironment& environment) {
  const auto texts = [&](const char* name) {
    const auto found = values_.find(name);
    return found == values_.end() ? std::vector<std::string>() : found->second;
  };
  EnvironmentWishes typed;  // an invalid one is refused when it is applied
  for (const std::string& list : texts("container-env")) (void)typed.add(list);
  for (const std::string& list : texts("container-unsetenv")) (void)typed.add_unset(list);
  const bool sets = option.name == std::string_view("container-env");
  const bool unsets = option.name == std::string_view("container-unsetenv");
  const auto given = texts(option.name);
  values_.erase(option.name);
  for (const EnvironmentValue& one : environment.values) {
    if (one.option != option.name) continue;
    std::string variable = one.value.substr(0, one.value.find('='));
    std::erase(variable, '+');
    const bool is_typed = typed.unsets(variable) || typed.sets(variable);
    if ((sets || unsets) && (typed.keeps(variable) || (sets && is_typed))) continue;
    SPC_TRY_DURING(in_environment(one.origin), add(option, one.value));
    lines_[{option.name, one.value}] = one.origin;
  }
  for (const std::string& value : given) {
    auto& all = values_[option.name];
    std::erase(all, value);
    lines_.erase({option.name, value});
    all.push_back(value);
  }
  return {};
}

Result<void> OptionTexts::add_environment(const NamedEnvironment& environment) {
  for (const EnvironmentValue& one : environment.values) {
    std::string_view value = one.value;
    if (one.option != NamedEnvironment::kAnnotation) continue;
    const std::string name(next_part(value, '='));
    annotations_[name] = value;
  }
  for (const ContainerOption& option : container_options()) {
    if (option.kind == Kind::list) {
      SPC_TRY(add_before(option, environment));
      continue;
    }
    if (is_given(option.name) || (option.opposite != nullptr && is_given(option.opposite)))
      continue;
    for (const EnvironmentValue& one : environment.values) {
      if (one.option != option.name) continue;
      SPC_TRY_DURING(in_environment(one.origin), add(option, one.value));
      lines_[{option.name, last(option.name)}] = one.origin;
    }
  }
  return {};
}

bool OptionTexts::is_given(const char* name) const {
  const auto found = values_.find(name);
  return found != values_.end() && !found->second.empty();
}

bool OptionTexts::has(std::string_view name) const {
  const auto found = values_.find(name);
  return found != values_.end() && !found->second.empty() &&
         !(found->second.front() == kNo && find_option(name)->is_switch());
}

std::string OptionTexts::last(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() || found->second.empty() ? std::string() : found->second.back();
}

std::vector<std::string> OptionTexts::features() const {
  std::vector<std::string> used;
  for (const std::string_view name : feature_names()) {
    if (has(name)) used.emplace_back(name);
  }
  return used;
}

std::vector<std::pair<std::string, std::string>> OptionTexts::given(
    std::string (*name_of)(const ContainerOption&)) const {
  std::vector<std::pair<std::string, std::string>> all;
  for (const ContainerOption& option : container_options()) {
    const auto found = values_.find(option.name);
    if (found == values_.end() || option.name == std::string_view("container-explain")) continue;
    const auto variable = variables_.find(option.name);
    for (std::string value : found->second) {
      const auto line = lines_.find({option.name, value});
      // Values of variables may be secrets.
      if (option.name == std::string_view("container-env"))
        value.resize(std::min(value.find('='), value.size()));
      if (option.name == std::string_view("container-image")) value = without_secrets(value);
      all.emplace_back(name_of(option) + (option.is_switch() ? value == kNo ? "=no" : ""
                                                             : "=" + printable(value)),
                       line != lines_.end()           ? line->second
                       : variable == variables_.end() ? "option"
                                                      : variable->second);
    }
  }
  return all;
}

Result<void> OptionTexts::apply_to(LaunchRequest& request, ReadAt where,
                                   std::string (*name_of)(const ContainerOption&)) const {
  request.annotations = annotations_;
  for (const ContainerOption& option : container_options()) {
    const auto found = values_.find(option.name);
    if (found == values_.end()) continue;
    for (const std::string& value : found->second) {
      const auto line = lines_.find({option.name, value});
      // The items of a list are read one by one. An environment's variables are expanded.
      const auto literal = option.kind == Kind::list || line != lines_.end()
                               ? Result<void>()
                               : request.paths.refuse_variables(value);
      auto applied = literal ? option.apply(request, value, where) : literal;
      if (applied) continue;
      Error error = literal && option.names_itself
                        ? std::move(applied).error()
                        : std::move(applied).error().during(name_of(option));
      if (line != lines_.end()) return std::move(error).during(in_environment(line->second));
      const auto variable = variables_.find(option.name);
      if (variable != variables_.end()) return std::move(error).during(variable->second);
      return error;
    }
  }
  return {};
}

Result<LaunchRequest> OptionTexts::parse(ReadAt where, const UserPaths& paths) const {
  LaunchRequest request{.paths = paths};
  SPC_TRY(apply_to(request, where, typed_name));
  SPC_TRY(check_combinations(request));
  request.features = features();
  constexpr char kUnset[] = "container-unsetenv";  // --container-env=-NAME removes as well
  if (!request.environment.unset.empty() && !has(kUnset)) request.features.emplace_back(kUnset);
  if (request.explain) {
    request.save.clear();  // nothing will have been executed
    request.given = given(typed_name);
  }
  return request;
}

// --- option rows ---

namespace {

using Text = const std::string&;

template <auto kMember>
Result<void> turn_on(LaunchRequest& request, Text value, ReadAt) {
  request.*kMember = value == "yes";
  return {};
}

template <auto kMember>
Result<void> turn_off(LaunchRequest& request, Text value, ReadAt) {
  request.*kMember = value != "yes";
  return {};
}

Result<void> add_mounts(LaunchRequest& request, Text value) {
  for (MountSpec& mount : SPC_TRY(parse_mounts(value, request.paths))) {
    SPC_TRY(refuse_kernel_views(mount));
    const auto same = std::find(request.mounts.begin(), request.mounts.end(), mount);
    if (same == request.mounts.end()) request.mounts.push_back(std::move(mount));
  }
  return request.mounts.size() > kMaxMounts ? Result<void>(too_many_mounts()) : Result<void>();
}

/// Applies a line of an environment file in docker's format: NAME=VALUE sets a variable, NAME alone
/// keeps the job's value, # begins a comment. Variables in `asked` take precedence.
Result<void> add_env_line(EnvironmentWishes& wishes, const EnvironmentWishes& asked,
                          std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.empty() || line.starts_with('#')) return {};
  const std::string name(line.substr(0, line.find('=')));
  const auto is_odd = [](char c) { return c <= ' ' || c >= 0x7f || c == '*' || c == '?'; };
  if (name.empty() || std::any_of(name.begin(), name.end(), is_odd))
    return Error(ErrorKind::invalid, in_quotes(name) + " is not the name of a variable");
  if (line.find('\0') != std::string_view::npos)
    return Error(ErrorKind::invalid, formatted("the value of {} contains a NUL", in_quotes(name)));
  if (asked.keeps(name) || asked.values.contains(name)) return {};
  std::erase(wishes.keep, name);
  wishes.values.erase(name);
  if (name.size() == line.size()) {
    wishes.keep.push_back(name);
  } else {
    wishes.values[name] = line.substr(name.size() + 1);
  }
  return {};
}

/// Reads an environment file as the user, only on the node: the submitting host may not have the
/// file, and the container has other files.
Result<void> add_env_file(LaunchRequest& request, Text typed, ReadAt where) {
  const std::string path = SPC_TRY(request.paths.resolve(typed));
  if (where != ReadAt::node) return {};
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file) {
    return Error::from_errno(errno, "open " + in_quotes(path))
        .hint("it must exist on every node of the step and is opened with the user's permissions");
  }
  const std::string text = SPC_TRY_DURING(in_quotes(path), read_file(file.get(), 1 << 20));
  const EnvironmentWishes asked = request.environment;
  unsigned number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = next_part(rest, '\n');
    ++number;
    SPC_TRY_DURING(formatted("{}, line {}", in_quotes(path), number),
                   add_env_line(request.environment, asked, line));
  }
  return {};
}

/// Stores one of two allowed words.
Result<void> choose(std::string& into, Text value, const char* one, const char* other) {
  if (value != one && value != other) {
    return Error(ErrorKind::invalid, in_quotes(value) + " is not allowed")
        .hint(formatted("{} or {}", one, other));
  }
  into = value;
  return {};
}

constexpr char kSecurityRule[] = "seccomp=default, or seccomp=FILE with an absolute path";

/// Sets the user's seccomp profile, which applies in addition to the site's.
Result<void> add_security(LaunchRequest& request, Text value, ReadAt) {
  constexpr std::string_view kSeccomp = "seccomp=";
  if (!value.starts_with(kSeccomp))
    return Error(ErrorKind::invalid, in_quotes(value) + " is not allowed").hint(kSecurityRule);
  const std::string profile = SPC_TRY(request.paths.resolve(value.substr(kSeccomp.size())));
  if (profile == "unconfined") {
    return Error(ErrorKind::invalid, "seccomp=unconfined is not allowed")
        .hint("drop it: without the option only the site's profile applies");
  }
  if (profile != "default" && !profile.starts_with('/')) {
    return Error(ErrorKind::invalid, in_quotes(profile) + " is not an absolute path")
        .hint(kSecurityRule);
  }
  request.seccomp = profile;
  return {};
}

constexpr ContainerOption kOptions[] = {
    {"container-image", "[USER@][REGISTRY/]NAME[:TAG][@DIGEST]",
     "[container] image to run the tasks in; pulled if the node does not have it", "IMAGE",
     Kind::once, nullptr,
     [](LaunchRequest& request, Text value, ReadAt where) -> Result<void> {
       SPC_TRY(ImageLocation::parse(value));
       request.image = SPC_TRY(request.paths.resolve(value));
       if (where == ReadAt::container) return {};
       const std::string typed = request.image;
       request.image = SPC_TRY(image_of_catalogue(typed));
       if (request.image != typed) request.catalogue_name = typed;
       return {};
     }},
    {"container-name", "NAME[:auto|create|exec|no_exec|replace|remove]",
     "[container] keep and reuse the container under this name, or join that of JOB.STEP", "NAME",
     Kind::once, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.name = SPC_TRY(ContainerName::parse(value));
       return {};
     },
     nullptr, nullptr, true},
    {"environment", "NAME|FILE",
     "[container] take image, mounts, variables and more from this environment file; other options "
     "take precedence",
     "ENVIRONMENT", Kind::once, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.environment_file = value;
       return {};
     },
     "take image, mounts, variables and more from this environment file; all words are the "
     "command"},
    {"container-mounts", "SRC[:DST[:FLAGS]][,...]",
     "[container] bind-mount a host path into the container; DST defaults to SRC; FLAGS joined by "
     "+: ro, noexec, nofail, sqsh; or tmpfs:DST (empty directory), umount:DST (drop a mount)",
     "MOUNTS", Kind::list, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       SPC_TRY_DURING(MountSpec().origin, add_mounts(request, value));
       return {};
     },
     "bind-mount a host path; FLAGS joined by +: ro, noexec", nullptr, true},
    {"container-workdir", "PATH",
     "[container] work directory in the container (default: the image's)", "WORKDIR", Kind::once,
     nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.workdir = SPC_TRY(request.paths.resolve(value));
       const bool is_here =
           value == "." || value == ".." || value.starts_with("./") || value.starts_with("../");
       if (is_here && request.paths.here.starts_with('/'))
         request.workdir = normal_path(request.paths.here + "/" + value);
       return {};
     },
     "work directory in the container (default: the image's)"},
    {"container-env", "NAME|PATTERN|NAME=VALUE|-NAME[,...]",
     "[container] keep these host variables, set NAME=VALUE, or remove -NAME (by default the "
     "image's value wins)",
     "ENV", Kind::list, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) { return request.environment.add(value); },
     "keep these host variables, or set NAME=VALUE", "NAME[,NAME...]|NAME=VALUE"},
    {"container-env-file", "FILE",
     "[container] set the variables of this file: lines NAME=VALUE, or NAME to keep the host's "
     "value",
     "ENV_FILE", Kind::once, nullptr, add_env_file,
     "set the variables of this file: lines NAME=VALUE, or NAME to keep the host's value"},
    {"container-unsetenv", "NAME|PATTERN[,...]",
     "[container] do not give these variables to the tasks, neither the job's nor the image's",
     "UNSETENV", Kind::list, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) {
       return request.environment.add_unset(value);
     },
     "do not give these variables to the program"},
    {"container-device", "VENDOR/CLASS=NAME[,...]",
     "[container] inject these CDI devices of the node", "DEVICE", Kind::list, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) {
       return add_device_names(request.devices, value);
     },
     "inject CDI devices of this machine"},
    {"container-mount-home", nullptr, "[container] mount the user's home directory", "MOUNT_HOME",
     Kind::on, "no-container-mount-home", turn_on<&LaunchRequest::mount_home>,
     "mount the home directory"},
    {"no-container-mount-home", nullptr, "[container] do not mount the user's home directory",
     nullptr, Kind::off, "container-mount-home", turn_off<&LaunchRequest::mount_home>,
     "do not mount the home directory"},
    {"container-mount-cwd", nullptr, "[container] mount the work directory and start in it",
     "MOUNT_CWD", Kind::on, "no-container-mount-cwd", turn_on<&LaunchRequest::mount_cwd>,
     "mount the current directory and start in it"},
    {"no-container-mount-cwd", nullptr, "[container] do not mount the work directory", nullptr,
     Kind::off, "container-mount-cwd", turn_off<&LaunchRequest::mount_cwd>,
     "do not mount the current directory"},
    {"container-writable", nullptr,
     "[container] make the root file system writable; changes are discarded with the step",
     "WRITABLE", Kind::on, "container-readonly", turn_on<&LaunchRequest::writable>,
     "make the root file system writable; changes are discarded at exit"},
    {"container-readonly", nullptr,
     "[container] make the root file system read-only, except /tmp and mounts", "READONLY",
     Kind::off, "container-writable", turn_off<&LaunchRequest::writable>,
     "make the root file system read-only, except /tmp and mounts"},
    {"container-pull", "newer|missing|always|never",
     "[container] when to query the registry for an image that the node has (default: newer, "
     "resolve the tag each time)",
     "PULL", Kind::once, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.pull = parse_pull_policy(value);
       if (request.pull) return {};
       return Error(ErrorKind::invalid, in_quotes(value) + " is not allowed").hint(kPullPolicies);
     }},
    {"container-platform", "OS/ARCHITECTURE[/VARIANT]",
     "[container] select this platform instead of the node's", "PLATFORM", Kind::once, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.platform = SPC_TRY(Platform::parse(value));
       return {};
     }},
    {"container-save", "PATH",
     "[container] write the container to this file when all tasks have ended", "SAVE", Kind::file,
     nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.save = SPC_TRY(request.paths.resolve(value));
       return check_save_path(value);
     }},
    {"container-remap-root", nullptr,
     "[container] run as root in a user namespace, for apt, dnf and pip", "REMAP_ROOT", Kind::on,
     "no-container-remap-root", turn_on<&LaunchRequest::remap_root>},
    {"no-container-remap-root", nullptr, "[container] run as the user", nullptr, Kind::off,
     "container-remap-root", turn_off<&LaunchRequest::remap_root>},
    {"container-entrypoint", nullptr,
     "[container] run the image's entrypoint before the tasks start", "ENTRYPOINT", Kind::on,
     "no-container-entrypoint", turn_on<&LaunchRequest::entrypoint>},
    {"no-container-entrypoint", nullptr, "[container] do not run the image's entrypoint", nullptr,
     Kind::off, "container-entrypoint", turn_off<&LaunchRequest::entrypoint>},
    {"container-entrypoint-log", nullptr, "[container] print the entrypoint's output",
     "ENTRYPOINT_LOG", Kind::on, nullptr, turn_on<&LaunchRequest::entrypoint_log>},
    {"container-unshare", "NS[,NS...]",
     "[container] namespaces not shared with the host: net, ipc, uts, pid, cgroup", "UNSHARE",
     Kind::list, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.namespaces |= SPC_TRY(parse_namespaces(value));
       return {};
     },
     "namespaces not shared with this machine: cgroup", "cgroup", true},
    {"container-contain", nullptr,
     "[container] hide the user's files: empty home, /tmp and /dev/shm that end with the step; "
     "minimal /dev",
     "CONTAIN", Kind::on, nullptr, turn_on<&LaunchRequest::contain>,
     "hide the user's files: empty home and /dev/shm, discarded with the container; minimal /dev"},
    {"container-security", "seccomp=default|seccomp=FILE",
     "[container] restrict system calls to this seccomp profile; FILE as for podman and docker",
     "SECURITY", Kind::once, nullptr, add_security,
     "restrict system calls to this seccomp profile; FILE as for podman and docker"},
    {"container-tmpfs-size", "SIZE",
     "[container] size limit of the writable tmpfs layer: bytes with K, M, G, T, or N% of the "
     "memory",
     "TMPFS_SIZE", Kind::once, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.tmpfs_size = SPC_TRY(MemorySize::parse(value));
       return {};
     }},
    {"container-private", nullptr, "[container] give each task its own writable layer and /tmp",
     "PRIVATE", Kind::on, nullptr, turn_on<&LaunchRequest::private_layer>},
    {"container-slurm", nullptr,
     "[container] make srun, squeue and other Slurm commands work in the container", "SLURM",
     Kind::on, nullptr, turn_on<&LaunchRequest::slurm>},
    {"container-ssh", nullptr, "[container] mount the node's ssh server for job-ssh", "SSH",
     Kind::on, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       request.annotations["com.hooks.ssh.enabled"] = value == kYes ? "true" : "false";
       return {};
     }},
    {"container-gpu", nullptr,
     "[container] inject the GPU driver and the step's GPUs (default when the step has GPUs)",
     "GPU", Kind::on, "no-container-gpu", turn_on<&LaunchRequest::gpu>,
     "inject the GPU driver and the GPUs of this machine"},
    {"no-container-gpu", nullptr, "[container] do not inject the GPU driver", nullptr, Kind::off,
     "container-gpu", turn_off<&LaunchRequest::gpu>, "do not inject the GPU driver"},
    {"container-mpi", "image|host",
     "[container] use the image's MPI, or replace it with the node's", "MPI", Kind::once, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) {
       return choose(request.mpi, value, "image", "host");
     }},
    {"container-batch", "script|steps",
     "[container] run the batch script in the image, or only its steps", "BATCH", Kind::once,
     nullptr,
     [](LaunchRequest& request, Text value, ReadAt) {
       return choose(request.batch, value, "script", "steps");
     }},
    {"container-explain", "all|json",
     "[container] dry run: print image, mounts, changed variables and options with their origin; "
     "all: everything; json: as JSON, on standard output",
     "EXPLAIN", Kind::on, nullptr,
     [](LaunchRequest& request, Text value, ReadAt) -> Result<void> {
       if (value != kNo)
         request.explain = value == "all"    ? ExplainForm::all
                           : value == "json" ? ExplainForm::json
                                             : ExplainForm::brief;
       return {};
     },
     "dry run: print image, mounts, changed variables and options, all or as JSON"},
    {"container-verbose", nullptr, "[container] print a timing breakdown of the start", "VERBOSE",
     Kind::on, nullptr, turn_on<&LaunchRequest::verbose>},
};

}  // namespace

std::span<const ContainerOption> container_options() { return kOptions; }

void LaunchRequest::mount_work_directory() {
  if (!paths.here.starts_with('/') || paths.here == "/") return;
  MountSpec mount;
  mount.source = mount.target = mount.shown_as = paths.here;
  mount.origin = "--container-mount-cwd";
  mount.optional = !mount_cwd;  // the site's default
  mounts.push_back(std::move(mount));
  if (workdir.empty()) workdir = paths.here;
}

}  // namespace spc
