#include "hooks/frameworks/frameworks.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "hooks/hook.hpp"
#include "hooks/step/allocation.hpp"

namespace spc {

// --- python user base ---

namespace {

/// Returns whether files in the directory persist until the next step: it is on a separate file
/// system that is not in memory.
bool persists(const HookContext& context, const std::string& directory) {
  if (!context.open_in_image) return false;
  const UniqueFd there = context.open_in_image(directory.c_str(), O_RDONLY | O_DIRECTORY);
  const UniqueFd root = context.open_in_image("/", O_RDONLY | O_DIRECTORY);
  struct stat of_there {
  }, of_root{};
  struct statfs kind {};
  if (!there || !root || ::fstat(there.get(), &of_there) != 0 || ::fstat(root.get(), &of_root) != 0)
    return false;
  if (of_there.st_dev == of_root.st_dev || ::fstatfs(there.get(), &kind) != 0) return false;
  return kind.f_type != TMPFS_MAGIC && kind.f_type != RAMFS_MAGIC;
}

/// Returns the image's name. A relative path is prefixed with the work directory of the job.
std::string full_name(const HookContext& context) {
  const std::string* workdir = context.of_job("PWD");
  return (context.image_name.starts_with('.') && workdir != nullptr ? *workdir + "/" : "") +
         context.image_name;
}

Result<Edits> base_of_task(const HookContext& context) {
  Edits edits;
  const auto home = context.environment.find("HOME");
  if (home == context.environment.end() || !home->second.starts_with('/') ||
      context.environment.contains("PYTHONUSERBASE"))
    return edits;
  if (!persists(context, home->second)) return edits;
  const std::string base = home->second + "/.local/share/spank-container/python/" +
                           python_base_name(context.image_digest, full_name(context));
  edits.environment.defaults["PYTHONUSERBASE"] = base;
  edits.environment.prepend["PATH"] = base + "/bin";
  // PEP 668 protects a distribution's packages, and this directory is beside them.
  edits.environment.defaults["PIP_BREAK_SYSTEM_PACKAGES"] = "1";
  edits.notes.push_back("pip install --user directory of this image: " + base);
  return edits;
}

bool wants_user_base(const HookContext& context) { return context.flag("python_user_base", true); }

}  // namespace

std::string python_base_name(const std::string& image_digest, const std::string& image_name) {
  constexpr std::size_t kDigits = 16;
  constexpr std::string_view kAlgorithm = "sha256:";
  if (image_digest.starts_with(kAlgorithm)) return image_digest.substr(kAlgorithm.size(), kDigits);
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : image_name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  char digits[kDigits + 1];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return "file-" + std::string(digits);
}

const Hook python_user_base_hook{.name = "50-python-user-base",
                                 .says = "a directory per image for pip install --user",
                                 .when = wants_user_base,
                                 .task = base_of_task};

// --- frameworks ---

namespace {

constexpr std::uint32_t kFirstPort = 61000;
constexpr std::uint32_t kPorts = 4536;  ///< to 65535
/// Coprime to kPorts, so that consecutive steps use all ports.
constexpr std::uint32_t kStepApart = 1009;
constexpr std::uint32_t kJaxApart = kPorts / 2;

/// Slurm's data about a task of a step. In a heterogeneous step, tasks, rank and nodes refer to all
/// components together, and the job is the leader's.
struct TaskOfStep {
  std::uint32_t job = 0, step = 0;
  std::uint32_t tasks = 0, rank = 0;
  std::uint32_t node = 0, local_rank = 0;
  std::optional<std::uint32_t> local_tasks;
  std::string first_host;

  /// Returns the data of this task; an empty optional outside a step (the script of a batch job) or
  /// if Slurm's variables cannot be parsed.
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

/// Returns the variables for a task of a step with several tasks. Each is set only if it is not set
/// yet.
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
      // Without it, two steps of a job would have the same address.
      {"JAX_COORDINATOR_ADDRESS", task.first_host + ":" + std::to_string(jax_port)},
  };
  if (task.local_tasks) variables["LOCAL_WORLD_SIZE"] = std::to_string(*task.local_tasks);
  return variables;
}

/// Returns a warning if `port` is in the kernel's range of ephemeral ports; empty if it is not or
/// the range is unknown.
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

/// Checks in the first task, on its node, whether the port is free.
void look_at_port(const HookContext& context, const TaskOfStep& task, Edits& edits) {
  if (task.rank != 0 || context.environment.contains("MASTER_PORT")) return;
  const std::uint16_t port = master_port(task.job, task.step);
  if (auto why = why_not_safe(context, port); !why.empty()) edits.notes.push_back(std::move(why));
  if (is_taken(port)) {
    edits.warnings.push_back(formatted(
        "port {} (MASTER_PORT) is in use on this node (hint: set a different MASTER_PORT)", port));
  }
}

/// Warns if Slurm has bound one GPU to each task: a program that uses the GPU of its LOCAL_RANK
/// does not find it. The second task of the first node warns, because its LOCAL_RANK is 1.
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
    // Programs of other kinds may rely on all CPUs.
    if (torch && task->local_tasks > 1) {
      const std::string* cpus = context.of_job("SLURM_CPUS_PER_TASK");
      edits.environment.defaults["OMP_NUM_THREADS"] =
          cpus != nullptr && parse_number(*cpus) ? *cpus : "1";
    }
  }
  // Set these as pyxis does: for such images, regardless of the job's values, but not in a step of
  // a single task, where a rank without a world would be inconsistent.
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
