// The plugin's arguments in plugstack.conf, and the options that Slurm passes incompletely or not
// at all.

#include "spank/job_options.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>

namespace spank_container {

// --- settings ---

namespace {

struct Key {
  std::string_view name;
  std::string_view values;  ///< allowed values, between bars; "": any
  bool has_effect = true;   ///< false: a pyxis key without effect here
};
constexpr std::string_view kBool = "|1|true|yes|y|0|false|no|n|";
constexpr Key kKeys[] = {
    {"messages", "|own|pyxis|"},
    {"container_scope", "|global|job|"},
    {"entrypoint", "|no|node|task|"},
    {"batch", "|script|steps|"},
    {"slurm", kBool},
    {"remap_root", kBool},
    {"importer", ""},
    {"execute_entrypoint", kBool},
    {"sbatch_support", kBool},
    {"runtime_path", "", false},
    {"use_enroot_load", kBool, false},
    {"use_squashfuse", kBool, false},
};

std::string_view value_in(std::string_view word) {
  return word.substr(std::min(word.find('=') + 1, word.size()));
}

/// Returns nullptr if the key is unknown or the value is not allowed.
const Key* key_of(std::string_view word) {
  const std::string_view name = word.substr(0, word.find('='));
  for (const Key& key : kKeys) {
    const std::string allowed = "|" + std::string(value_in(word)) + "|";
    if (key.name != name || name.size() == word.size()) continue;
    const bool is_one_of_them = word.find('|') == std::string_view::npos &&
                                key.values.find(allowed) != std::string_view::npos;
    return key.values.empty() || is_one_of_them ? &key : nullptr;
  }
  return nullptr;
}

bool is_true(std::string_view value) {
  return value == "1" || value.starts_with('t') || value.starts_with('y');
}

}  // namespace

Settings read_settings(std::span<const std::string> words) {
  Settings settings;
  for (const std::string& word : words) {
    const Key* key = key_of(word);
    const bool is_on = is_true(value_in(word));
    if (key == nullptr) {
      settings.refused = "plugstack.conf: unknown argument \"" + word +
                         "\" (hint: the administrator must remove it)";
      return settings;
    }
    if (key->name == "sbatch_support") {
      settings.in_allocator = is_on;
    } else if (key->name == "execute_entrypoint") {
      settings.site.push_back(is_on ? "entrypoint=node" : "entrypoint=no");
    } else if (key->values == kBool && key->has_effect) {
      settings.site.push_back(std::string(key->name) + (is_on ? "=true" : "=false"));
    } else if (key->has_effect) {
      settings.site.push_back(word);
    }
  }
  return settings;
}

// --- given options ---

namespace {

constexpr std::string_view kHex = "0123456789abcdef";

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-_./:@#+").find(c) != std::string_view::npos;
}

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (is_plain(c)) {
      escaped += c;
    } else {
      escaped +=
          {'%', kHex[static_cast<unsigned char>(c) >> 4], kHex[static_cast<unsigned char>(c) & 15]};
    }
  }
  return escaped;
}

/// Returns the variable in which Slurm keeps an option of the surrounding sbatch or salloc.
std::string variable_of_slurm(const spc_option& row, const char* plugin = own_plugin) {
  std::string name = std::string("SLURM_SPANK__SLURM_SPANK_OPTION_") + plugin + "_" + row.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// ,NAME,NAME, of overridden options
constexpr char kBeaten[] = "SLURM_SPANK_SCONTAINER_BEATEN";

/// Returns the option's name in variables, such as MOUNTS; that of --no-container-X is X.
std::string name_in_variables(const spc_option& option) {
  std::string_view name = option.name;
  if (name.starts_with("no-")) name.remove_prefix(3);
  std::string upper(name.substr(name.starts_with("container-") ? 10 : 0));
  for (char& c : upper) c = c == '-' ? '_' : static_cast<char>(c - 'a' + 'A');
  return upper;
}

/// Returns the variable that holds the complete list, such as SLURM_SPANK_SCONTAINER_MOUNTS. Empty
/// if only the last value of this option is effective.
std::string variable_of_list(size_t row) {
  const spc_option& option = option_table()[row];
  return option.is_list == 0 ? "" : "SLURM_SPANK_SCONTAINER_" + name_in_variables(option);
}

/// ;NAME=VALUE;NAME=VALUE; of the options' variables when the job was submitted
constexpr char kVariablesBefore[] = "SLURM_SPANK_SCONTAINER_VARIABLES";

/// Returns the option's variable as an entry of kVariablesBefore; empty if it is not set.
std::string entry_of(const std::string& variable, GetVariable get, void* arg) {
  std::string value;
  if (!get(variable.c_str(), value, arg) || value.empty()) return {};
  return variable + "=" + escape(value) + ";";
}

constexpr const char* kPrefixes[] = {"SCONTAINER_", "PYXIS_CONTAINER_"};

/// Returns whether the job itself has set a variable of the option, or of its opposite.
bool is_set_in_job(const spc_option& option, GetVariable get, void* arg) {
  std::string before;
  if (!get(kVariablesBefore, before, arg)) return false;
  const auto is_new = [&](const spc_option& one) {
    return std::any_of(std::begin(kPrefixes), std::end(kPrefixes), [&](const char* prefix) {
      const std::string entry = entry_of(prefix + name_in_variables(one), get, arg);
      return !entry.empty() && before.find(";" + entry) == std::string::npos;
    });
  };
  return std::ranges::any_of(option_table(), [&](const spc_option& one) {
    return (one.name == std::string_view(option.name) ||
            (option.opposite != nullptr && one.name == std::string_view(option.opposite))) &&
           is_new(one);
  });
}

/// Returns whether a typed option replaces one of the surrounding job: the same, the opposite, and
/// an environment an image.
bool is_same_choice(size_t one, size_t other) {
  const char* opposite = option_table()[one].opposite;
  return one == other || (one == kImageRow && other == kRequestRows - 1) ||
         (opposite != nullptr && opposite == std::string_view(option_table()[other].name));
}

/// Restores complete lists where Slurm passed the last value only. Used on both ends.
std::vector<GivenOption> with_lists(std::span<const GivenOption> given, GetVariable get,
                                    void* arg) {
  std::vector<GivenOption> whole(given.begin(), given.end());
  for (GivenOption& option : whole) {
    const std::string variable = variable_of_list(option.row);
    std::string list;
    // Ignore a stale list that ends with another value.
    if (!variable.empty() && get(variable.c_str(), list, arg) && list.ends_with("," + option.value))
      option.value = list;
  }
  return whole;
}

}  // namespace

void take_over_options_of(const char* plugin) {
  for (const spc_option& row : option_table()) {
    const std::string theirs = variable_of_slurm(row, plugin);
    const char* const value = ::getenv(theirs.c_str());
    if (value == nullptr) continue;
    ::setenv(variable_of_slurm(row).c_str(), value, 0);
    ::unsetenv(theirs.c_str());
  }
}

std::vector<GivenOption> without_beaten(std::span<const GivenOption> given, GetVariable get,
                                        void* arg) {
  std::vector<GivenOption> inherited;
  std::vector<GivenOption> typed;
  for (const GivenOption& option : given) {
    const spc_option& row = option_table()[option.row];
    const auto of_same_row = [&](const GivenOption& other) { return other.row == option.row; };
    const bool first = std::none_of(inherited.begin(), inherited.end(), of_same_row) &&
                       std::none_of(typed.begin(), typed.end(), of_same_row);
    std::string variable;
    const bool is_inherited = first && get(variable_of_slurm(row).c_str(), variable, arg) &&
                              (row.argument == nullptr || variable == option.value);
    (is_inherited ? inherited : typed).push_back(option);
  }
  inherited = with_lists(inherited, get, arg);
  std::erase_if(inherited, [&](const GivenOption& old) {
    return is_set_in_job(option_table()[old.row], get, arg) ||
           std::any_of(typed.begin(), typed.end(),
                       [&](const GivenOption& one) { return is_same_choice(old.row, one.row); });
  });
  inherited.insert(inherited.end(), typed.begin(), typed.end());
  return inherited;
}

void note_variables(GetVariable get, void* arg) {
  std::string entries = ";";
  for (const spc_option& option : option_table()) {
    for (const char* prefix : kPrefixes) {
      const std::string entry = entry_of(prefix + name_in_variables(option), get, arg);
      if (entries.find(";" + entry) == std::string::npos) entries += entry;
    }
  }
  ::setenv(kVariablesBefore, entries.c_str(), 1);
}

void send_beside(std::span<const GivenOption> counts, std::span<const GivenOption> handed_over) {
  const auto set = [](const std::string& variable, const std::string& value) {
    value.empty() ? ::unsetenv(variable.c_str()) : ::setenv(variable.c_str(), value.c_str(), 1);
  };
  std::string beaten;
  for (size_t row = 0; row < option_table().size(); ++row) {
    std::string list;
    bool counted = false;
    for (const GivenOption& option : counts) {
      if (option.row != row) continue;
      list += (counted ? "," : "") + option.value;
      counted = true;
    }
    const GivenOption* last = nullptr;
    for (const GivenOption& option : handed_over) {
      if (option.row == row) last = &option;
    }
    if (last != nullptr && !counted) beaten += "," + std::string(option_table()[row].name);
    if (const auto variable = variable_of_list(row); !variable.empty()) {
      set(variable, last != nullptr && list != last->value ? list : "");
    }
  }
  set(kBeaten, beaten.empty() ? "" : beaten + ",");
}

std::vector<GivenOption> kept_by_slurm(GetVariable get, void* arg) {
  std::vector<GivenOption> kept;
  for (size_t row = 0; row < option_table().size(); ++row) {
    std::string value;
    const std::string variable = variable_of_slurm(option_table()[row]);
    if (get(variable.c_str(), value, arg)) kept.push_back({row, value});
  }
  return kept;
}

std::vector<GivenOption> whole_given(std::span<const GivenOption> given, GetVariable get,
                                     void* arg) {
  std::string beaten;
  std::vector<GivenOption> whole = with_lists(given, get, arg);
  if (!get(kBeaten, beaten, arg)) return whole;
  std::erase_if(whole, [&](const GivenOption& option) {
    return beaten.find("," + std::string(option_table()[option.row].name) + ",") !=
           std::string::npos;
  });
  return whole;
}

// --- components ---

namespace {

constexpr int kMostGroups = 128;  // Slurm's MAX_HET_JOB_COMPONENTS

std::optional<std::string> unescape(std::string_view text) {
  std::string plain;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      plain += text[at];
      continue;
    }
    const auto high = at + 2 < text.size() ? kHex.find(text[at + 1]) : std::string_view::npos;
    const auto low = at + 2 < text.size() ? kHex.find(text[at + 2]) : std::string_view::npos;
    if (high == std::string_view::npos || low == std::string_view::npos || high + low == 0)
      return std::nullopt;
    plain += static_cast<char>(high << 4 | low);
    at += 2;
  }
  return plain;
}

/// Consumes and returns the text before the next `separator`; also consumes the separator.
std::string_view take(std::string_view& text, char separator) {
  const auto end = std::min(text.find(separator), text.size());
  const auto taken = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return taken;
}

std::optional<int> group_number(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0 ||
      number >= kMostGroups)
    return std::nullopt;
  return number;
}

std::optional<size_t> row_named(std::string_view name) {
  for (size_t row = 0; row < option_table().size(); ++row) {
    if (name == option_table()[row].name) return row;
  }
  return std::nullopt;
}

/// Parses "0,2-3" or "[0,2-3]". Returns the groups in ascending order, as srun does; empty if the
/// list is invalid.
std::vector<int> groups_of_list(std::string_view list) {
  std::vector<int> groups;
  if (list.starts_with('[') && list.ends_with(']')) list = list.substr(1, list.size() - 2);
  while (!list.empty()) {
    std::string_view range = take(list, ',');
    const auto first = group_number(take(range, '-'));
    const auto last = range.empty() ? first : group_number(range);
    if (!first || !last || *last < *first) return {};
    for (int group = *first; group <= *last; ++group) groups.push_back(group);
  }
  std::sort(groups.begin(), groups.end());
  return groups;
}

/// Returns the value of --het-group, which may be abbreviated, from one component's arguments.
/// Options of srun and arguments of the command to execute cannot be distinguished, so two
/// different values are treated as none.
std::optional<std::string> het_group_of(const std::vector<std::string>& words) {
  std::optional<std::string> found;
  for (size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    const std::string name = word.substr(0, word.find('='));
    const auto shortens = [&](std::string_view option) {
      return name.size() >= 5 && option.starts_with(name);
    };
    if (!shortens("--het-group") && !shortens("--pack-group")) continue;
    std::string value = name.size() < word.size() ? word.substr(name.size() + 1) : "";
    if (name.size() == word.size() && at + 1 < words.size()) value = words[at + 1];
    if (found && *found != value) return "";
    found = value;
  }
  return found;
}

}  // namespace

std::string write_components(const std::vector<Component>& components) {
  std::string text;
  for (const Component& component : components) {
    if (!text.empty()) text += ';';
    text += std::to_string(component.group);
    for (const GivenOption& given : component.given) {
      text += std::string(",") + option_table()[given.row].name + "=" + escape(given.value);
    }
  }
  return text;
}

std::vector<Component> read_components(std::string_view text) {
  std::vector<Component> components;
  while (!text.empty()) {
    std::string_view record = take(text, ';');
    const auto group = group_number(take(record, ','));
    if (!group) return {};
    Component component{.group = *group, .given = {}};
    while (!record.empty()) {
      std::string_view option = take(record, ',');
      const auto row = row_named(take(option, '='));
      const auto value = unescape(option);
      if (!row || !value) return {};
      component.given.push_back({*row, *value});
    }
    components.push_back(std::move(component));
  }
  return components;
}

std::vector<int> groups_of_command_line(const std::vector<std::string>& words) {
  std::vector<int> groups;
  std::vector<std::string> of_component;
  int index = 0;
  for (size_t at = 1; at <= words.size(); ++at) {
    if (at < words.size() && words[at] != ":") {
      of_component.push_back(words[at]);
      continue;
    }
    const auto list = het_group_of(of_component);
    const auto these = list ? groups_of_list(*list) : std::vector<int>{index};
    if (these.empty()) return {};
    groups.insert(groups.end(), these.begin(), these.end());
    of_component.clear();
    ++index;
  }
  return groups;
}

// --- oci hint ---

std::string oci_option_in(const std::string& command_line) {
  constexpr std::string_view kOption = "--container";
  std::string_view rest = command_line;
  bool is_value = true;  // the next word is a value; at first the program's name
  bool is_ours = false;
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    if (is_ours) return std::string(word);
    // The word after an option without "=" may be its value or the command; the second of two words
    // without a dash is the command.
    if (!word.starts_with('-') && !is_value) return {};
    if (word == "--") return {};
    is_value = word.starts_with('-') && word.find('=') == std::string_view::npos;
    is_ours = word == kOption;
    if (word.starts_with(kOption) && word.substr(kOption.size()).starts_with('=')) {
      return std::string(word.substr(kOption.size() + 1));
    }
  }
  return {};
}

namespace {

std::string own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

std::string switch_before(const std::string& command_line, std::string_view command) {
  std::string_view rest = command_line;
  for (std::string_view before; !rest.empty();) {
    const std::string_view word = take(rest, '\0');
    const std::string_view name = before.substr(std::min<size_t>(2, before.size()));
    const auto row = word == command && before.starts_with("--") ? row_named(name) : std::nullopt;
    if (row && option_table()[*row].argument == nullptr) return std::string(name);
    before = word;
  }
  return {};
}

std::string hint_about_switch_value(int words, const char* const* command) {
  // The first three are programs: alone they are the command that the user means.
  constexpr std::string_view kValues[] = {"true", "false", "yes", "no", "1", "0", "on", "off"};
  const auto* const value =
      words < 1 ? std::end(kValues) : std::ranges::find(kValues, command[0]);
  if (value == std::end(kValues) || (words == 1 && value - kValues < 3)) return {};
  const std::string name = switch_before(own_command_line(), command[0]);
  if (name.empty()) return {};
  return "warning: --" + name + " takes no value: \"" + command[0] +
         "\" is executed as the command (hint: leave it out)";
}

std::string hint_about_oci_option() {
  std::string value = oci_option_in(own_command_line());
  const char* variable = ::getenv("SLURM_CONTAINER");
  if (value.empty() && variable != nullptr) value = variable;
  if (value.empty() || ::access((value + "/config.json").c_str(), F_OK) == 0) return {};
  std::string shown;
  for (const char c : value.substr(0, 200)) shown += c > 0x20 && c < 0x7f && c != '"' ? c : '?';
  return "warning: --container=" + shown +
         " is Slurm's option for OCI bundles, and this is not one (hint: did you mean "
         "--container-image=" +
         shown + "?)";
}

}  // namespace spank_container
