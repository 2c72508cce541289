#include "launch/request/options.hpp"

#include <algorithm>
#include <array>

#include "base/format.hpp"

namespace spc {
namespace {

using Kind = ContainerOption::Kind;

constexpr char kYes[] = "yes";
constexpr char kNo[] = "no";

std::string typed_name(const ContainerOption& option) { return std::string("--") + option.name; }

/// Empty where the option has no value on the command line, a boolean in a variable.
Result<bool> read_switch(const ContainerOption& option, const std::string& value) {
  constexpr std::array<std::string_view, 5> kOn{"", "1", "true", "yes", "y"};
  constexpr std::array<std::string_view, 4> kOff{"0", "false", "no", "n"};
  if (std::find(kOn.begin(), kOn.end(), value) != kOn.end()) return true;
  if (std::find(kOff.begin(), kOff.end(), value) != kOff.end()) return false;
  return Error(ErrorKind::invalid,
               formatted("{}: {} is not a boolean", typed_name(option), in_quotes(value)))
      .hint("1, true, yes, 0, false or no");
}

/// Image names are the matter of `allowed_registries` and `allowed_paths`, and `batch` and the
/// options that begin with no- take nothing that a site could keep for itself.
bool can_be_off(const ContainerOption& option) {
  const std::string_view name = option.name;
  return !name.starts_with("no-") && name != "container-image" && name != "container-batch";
}

Error contradiction(const std::string& one, const std::string& other) {
  return {ErrorKind::invalid, formatted("{} and {} cannot be combined", one, other)};
}

Result<void> check_combinations(const LaunchRequest& request) {
  if (request.image.empty() && !request.name) {
    return Error(ErrorKind::invalid, "--container-image: argument required");
  }
  if (request.contain && request.mount_home.value_or(false)) {
    return contradiction("--container-contain", "--container-mount-home");
  }
  if (request.slurm.value_or(false) && request.remap_root.value_or(false)) {
    return contradiction("--container-slurm", "--container-remap-root")
        .hint("Slurm would see root, munge the user");
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
  if (option == nullptr) {
    return Error(ErrorKind::invalid, "unknown option --" + printable(name));
  }
  return add(*option, std::string(text.substr(std::min(name.size() + 1, text.size()))));
}

Result<void> OptionTexts::add_switch(const ContainerOption& option, const std::string& value) {
  const bool on = SPC_TRY(read_switch(option, value));
  const char* opposite = option.opposite == nullptr ? option.name : option.opposite;
  // A switch that is not what it says is its opposite.
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
  if (option.is_switch()) return add_switch(option, value);
  const std::string name = typed_name(option);
  if (option.kind == Kind::file && value.ends_with('/')) {
    return Error(ErrorKind::invalid, name + ": target is a directory");
  }
  if (value.empty()) return Error(ErrorKind::invalid, name + ": argument required");
  auto& old = values_[option.name];
  if (std::find(old.begin(), old.end(), value) != old.end()) return {};
  // Slurm may hand over the same value twice; two values cannot both be meant.
  if (option.kind != Kind::list && !old.empty()) {
    return Error(ErrorKind::invalid, name + " specified multiple times");
  }
  old.push_back(value);
  return {};
}

Result<void> OptionTexts::add_twins(const Variables& variables) {
  for (const ContainerOption& option : container_options()) {
    // The command line beats the environment, whole option by whole option.
    if (option.twin == nullptr || is_given(option.name)) continue;
    if (option.opposite != nullptr && is_given(option.opposite)) continue;
    for (const std::string_view prefix : kTwinPrefixes) {
      const auto found = variables.find(std::string(prefix) + option.twin);
      if (found == variables.end()) continue;
      SPC_TRY_DURING(found->first, add(option, found->second));
      variables_[option.name] = found->first;
      break;
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

Result<void> OptionTexts::apply_to(LaunchRequest& request, ReadAt where,
                                   std::string (*name_of)(const ContainerOption&)) const {
  for (const ContainerOption& option : container_options()) {
    const auto found = values_.find(option.name);
    if (found == values_.end()) continue;
    for (const std::string& value : found->second) {
      auto applied = option.apply(request, value, where);
      if (applied) continue;
      // Some grammars name the option by themselves.
      const bool is_named = applied.error().message().starts_with("--");
      Error error = is_named ? std::move(applied).error()
                             : std::move(applied).error().during(name_of(option));
      const auto variable = variables_.find(option.name);
      if (variable != variables_.end()) return std::move(error).during(variable->second);
      return error;
    }
  }
  return {};
}

Result<LaunchRequest> OptionTexts::parse(ReadAt where) const {
  LaunchRequest request;
  SPC_TRY(apply_to(request, where, typed_name));
  SPC_TRY(check_combinations(request));
  request.features = features();
  if (request.explain) request.save.clear();  // nothing will have been run
  return request;
}

}  // namespace spc
