#include "tool/containers/job_step.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "protocol/wire_error.hpp"
#include "reference/location.hpp"
#include "spank_container/runtime.h"
#include "tool/containers/own_containers.hpp"
#include "tool/images/stored_images.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

// --- launch key ---

namespace {

using Variables = std::map<std::string, std::string>;

std::string value_of(const Variables& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

bool is_several(const std::string& count) { return std::atol(count.c_str()) > 1; }

}  // namespace

std::string launch_key(const Variables& environment) {
  // Open MPI: mpirun's number identifies the launch. Check it before Slurm's variables, which may
  // be set as well.
  if (is_several(value_of(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"))) {
    return formatted("ompi {} {}", value_of(environment, "PMIX_NAMESPACE"),
                     value_of(environment, "OMPI_MCA_ess_base_jobid"));
  }
  // Hydra: its proxy on this machine is the parent of all ranks.
  if (is_several(value_of(environment, "MPI_LOCALNRANKS")))
    return "hydra " + std::to_string(::getppid());
  // A task of srun. The batch script and its direct children have no step ID.
  const std::string step = value_of(environment, "SLURM_STEP_ID");
  if (!step.empty() && is_several(value_of(environment, "SLURM_STEP_NUM_TASKS")) &&
      environment.contains("SLURM_LOCALID")) {
    return formatted("slurm {}.{}", value_of(environment, "SLURM_JOB_ID"), step);
  }
  return {};
}

// --- job step ---

namespace {

bool is_decimal(std::string_view text) {
  return !text.empty() && text.size() < 10 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Returns the latest step that a user started, except steps that only joined another: they may end
/// at any time. Without one, returns Slurm's own step: the batch script or salloc's shell.
Result<std::string> step_of(const std::string& job) {
  if (job.find('.') != std::string::npos) return job;
  const ProcessEnd listed = SPC_TRY(ask_slurm({"squeue", "--steps", "--noheader", "--format=%i %j",
                                               "--jobs=" + job}));  // JOB.STEP NAME, one per line
  long latest = -1;
  std::string other;
  for (const std::string_view line : split(listed.output, '\n')) {
    const std::size_t space = std::min(line.find(' '), line.size());
    if (line.substr(space) == std::string(" ") + kStepName) continue;
    const std::string_view id = line.substr(0, space);
    const std::string_view step = id.substr(std::min(id.find('.') + 1, id.size()));
    if (is_decimal(step)) latest = std::max(latest, std::atol(std::string(step).c_str()));
    if (step == "batch" || step == "interactive") other = step;
  }
  if (latest >= 0) return formatted("{}.{}", job, latest);
  if (!other.empty()) return formatted("{}.{}", job, other);
  return Error(ErrorKind::not_found, formatted("job {} has no running step", job))
      .hint("squeue --steps --me lists them");
}

}  // namespace

bool names_job(const std::string& text) {
  const auto dot = text.find('.');
  if (!is_decimal(std::string_view(text).substr(0, dot))) return false;
  const std::string_view step =
      dot == std::string::npos ? "0" : std::string_view(text).substr(dot + 1);
  return is_decimal(step) || step == "batch" || step == "interactive";
}

Error become_step_in(const std::string& job, const std::vector<std::string>& command) {
  const auto step = step_of(job);
  if (!step) return step.error();
  StepOrder order{.node = {},
                  .job = step->substr(0, step->find('.')),
                  .options = {"--quiet", "--mpi=none", "--container-name=" + *step + ":exec"},
                  .command = command};
  if (::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1)
    order.options.emplace_back("--pty");
  return become_step(order);
}

// --- node step ---

namespace {

std::vector<const char*> as_pointers(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  for (const auto& text : texts) pointers.push_back(text.c_str());
  pointers.push_back(nullptr);
  return pointers;
}

void show(int level, const char* line, void* display) {
  if (level == SPC_LOG_RECORD) return;  // start records are for the log of a compute node
  static_cast<PullDisplay*>(display)->write(static_cast<LogLevel>(level), line);
}

void set_variable(const char* name, const char* value, void* environment) {
  (*static_cast<std::map<std::string, std::string>*>(environment))[name] = value;
}
void unset_variable(const char* name, void* environment) {
  static_cast<std::map<std::string, std::string>*>(environment)->erase(name);
}

}  // namespace

struct NodeStep::State {
  State(const std::string& image, bool quiet) : display(image, quiet) {}
  PullDisplay display;
  spc_runtime* runtime = nullptr;
};

NodeStep::NodeStep(NodeStep&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}

NodeStep::~NodeStep() {
  if (state_ == nullptr) return;
  spc_close(state_->runtime);
  delete state_;
}

Result<NodeStep> NodeStep::open(const std::string& image, bool quiet) {
  NodeStep step(new State(image, quiet));
  spc_runtime*& runtime = step.state_->runtime;
  if (spc_open(show, &step.state_->display, &runtime) != SPC_OK)
    return Error(ErrorKind::no_space, "out of memory");
  spc_step options{};
  options.size = sizeof options;
  options.uid = ::geteuid();
  options.gid = ::getegid();
  // Before slurmd has started, the node has no store. Set-up after that would release what running
  // jobs hold.
  const bool is_set_up =
      ::access(SPC_STORE_DIR "/records", F_OK) == 0 && ::access(SPC_RUN_DIR "/steps", F_OK) == 0;
  if ((!is_set_up && spc_node_setup(runtime) != SPC_OK) || spc_step_open(runtime) != SPC_OK ||
      spc_step_start(runtime, &options) != SPC_OK) {
    return Error(ErrorKind::system, spc_error_message(runtime));
  }
  return step;
}

Error NodeStep::pull(const std::vector<std::string>& options) {
  std::map<std::string, std::string> environment;
  return enter(options, environment, {}, true).error();
}

Result<void> NodeStep::enter(const std::vector<std::string>& options,
                             std::map<std::string, std::string>& environment,
                             const std::vector<std::string>& command, bool only_pull) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  const auto variable_pointers = as_pointers(variables);
  const auto option_pointers = as_pointers(options);
  const auto command_pointers = as_pointers(command);
  spc_options given{};
  given.size = sizeof given;
  given.given = option_pointers.data();
  given.command = command_pointers.data();
  given.only_pull = only_pull ? 1 : 0;
  spc_environment changes{};
  changes.size = sizeof changes;
  changes.variables = variable_pointers.data();
  changes.set = set_variable;
  changes.unset = unset_variable;
  changes.arg = &environment;
  spc_task_keep_privilege(state_->runtime);
  const int entered = spc_task_enter(state_->runtime, &given, &changes);
  if (entered == SPC_OK) return {};
  return Error(static_cast<ErrorKind>(SPC_E_INVALID - entered),
               spc_error_message(state_->runtime));  // in the same order
}

Result<Digest> pull_into_node_store(const Places& places, const Config& config,
                                    const PullRequest& wanted) {
  if (wanted.platform) {
    return Error(ErrorKind::invalid,
                 "--platform: the node's store takes images for the node's architecture only");
  }
  std::vector<std::string> options{"container-image=" + wanted.image};
  if (wanted.verbose) options.emplace_back("container-verbose");
  if (wanted.pull) options.push_back(std::string("container-pull=") + name_of(*wanted.pull));
  {
    // Apply the rules of a job.
    auto step = SPC_TRY(NodeStep::open(without_secrets(wanted.image), wanted.quiet));
    auto line = SPC_TRY(socket_pair());
    const auto enter = [&] {
      static_cast<void>(send_struct(line.second.get(), WireError(step.pull(options))));
      return 1;
    };
    auto child = SPC_TRY(Child::run(enter, "pull " + in_quotes(without_secrets(wanted.image)), 0));
    line.second.reset();
    WireError why;
    const auto told = receive_struct(line.first.get(), why);
    const bool pulled = child.wait().success();
    if (told) return why.error();
    if (!pulled)
      return Error(ErrorKind::internal, formatted("pull {}: its process exited",
                                                  in_quotes(without_secrets(wanted.image))));
  }
  const auto store = SPC_TRY(open_store(places.store));
  return SPC_TRY(find_image(store.get(), wanted.image, config.default_registry)).digest;
}

}  // namespace spc::tool
