#include "hooks/frameworks/frameworks.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>

#include "base/file.hpp"
#include "base/format.hpp"
#include "hooks/step/host_list.hpp"
#include "hooks/text.hpp"

namespace spc {
namespace {

constexpr std::uint32_t kFirstPort = 61000;
constexpr std::uint32_t kPorts = 4536;  ///< to 65535
constexpr std::uint32_t kStepApart =
    1009;  ///< has no divisor in common with kPorts: steps go through all of them
constexpr std::uint32_t kJaxApart = kPorts / 2;

/// What Slurm says about a task of a step. In a heterogeneous step, Slurm speaks of all components
/// together and of the leader's job.
struct TaskOfStep {
  std::uint32_t job = 0, step = 0;
  std::uint32_t tasks = 0, rank = 0;
  std::uint32_t node = 0, local_rank = 0;
  std::optional<std::uint32_t> local_tasks;
  std::string first_host;

  /// Nothing for what is no step (the script of a batch job) or a step that cannot be understood.
  static std::optional<TaskOfStep> of(const HookContext& context) {
    const auto job = context.job_number("SLURM_JOB_ID");
    const auto step = context.job_number("SLURM_STEP_ID");
    const auto tasks = context.job_number("SLURM_STEP_NUM_TASKS");
    const auto rank = context.job_number("SLURM_PROCID");
    const auto node = context.job_number("SLURM_NODEID");
    const auto local_rank = context.job_number("SLURM_LOCALID");
    const std::string* nodes = context.of_job("SLURM_STEP_NODELIST");
    if (!job || !step || !tasks || !rank || !node || !local_rank || nodes == nullptr)
      return std::nullopt;
    auto first = spc::first_host(*nodes);
    if (!first) return std::nullopt;
    TaskOfStep task{.job = *job,
                    .step = *step,
                    .tasks = *tasks,
                    .rank = *rank,
                    .node = *node,
                    .local_rank = *local_rank,
                    .local_tasks = {},
                    .first_host = *std::move(first)};
    const std::string* counts = context.of_job("SLURM_STEP_TASKS_PER_NODE");
    if (counts != nullptr) task.local_tasks = tasks_on_node(*counts, task.node);
    return task;
  }
};

/// Of a task among several; every value only where nobody has set the variable.
std::map<std::string, std::string> variables_of(const TaskOfStep& task) {
  const std::uint32_t port = master_port(task.job, task.step);
  const std::uint32_t jax_port = kFirstPort + (port - kFirstPort + kJaxApart) % kPorts;
  std::map<std::string, std::string> variables{
      {"MASTER_ADDR", task.first_host},
      {"MASTER_PORT", std::to_string(port)},
      {"WORLD_SIZE", std::to_string(task.tasks)},
      {"RANK", std::to_string(task.rank)},
      {"LOCAL_RANK", std::to_string(task.local_rank)},
      {"NODE_RANK", std::to_string(task.node)},
      // Without it, two steps of a job would have the same one.
      {"JAX_COORDINATOR_ADDRESS", task.first_host + ":" + std::to_string(jax_port)},
  };
  if (task.local_tasks) variables["LOCAL_WORLD_SIZE"] = std::to_string(*task.local_tasks);
  return variables;
}

/// The ports that the kernel gives to whoever asks for any; empty if it does not say.
std::string why_not_safe(const HookContext& context, std::uint32_t port) {
  const UniqueFd file(::open((context.host_root + "/proc/sys/net/ipv4/ip_local_port_range").c_str(),
                             O_RDONLY | O_CLOEXEC));
  const auto text = file ? read_file(file.get(), 256) : Result<std::string>(std::string());
  if (!text) return {};
  char* end = nullptr;
  const unsigned long first = std::strtoul(text->c_str(), &end, 10);
  const unsigned long last = std::strtoul(end, nullptr, 10);
  if (port < first || port > last) return {};
  return formatted(
      "port {} is in net.ipv4.ip_local_port_range ({} to {}), so another program may be using it",
      port, first, last);
}

bool is_taken(std::uint16_t port) {
  const UniqueFd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  return probe && ::bind(probe.get(), generic, sizeof address) != 0 && errno == EADDRINUSE;
}

/// Where the first task will listen it is looked at whether it can.
void look_at_port(const HookContext& context, const TaskOfStep& task, Edits& edits) {
  if (task.rank != 0 || context.environment.contains("MASTER_PORT")) return;
  const std::uint16_t port = master_port(task.job, task.step);
  if (auto why = why_not_safe(context, port); !why.empty()) edits.notes.push_back(std::move(why));
  if (is_taken(port)) {
    edits.warnings.push_back(formatted(
        "port {} (MASTER_PORT) is in use on this node (hint: set a different MASTER_PORT)", port));
  }
}

/// Slurm has bound one GPU to each task, which a program that takes the GPU of its LOCAL_RANK does
/// not find. The first task for which that is so tells it.
void look_at_binding(const HookContext& context, const TaskOfStep& task, Edits& edits) {
  if (task.node != 0 || task.local_rank != 1) return;
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}) {
    const std::string* visible = context.of_job(name);
    if (visible == nullptr || visible->empty() || visible->find(',') != std::string::npos) continue;
    edits.warnings.push_back(
        formatted("each task sees one GPU ({}={}), but LOCAL_RANK counts the tasks of the node: a "
                  "program that uses the GPU of its LOCAL_RANK"
                  " fails with \"invalid device ordinal\" (hint: let all tasks see all GPUs: "
                  "--gpus-per-node, or --gpu-bind=none)",
                  name, *visible));
    return;
  }
}

Result<Edits> variables_of_task(const HookContext& context) {
  Edits edits;
  const bool torch = context.environment.contains("PYTORCH_VERSION");
  const auto task = TaskOfStep::of(context);
  if (task && task->tasks > 1) {
    edits.environment.defaults = variables_of(*task);
    edits.notes.push_back(
        formatted("rank {} of {}, rank 0 on {}", task->rank, task->tasks, task->first_host));
    look_at_port(context, *task, edits);
    if (torch) look_at_binding(context, *task, edits);
    // A program of another kind may count on all its CPUs.
    if (torch && task->local_tasks > 1) {
      const std::string* cpus = context.of_job("SLURM_CPUS_PER_TASK");
      edits.environment.defaults["OMP_NUM_THREADS"] =
          cpus != nullptr && decimal(*cpus) ? *cpus : "1";
    }
  }
  // As pyxis does it: in such images whatever the job says. Not for one task: a rank without a
  // world is half of a start.
  if (torch && task && task->tasks > 1) {
    if (const std::string* rank = context.of_job("SLURM_PROCID"))
      edits.environment.set["RANK"] = *rank;
    if (const std::string* rank = context.of_job("SLURM_LOCALID"))
      edits.environment.set["LOCAL_RANK"] = *rank;
  }
  return edits;
}

bool is_on(const HookContext& context) { return context.flag("frameworks", true); }

}  // namespace

std::uint16_t master_port(std::uint32_t job, std::uint32_t step) {
  const std::uint64_t key = job + std::uint64_t{step} * kStepApart;
  return static_cast<std::uint16_t>(kFirstPort + key % kPorts);
}

const Hook frameworks_hook{.name = "50-slurm-pytorch",
                           .says = "rank and world size for PyTorch, Lightning and JAX",
                           .when = is_on,
                           .task = variables_of_task};

}  // namespace spc
