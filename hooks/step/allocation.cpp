#include "hooks/step/allocation.hpp"

#include <fcntl.h>
#include <strings.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "hooks/hook.hpp"

namespace spc {

// --- host list ---

std::optional<std::string> first_host(std::string_view list) {
  std::string host;
  for (std::size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      host += list[at];
      continue;
    }
    const auto close = list.find(']', at);
    if (close == std::string_view::npos) return std::nullopt;
    const std::string_view ranges = list.substr(at + 1, close - at - 1);
    const std::string_view first = ranges.substr(0, ranges.find_first_of("-,"));  // with its zeros
    if (!parse_number(first)) return std::nullopt;
    host += first;
    at = close;
  }
  if (host.empty() || host.find(']') != std::string::npos) return std::nullopt;
  return host;
}

std::optional<std::uint32_t> tasks_on_node(std::string_view counts, std::uint32_t index) {
  while (!counts.empty()) {
    const std::string_view part = counts.substr(0, counts.find(','));
    counts.remove_prefix(part.size() == counts.size() ? part.size() : part.size() + 1);
    const auto times = part.find("(x");
    std::uint32_t nodes = 1;
    if (times != std::string_view::npos) {
      const auto repeated = part.ends_with(')')
                                ? parse_number(part.substr(times + 2, part.size() - times - 3))
                                : std::nullopt;
      if (!repeated) return std::nullopt;
      nodes = *repeated;
    }
    if (index < nodes) return parse_number(part.substr(0, times));
    index -= nodes;
  }
  return std::nullopt;
}

// --- slurm conf ---

namespace {

constexpr std::string_view kBlanks = " \t\r";

bool same_word(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

constexpr std::size_t kLargestConf = 4 << 20;
constexpr int kDeepest = 3;  ///< depth of nested includes

std::string text_of_conf(const std::string& root, const std::string& directory,
                         const std::string& path, int depth) {
  const UniqueFd file(::open((root + path).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const auto text = file ? read_file(file.get(), kLargestConf) : Result<std::string>(std::string());
  if (!text) return {};
  std::string all;
  for (const std::string_view line : split(*text, '\n')) {
    constexpr std::string_view kInclude = "include";
    const auto blank = line.find_first_of(kBlanks);
    const bool includes = depth < kDeepest && blank != std::string_view::npos &&
                          same_word(line.substr(0, blank), kInclude);
    const std::string_view named = includes ? trimmed(line.substr(blank)) : std::string_view();
    if (named.empty() || all.size() > kLargestConf) {
      all.append(line).append("\n");
    } else {
      all += text_of_conf(
          root, directory,
          named.starts_with('/') ? std::string(named) : directory + "/" + std::string(named),
          depth + 1);
    }
  }
  return all;
}

}  // namespace

std::string slurm_setting(std::string_view text, std::string_view key) {
  std::string found;
  while (!text.empty()) {
    std::string_view line = next_part(text, '\n');
    line = line.substr(0, line.find('#'));
    while (!line.empty()) {
      line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
      const std::string_view word = line.substr(0, line.find_first_of(kBlanks));
      line.remove_prefix(word.size());
      const auto equals = word.find('=');
      if (equals != std::string_view::npos && same_word(word.substr(0, equals), key))
        found = word.substr(equals + 1);
    }
  }
  return found;
}

std::string slurm_file(const HookContext& context, std::string_view name) {
  std::vector<std::string> directories;
  if (const auto* conf = context.of_job("SLURM_CONF"); conf != nullptr && conf->starts_with('/')) {
    directories.push_back(conf->substr(0, conf->rfind('/')));
  }
  for (const char* usual :
       {"/etc/slurm", "/etc/slurm-llnl", "/run/slurm/conf", "/var/spool/slurmd/conf-cache"}) {
    directories.emplace_back(usual);
  }
  for (const std::string& directory : directories) {
    std::string text =
        text_of_conf(context.host_root, directory, directory + "/" + std::string(name), 0);
    if (!text.empty() && text != "\n") return text;
  }
  return {};
}

// --- step size ---

StepSize StepSize::of(const HookContext& context) {
  StepSize step;
  step.tasks = context.job_number("SLURM_STEP_NUM_TASKS").value_or(1);
  step.nodes = context.job_number("SLURM_STEP_NUM_NODES").value_or(1);
  const std::string* counts = context.of_job("SLURM_STEP_TASKS_PER_NODE");
  const auto node = context.job_number("SLURM_NODEID");
  if (counts != nullptr && node) step.tasks_here = tasks_on_node(*counts, *node).value_or(1);
  const std::string* list = context.of_job("SLURM_STEP_GPUS");
  if (list == nullptr) list = context.of_job("SLURM_JOB_GPUS");
  if (list != nullptr && !list->empty())
    step.gpus = 1 + static_cast<std::uint32_t>(std::count(list->begin(), list->end(), ','));
  return step;
}

// --- gpu allocation ---

namespace {

/// Returns the global numbers of the step's GPUs in ascending order; empty if Slurm's list is
/// missing or cannot be understood.
std::set<std::uint32_t> numbers_in(std::string_view list) {
  std::set<std::uint32_t> numbers;
  for (const std::string& part : parts_of(list)) {
    const auto number = parse_number(part);
    if (!number) return {};
    numbers.insert(*number);
  }
  return numbers;
}

}  // namespace

std::optional<std::uint32_t> number_behind(std::string_view prefix, std::string_view node) {
  return node.starts_with(prefix) ? parse_number(node.substr(prefix.size())) : std::nullopt;
}

const std::string* list_of_slurm(const HookContext& context) {
  const std::string* list = context.of_job("SLURM_STEP_GPUS");
  return list != nullptr ? list : context.of_job("SLURM_JOB_GPUS");
}

bool slurm_gave_gpus(const HookContext& context) {
  const std::string* list = context.of_job("SLURM_STEP_GPUS");
  if (list == nullptr && context.of_job("SLURM_STEP_ID") == nullptr)
    list = context.of_job("SLURM_JOB_GPUS");
  return list != nullptr && !list->empty();
}

bool wants_gpus(const HookContext& context) {
  return context.gpu.value_or(context.setting("gpu", "auto") != "off");
}

bool step_has_gpus(const HookContext& context) {
  if (!context.granted_devices) return true;
  return granted_nvidia_gpus(context) > 0 ||
         std::ranges::any_of(*context.granted_devices, [](const std::string& node) {
           return node.starts_with("/dev/dri/renderD");
         });
}

std::optional<std::set<std::size_t>> allocated_of(const HookContext& context,
                                                  std::size_t accessible) {
  if (context.setting("gpu_devices", "allocated") != "allocated") return std::nullopt;
  const std::string* list = list_of_slurm(context);
  if (list == nullptr) return std::nullopt;
  const auto numbers = numbers_in(*list);
  // With --gpus-per-task or --gpu-bind the list is only this task's, but the container is the
  // step's.
  const std::string* count = context.of_job("SLURM_GPUS_ON_NODE");
  if (count != nullptr && parse_number(*count) != numbers.size()) return std::nullopt;
  if (numbers.empty() || numbers.size() >= accessible || *numbers.rbegin() >= accessible)
    return std::nullopt;
  return std::set<std::size_t>(numbers.begin(), numbers.end());
}

std::optional<std::vector<std::size_t>> order_of_slurm(const HookContext& context,
                                                       const std::vector<unsigned>& minors) {
  std::vector<std::size_t> order(minors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::string by = context.setting("gpu_numbers", "auto");
  if (by == "pci" || std::ranges::is_sorted(minors)) return order;
  if (by != "file") return std::nullopt;
  sort_few(order, [&](std::size_t a, std::size_t b) { return minors[a] < minors[b]; });
  return order;
}

GpuAllocation allocated_among(const HookContext& context, const std::vector<unsigned>& minors) {
  GpuAllocation allocation;
  const auto numbers = allocated_of(context, minors.size());
  if (!numbers) return allocation;
  const auto order = order_of_slurm(context, minors);
  if (!order) {
    allocation.doubt = formatted(
        "Slurm allocated the GPUs {}, but device files are not in PCI order on this node, so these "
        "numbers are ambiguous and"
        " all GPUs that can be opened are used (hint: set ConstrainDevices=yes in cgroup.conf, or "
        "gpu_numbers in config.toml)",
        *list_of_slurm(context));
    return allocation;
  }
  allocation.gpus.emplace();
  for (const std::size_t number : *numbers) allocation.gpus->insert((*order)[number]);
  return allocation;
}

std::size_t granted_nvidia_gpus(const HookContext& context) {
  if (!context.granted_devices) return 0;
  const auto is_gpu = [](const std::string& node) {
    return number_behind("/dev/nvidia", node).has_value();
  };
  return static_cast<std::size_t>(std::ranges::count_if(*context.granted_devices, is_gpu));
}

bool has_mig_parts(const HookContext& context) {
  // The numbers 1 and 2 are mig/config and mig/monitor.
  const auto is_part = [](const std::string& node) {
    return number_behind("/dev/nvidia-caps/nvidia-cap", node) > 2U;
  };
  return context.granted_devices && std::ranges::any_of(*context.granted_devices, is_part);
}

std::optional<std::string> renumbered(std::string_view visible, std::string_view step_gpus,
                                      const std::vector<std::size_t>& order) {
  std::set<std::size_t> of_step;
  for (const std::uint32_t number : numbers_in(step_gpus)) {
    if (number < order.size()) of_step.insert(order[number]);
  }
  std::string local;
  for (const std::string& part : parts_of(visible)) {
    const auto number = parse_number(part);
    const auto found =
        number && *number < order.size() ? of_step.find(order[*number]) : of_step.end();
    if (found == of_step.end()) return std::nullopt;
    local += (local.empty() ? "" : ",") + std::to_string(std::distance(of_step.begin(), found));
  }
  return local.empty() ? std::nullopt : std::optional(local);
}

void renumber_variables(const HookContext& context, const std::vector<unsigned>& minors,
                        std::initializer_list<const char*> names, Edits& edits) {
  if (context.flag("prefer_cdi", false) || !context.devices.empty() ||
      !allocated_of(context, minors.size()))
    return;
  const auto order = order_of_slurm(context, minors);
  if (!order) return;
  for (const char* name : names) {
    const std::string* visible = context.of_job(name);
    const auto local =
        visible == nullptr ? std::nullopt : renumbered(*visible, *list_of_slurm(context), *order);
    if (!local || *local == *visible) continue;
    edits.environment.set[name] = *local;
    edits.notes.push_back(formatted(
        "{}={}: numbered among the GPUs accessible in the container; on the host it is {}", name,
        *local, *visible));
  }
}

}  // namespace spc
