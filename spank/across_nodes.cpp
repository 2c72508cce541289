// Communication between srun and the nodes of its step: options of components, tags, limits and
// errors.

#include "across_nodes.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>

#include "spank/job_options.hpp"
#include "spank/node_errors.hpp"

namespace spank_container {
namespace {

/// Variable with the resolved tags of the step's images: spc_tags_known(). The name starts with
/// SLURM because --export=NONE removes all others.
constexpr char kTagsVariable[] = "SLURM_SCONTAINER_DIGEST";
// milliseconds; usually the answer arrives before the step is created
constexpr unsigned kTagPatience = 5000;
// Milliseconds, shorter because a single node can resolve the tag itself, only later.
constexpr unsigned kTagPatienceOfOne = 2000;

constexpr size_t kTagsRoom = 4096;

size_t components_seen = 0;
spc_tags* asked_tags = nullptr;
spc_tracker* tracker = nullptr;
std::string image_of_step;
char* told_tags = nullptr;  // room reserved for the variable's value

/// A limit that Slurm sets from a variable of the step after task_init, immediately before it
/// executes the command.
struct StepLimit {
  const char* variable;
  const char* kept;  ///< variable that keeps srun's own value
  const char* value;
};
/// The first value is not a number: Slurm prints it on the user's terminal and continues. The
/// second leaves no memory to execute a program. Slurm applies it because of the "U", regardless of
/// slurm.conf.
constexpr StepLimit kStepLimits[] = {
    {"SLURM_RLIMIT_RSS", "SLURM_SCONTAINER_RSS",
     "spank-container: plugstack.conf of this node has no spank_container.so, or one that is older "
     "than srun's, and the command is not executed outside of its container"},
    {"SLURM_RLIMIT_AS", "SLURM_SCONTAINER_AS", "U0"},
};
constexpr size_t kLimitRoom = 32;  // enough for a number
char* kept_limits[std::size(kStepLimits)] = {};

std::vector<std::string> command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

ErrorCollector& collector() {
  static ErrorCollector one;
  return one;
}

/// Prints an error with the nodes in Slurm's notation, such as node[01-03].
void print_collected(const std::vector<std::string>& nodes, const std::string& text) {
  const auto list = slurm_hostlist_create(nullptr);
  for (const auto& node : nodes) slurm_hostlist_push_host(list, node.c_str());
  slurm_hostlist_uniq(list);
  size_t size = 16;
  for (const auto& node : nodes) size += node.size() + 3;
  std::vector<char> names(size);
  const bool named = slurm_hostlist_ranged_string(list, size, names.data()) >= 0;
  slurm_spank_log("%s%s: %s", state.prefix, named ? names.data() : "some nodes", text.c_str());
  slurm_hostlist_destroy(list);
}

/// Reserves `room` bytes for the variable's value and points `value` to them. When the step starts,
/// srun has threads that may read `environ`, so no variable can be added then. The memory is never
/// freed because the environment outlives this plugin.
void reserve_variable(const std::string& name, size_t room, char*& value) {
  const std::string start = name + "=";
  if (value != nullptr) return;
  auto* variable = static_cast<char*>(std::calloc(1, start.size() + room));
  if (variable == nullptr) return;
  start.copy(variable, start.size());
  if (::putenv(variable) == 0) value = variable + start.size();
}

/// Replaces the limits that srun has set meanwhile. Only changes values: see reserve_variable().
void replace_limits() {
  for (size_t i = 0; i < std::size(kStepLimits); ++i) {
    const char* const now = ::getenv(kStepLimits[i].variable);
    if (kept_limits[i] == nullptr || now == nullptr) continue;
    if (now == std::string_view(kStepLimits[i].value)) continue;
    std::string(now).copy(kept_limits[i], kLimitRoom - 1);
    ::setenv(kStepLimits[i].variable, kStepLimits[i].value, 1);
  }
}

/// Makes srun exit with status 1 if its tasks succeed. Slurm has no call for it. The handler stays
/// in memory when srun unloads this plugin.
void fail_srun() {
  Dl_info here{};
  if (::dladdr(&components_seen, &here) == 0 ||
      ::dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE) == nullptr)
    return;
  const auto fail = [](int status, void*) {
    if (status == 0) std::exit(EXIT_FAILURE);  // runs the handlers that are left
  };
  ::on_exit(fail, nullptr);
}

void tell_tags(unsigned patience) {
  const std::string known = spc_tags_known(asked_tags, patience);
  if (told_tags != nullptr && known.size() < kTagsRoom) known.copy(told_tags, known.size());
}

/// Returns whether srun runs in a job of one node: any step there has one node.
bool is_job_of_one_node() {
  const char* nodes = ::getenv("SLURM_JOB_NUM_NODES");
  const bool is_one =
      ::getenv("SLURM_JOB_ID") != nullptr && nodes != nullptr && nodes == std::string_view("1");
  return is_one && ::getenv("SLURM_HET_SIZE") == nullptr;
}

void print_progress(int level, const char* line, void*) {
  if (level != SPC_LOG_DEBUG || state.verbose) slurm_spank_log("%s%s", state.prefix, line);
}

std::string take_variable(spank_t spank, const char* name) {
  std::string value;
  variable_of_job(name, value, spank);
  spank_unsetenv(spank, name);
  return value;
}

}  // namespace

bool variable_of_job(const char* name, std::string& value, void* spank) {
  char few[1024];
  const spank_err_t found = spank_getenv(static_cast<spank_t>(spank), name, few, sizeof few);
  if (found == ESPANK_SUCCESS) value = few;
  if (found != ESPANK_NOSPACE) return found == ESPANK_SUCCESS;
  std::vector<char> buffer(128 * 1024);
  if (spank_getenv(static_cast<spank_t>(spank), name, buffer.data(),
                   static_cast<int>(buffer.size())) != ESPANK_SUCCESS)
    return false;
  value = buffer.data();
  return true;
}

std::vector<GivenOption> given_to_this_component() {
  static size_t seen = 0;
  if (components_seen++ == 0) {  // skip the options of the step in which this srun was started
    ::unsetenv(kComponentsVariable);
    ::unsetenv(kReportVariable);
    ::unsetenv(kTagsVariable);
    ::unsetenv(SPC_TRACKER_VARIABLE);
    for (const StepLimit& limit : kStepLimits) ::unsetenv(limit.kept);
  }
  // Slurm passes "(null)" for an option without a value from a batch job's environment.
  for (size_t i = seen; i < state.given.size(); ++i) {
    if (option_table()[state.given[i].row].argument == nullptr) state.given[i].value.clear();
  }
  const auto from = state.given.begin() + static_cast<ptrdiff_t>(seen);
  seen = state.given.size();
  return {from, state.given.end()};
}

std::string keep_components_apart(const std::vector<GivenOption>& given) {
  static std::vector<Component> components;
  components.push_back({.group = 0, .given = given});
  bool differ = false;
  for (const Component& one : components) differ = differ || one.given != components.front().given;
  if (!differ) return {};
  if (spank_context() == S_CTX_ALLOCATOR) {
    return "the components of a heterogeneous job have different --container options, and Slurm "
           "keeps only those of the first "
           "(hint: use the same options for all, or set them on srun in the job)";
  }
  if (::getenv("SLURM_JOB_ID") != nullptr && ::getenv("SLURM_HET_SIZE") == nullptr) {
    return "the components have different --container options, and in a job that is not "
           "heterogeneous tasks cannot tell "
           "which one they belong to (hint: use the same options for all, or start one srun per "
           "component)";
  }
  const auto groups = groups_of_command_line(command_line());
  if (groups.size() < components.size()) {
    return "the components have different --container options, and their --het-group is ambiguous "
           "(hint: start one srun per component)";
  }
  for (size_t index = 0; index < components.size(); ++index)
    components[index].group = groups[index];
  if (::setenv(kComponentsVariable, write_components(components).c_str(), 1) != 0)
    return "out of memory";
  return {};
}

void ask_for_tag(spc_runtime* runtime, const spc_options& options) {
  spc_tags_ask(runtime, &options, &asked_tags);
  reserve_variable(kTagsVariable, kTagsRoom, told_tags);
}

void tell_tags_of_components() {
  if (components_seen > 1) tell_tags(kTagPatience);
}

void listen_to_nodes(const spc_summary& summary) {
  image_of_step = components_seen > 1 && image_of_step != summary.image ? "" : summary.image;
  state.verbose = state.verbose || summary.verbose != 0;
  const auto address = collector().open();
  if (address.port != 0) ::setenv(kReportVariable, address.variable().c_str(), 1);
  const char* where = nullptr;
  if (tracker == nullptr && !is_job_of_one_node() && spc_tracker_open(&tracker, &where) == SPC_OK) {
    ::setenv(SPC_TRACKER_VARIABLE, where, 1);
  }
}

void forbid_command() {
  for (size_t i = 0; i < std::size(kStepLimits); ++i) {
    reserve_variable(kStepLimits[i].kept, kLimitRoom, kept_limits[i]);
    ::setenv(kStepLimits[i].variable, kStepLimits[i].value, 1);
  }
}

int collect_errors(spank_t spank) {
  uint32_t nodes = 0;
  int words = 0;
  char** command = nullptr;
  if (!state.given.empty() &&
      spank_get_item(spank, S_JOB_ARGV, &words, &command) == ESPANK_SUCCESS) {
    if (const auto hint = hint_about_switch_value(words, command); !hint.empty())
      slurm_info("%s%s", state.prefix, hint.c_str());
  }
  replace_limits();
  // In a heterogeneous step, S_JOB_NNODES is the node count of one component only.
  if (components_seen != 1 || spank_get_item(spank, S_JOB_NNODES, &nodes) != ESPANK_SUCCESS)
    nodes = 0;
  tell_tags(nodes == 1 ? kTagPatienceOfOne : kTagPatience);
  collector().start(nodes, print_collected);
  // Scripts that parse pyxis output expect only its own lines.
  const bool is_ours = state.prefix == std::string_view(kPrefix);
  if (nodes != 1)
    spc_tracker_start(tracker, nodes, image_of_step.c_str(), is_ours ? print_progress : nullptr,
                      nullptr);
  return 0;
}

void stop_collecting() {
  collector().stop();
  if (collector().has_failed()) fail_srun();
  spc_tracker_free(tracker);
  tracker = nullptr;
  spc_tags_free(asked_tags);
  asked_tags = nullptr;
}

void allow_command(spank_t spank) {
  for (const StepLimit& limit : kStepLimits) {
    std::string now;
    const std::string kept = take_variable(spank, limit.kept);
    if (!variable_of_job(limit.variable, now, spank) || now != limit.value) continue;
    spank_unsetenv(spank, limit.variable);
    if (!kept.empty()) spank_setenv(spank, limit.variable, kept.c_str(), 1);
  }
}

std::string take_tags(spank_t spank) { return take_variable(spank, kTagsVariable); }
std::string take_tracker(spank_t spank) { return take_variable(spank, SPC_TRACKER_VARIABLE); }

std::string take_own_component(spank_t spank, bool& is_component) {
  std::string text, number;
  is_component = variable_of_job(kComponentsVariable, text, spank);
  if (!is_component) return {};
  spank_unsetenv(spank, kComponentsVariable);
  uint32_t job = 0;  // each component is a job with its own number
  spank_get_item(spank, S_JOB_ID, &job);
  for (const Component& component : read_components(text)) {
    for (const char* name : {"SLURM_JOB_ID_HET_GROUP_", "SLURM_JOB_ID_PACK_GROUP_"}) {
      const std::string variable = name + std::to_string(component.group);
      if (!variable_of_job(variable.c_str(), number, spank) || number != std::to_string(job))
        continue;
      state.given = component.given;
      return {};
    }
  }
  return "the component of the heterogeneous step is ambiguous (hint: start one srun per "
         "component)";
}

std::optional<SrunThatListens> SrunThatListens::of_this_step(spank_t spank) {
  std::string variable, nodes;
  if (!variable_of_job(kReportVariable, variable, spank)) return std::nullopt;
  spank_unsetenv(spank, kReportVariable);
  SrunThatListens srun;
  const auto address = ReportAddress::parse(variable);
  if (!address || !variable_of_job("SLURM_STEP_NUM_NODES", nodes, spank)) return std::nullopt;
  srun.is_for_one_node_ = nodes == "1";
  if (!variable_of_job("SLURM_LAUNCH_NODE_IPADDR", srun.host_, spank)) return std::nullopt;
  if (!variable_of_job("SLURMD_NODENAME", srun.node_, spank)) return std::nullopt;
  srun.address_ = *address;
  return srun;
}

bool SrunThatListens::is_wanted() {
  // In the container, config.toml is not visible. Without an agent, no settings were received for
  // this step.
  const int flags = spc_task_flags(state.runtime);
  return flags >= 0 ? (flags & SPC_FLAG_ERROR_REPORT) != 0 : spc_site_flag("error_report", 1) != 0;
}

bool SrunThatListens::takes(const char* error) const {
  // On a single node there is nothing to collect.
  return !state.verbose && !is_for_one_node_ && is_wanted() &&
         report_error(host_, address_, node_, error);
}

void SrunThatListens::fail() const {
  if (is_wanted()) report_error(host_, address_, node_, "");
}

}  // namespace spank_container
