#include "given.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace spank_container {
namespace {

/// Where Slurm keeps an option of the sbatch or salloc around.
std::string variable_of_slurm(const spc_option& row, const char* plugin = own_plugin) {
  std::string name = std::string("SLURM_SPANK__SLURM_SPANK_OPTION_") + plugin + "_" + row.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

constexpr char kBeaten[] =
    "SLURM_SPANK_SCONTAINER_BEATEN";  ///< ,NAME,NAME, of options that do not count

/// Where a list travels whole: SLURM_SPANK_SCONTAINER_MOUNTS. Empty: the last value of this option
/// counts alone.
std::string variable_of_list(size_t row) {
  const spc_option& option = option_table()[row];
  if (option.is_list == 0) return {};
  std::string name = option.name + std::string_view("container").size();
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(c - 'a' + 'A');
  return "SLURM_SPANK_SCONTAINER" + name;
}

/// The option itself, or what says the opposite.
bool is_same_choice(size_t one, size_t other) {
  const char* opposite = option_table()[one].opposite;
  return one == other ||
         (opposite != nullptr && opposite == std::string_view(option_table()[other].name));
}

/// At both ends: lists whose last value came alone are whole again.
std::vector<GivenOption> with_lists(std::span<const GivenOption> given, GetVariable get,
                                    void* arg) {
  std::vector<GivenOption> whole(given.begin(), given.end());
  for (GivenOption& option : whole) {
    const std::string variable = variable_of_list(option.row);
    std::string list;
    // One that belongs to another value is left from somewhere else.
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
    return std::any_of(typed.begin(), typed.end(),
                       [&](const GivenOption& one) { return is_same_choice(old.row, one.row); });
  });
  inherited.insert(inherited.end(), typed.begin(), typed.end());
  return inherited;
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

}  // namespace spank_container
