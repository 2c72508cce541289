#include "tool/containers/own_containers.hpp"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/process/environment.hpp"
#include "base/process/supervised.hpp"
#include "base/unique_fd.hpp"
#include "launch/sources/named_container.hpp"
#include "launch/spec/environment.hpp"

namespace spc::tool {
namespace {

using TaskVariables = std::map<std::string, std::string>;

std::string proc_text(const std::string& path) {
  constexpr std::size_t kMost = 4 << 20;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  auto text = file ? read_file(file.get(), kMost) : Result<std::string>(std::string());
  return text ? *std::move(text) : std::string();
}

TaskVariables variables_of(pid_t process) {
  TaskVariables variables;
  const auto all = environment_of_process(process);
  if (!all) return variables;
  for (const std::string& one : *all) {
    const auto equals = one.find('=');
    if (equals != std::string::npos) variables[one.substr(0, equals)] = one.substr(equals + 1);
  }
  return variables;
}

std::string task_variable(const TaskVariables& variables, const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? std::string() : found->second;
}

/// Returns the device of the file system at /, from mountinfo, which the kernel shows of every
/// process. Of several, the last one is visible.
std::string device_of_root(const std::string& process) {
  std::istringstream lines(proc_text("/proc/" + process + "/mountinfo"));
  std::string device;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string id, parent, number, below, at;
    if (fields >> id >> parent >> number >> below >> at && at == "/") device = number;
  }
  return device;
}

/// Returns whether the process has another root than the host's processes.
bool has_root_of_its_own(pid_t process) {
  struct stat theirs {
  }, ours{};
  if (::stat(formatted("/proc/{}/root", process).c_str(), &theirs) == 0)
    return ::stat("/", &ours) == 0 && theirs.st_dev != ours.st_dev;
  const std::string device = device_of_root(std::to_string(process));
  return !device.empty() && device != device_of_root("self");
}

/// Returns the parent from `stat`. The fields state and parent follow the name, which may contain
/// blanks and parentheses.
pid_t parent_of(pid_t process) {
  const std::string text = proc_text(formatted("/proc/{}/stat", process));
  const auto end = text.rfind(')');
  return end == std::string::npos || end + 4 > text.size() ? 0 : std::atoi(text.c_str() + end + 4);
}

/// Returns the step of a process from its cgroup (.../job_12/step_0/...), or else from the title of
/// the slurmstepd that started it ("slurmstepd: [12.0]").
std::optional<JobStep> step_from_outside(pid_t process) {
  constexpr std::string_view kJob = "/job_", kStep = "/step_", kTitle = "slurmstepd: [";
  const std::string cgroups = proc_text(formatted("/proc/{}/cgroup", process));
  for (auto at = cgroups.find(kJob); at != std::string::npos; at = cgroups.find(kJob, at + 1)) {
    const auto job_at = at + kJob.size();
    const auto job_end = cgroups.find_first_of("/\n", job_at);
    if (job_end == std::string::npos || cgroups.compare(job_end, kStep.size(), kStep) != 0)
      continue;
    const std::string job = cgroups.substr(job_at, job_end - job_at);
    const auto step_at = job_end + kStep.size();
    return JobStep{
        job, job + "." + cgroups.substr(step_at, cgroups.find_first_of("/\n", step_at) - step_at)};
  }
  for (pid_t parent = parent_of(process); parent > 1; parent = parent_of(parent)) {
    const std::string title = proc_text(formatted("/proc/{}/cmdline", parent));
    if (!title.starts_with(kTitle)) continue;
    const std::string text = title.substr(kTitle.size(), title.find(']') - kTitle.size());
    return JobStep{text.substr(0, text.find('.')), text};
  }
  return std::nullopt;
}

/// Returns the caller's processes in containers of Slurm's steps with their variables, without
/// their children.
std::map<pid_t, TaskVariables> tasks_in_containers() {
  std::map<pid_t, TaskVariables> tasks;
  for (DirectoryReader processes("/proc"); processes.next();) {
    const std::string name(processes.name());
    pid_t process = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), process);
    struct stat status {};
    if (read.ec != std::errc{} || read.ptr != name.data() + name.size()) continue;
    if (::fstatat(processes.descriptor(), name.c_str(), &status, 0) != 0 ||
        status.st_uid != ::geteuid())
      continue;
    if (!has_root_of_its_own(process)) continue;
    auto variables = variables_of(process);
    if (const auto step = variables.empty() ? step_from_outside(process) : std::nullopt) {
      variables["SLURM_JOB_ID"] = step->job;
      variables["SLURM_STEP_ID"] = step->text.substr(step->job.size() + 1);
    }
    if (!task_variable(variables, "SLURM_JOB_ID").empty())
      tasks.emplace(process, std::move(variables));
  }
  std::set<pid_t> children;
  for (const auto& [process, variables] : tasks) {
    if (tasks.contains(parent_of(process))) children.insert(process);
  }
  std::erase_if(tasks, [&](const auto& task) { return children.contains(task.first); });
  return tasks;
}

std::string step_of(const TaskVariables& variables) {
  const std::string step = task_variable(variables, "SLURM_STEP_ID");
  return task_variable(variables, "SLURM_JOB_ID") + "." + (step.empty() ? "batch" : step);
}

/// Returns the container of a task. Adds it if it is unknown.
OwnContainer& container_of(const TaskVariables& task, std::vector<OwnContainer>& known) {
  const std::string name = task_variable(task, "SCONTAINER_CONTAINER_NAME");
  const std::string step = step_of(task);
  const auto is_it = [&](const OwnContainer& one) {
    if (name.empty() && one.node == this_node() && std::ranges::count(one.steps, step) != 0)
      return true;
    const bool here = one.node == this_node() && one.has_name == !name.empty();
    const bool same_job = one.job.empty() || one.job == task_variable(task, "SLURM_JOB_ID");
    return here && (one.has_name ? one.name == name && same_job : one.name == step);
  };
  const auto found = std::ranges::find_if(known, is_it);
  if (found != known.end()) return *found;
  known.push_back({.name = name.empty() ? step : name,
                   .has_name = !name.empty(),
                   .image = task_variable(task, "SCONTAINER_IMAGE_NAME"),
                   .digest = task_variable(task, "SCONTAINER_IMAGE_DIGEST"),
                   .node = this_node(),
                   .job = {},
                   .note = {},
                   .steps = {},
                   .tasks = {}});
  return known.back();
}

/// Returns the environment of the new step, without the variables of the current step or job and
/// without container options.
std::vector<std::string> environment_of_step() {
  std::vector<std::string> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view one = *variable;
    constexpr std::array<std::string_view, 7> kOfJobs{"SLURM_", "SLURMD_", "_SLURM",     "SPANK_",
                                                      "PMI",    "PYXIS_",  "SCONTAINER_"};
    const bool ours = std::ranges::any_of(
        kOfJobs, [&](std::string_view prefix) { return one.starts_with(prefix); });
    const bool wanted = one.starts_with("SLURM_CONF=") || one.starts_with("SLURM_UNBUFFEREDIO=");
    if (!ours || wanted) kept.emplace_back(one);
  }
  return kept;
}

std::string own_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Result<std::string> slurm_program(const std::string& name) {
  auto path = find_program(name, own_variable("PATH"));
  if (path) return path;
  return Error(ErrorKind::not_found, formatted("find {}: not in PATH", name))
      .hint("run this where jobs are submitted");
}

/// Returns whether Slurm has removed the job's containers. squeue does not know the number of a job
/// that ended long ago.
bool has_ended(const std::string& job) {
  const auto end = ask_slurm({"squeue", "--noheader", "--format=%A", "--jobs=" + job});
  return end && end->kind == ProcessEnd::Kind::exited && end->output.empty() &&
         (end->number == 0 || end->number == 1);
}

/// Returns whether the current job (on a node of it or in salloc's shell) has the node.
bool our_job_has(const std::string& node) {
  if (own_variable("SLURM_JOB_ID").empty()) return false;
  if (node == own_variable("SLURMD_NODENAME")) return true;
  const auto nodes =
      ask_slurm({"scontrol", "show", "hostnames", own_variable("SLURM_JOB_NODELIST")});
  return nodes && ("\n" + nodes->output).find("\n" + node + "\n") != std::string::npos;
}

Program program_of(const StepOrder& order) {
  Program program;
  program.arguments = {"srun", "--nodes=1", "--ntasks=1", std::string("--job-name=") + kStepName};
  if (!order.node.empty()) program.arguments.push_back("--nodelist=" + order.node);
  const std::string job =
      order.job.empty() && our_job_has(order.node) ? own_variable("SLURM_JOB_ID") : order.job;
  if (!job.empty())
    program.arguments.insert(program.arguments.end(), {"--jobid=" + job, "--overlap"});
  program.arguments.insert(program.arguments.end(), order.options.begin(), order.options.end());
  program.arguments.insert(program.arguments.end(), order.command.begin(), order.command.end());
  program.environment = environment_of_step();
  return program;
}

}  // namespace

std::optional<JobStep> step_of_process(pid_t process) {
  const TaskVariables variables = variables_of(process);
  const std::string job = task_variable(variables, "SLURM_JOB_ID");
  if (variables.empty()) return step_from_outside(process);
  return job.empty() ? std::nullopt : std::optional(JobStep{job, step_of(variables)});
}

Result<ProcessEnd> ask_slurm(const std::vector<std::string>& command) {
  const Program program{.path = SPC_TRY(slurm_program(command[0])), .arguments = command};
  return run_supervised(program, {}, {.time = std::chrono::seconds(10), .output = 1 << 20},
                        [](std::string_view) {});
}

std::string this_node() {
  if (auto node = own_variable("SLURMD_NODENAME"); !node.empty()) return node;
  std::array<char, HOST_NAME_MAX + 1> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string name = host.data();
  return name.substr(0, name.find('.'));
}

std::vector<OwnContainer> own_containers() {
  std::vector<OwnContainer> containers;
  // As root, HOME may be a user's: no notes are written.
  const std::string notes =
      ::geteuid() == 0 ? std::string() : directory_of_container_notes(as_map(environ));
  for (NotedContainer& one :
       notes.empty() ? std::vector<NotedContainer>() : noted_containers(notes)) {
    if (!one.job.empty() && has_ended(one.job)) {
      ::unlink(one.path.c_str());
      continue;
    }
    containers.push_back({.name = one.notes.name,
                          .image = one.notes.image,
                          .digest = one.notes.digest,
                          .node = one.node,
                          .job = one.job,
                          .made_at = one.made_at,
                          .note = one.path,
                          .steps = std::move(one.steps),
                          .tasks = {}});
  }
  for (const auto& [process, variables] : tasks_in_containers())
    container_of(variables, containers).tasks.push_back(process);
  const auto order = [](const OwnContainer& one) { return std::tie(one.name, one.node, one.job); };
  std::ranges::sort(containers, [&](const auto& a, const auto& b) { return order(a) < order(b); });
  return containers;
}

Result<int> run_step(const StepOrder& order) {
  Program program = program_of(order);
  program.path = SPC_TRY(slurm_program("srun"));
  program.descriptors = {{STDOUT_FILENO, STDOUT_FILENO}, {STDERR_FILENO, STDERR_FILENO}};
  auto srun = SPC_TRY(Child::start(program));
  return srun.wait().code();
}

Result<int> run_step_as(uid_t uid, const StepOrder& order) {
  const passwd* const entry = ::getpwuid(uid);
  if (entry == nullptr) return Error(ErrorKind::not_found, formatted("find user {}", uid));
  const std::string name = entry->pw_name;
  const gid_t gid = entry->pw_gid;
  Program program = program_of(order);
  program.path = SPC_TRY(slurm_program("srun"));
  program.environment = {"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8",
                         formatted("HOME={}", entry->pw_dir), "USER=" + name, "LOGNAME=" + name};
  if (const auto conf = own_variable("SLURM_CONF"); !conf.empty())
    program.environment->push_back("SLURM_CONF=" + conf);
  program.directory = "/";
  program.group = Program::Group::session;
  program.prepare = [&] {
    return ::initgroups(name.c_str(), gid) == 0 && ::setgid(gid) == 0 && ::setuid(uid) == 0;
  };
  const RunLimits limits{.time = std::chrono::hours(24), .output = 1 << 20};
  const auto show = [](std::string_view line) {
    std::fprintf(stderr, "%s\n", printable(line).c_str());
  };
  const ProcessEnd end = SPC_TRY(run_supervised(std::move(program), {}, limits, show));
  if (end.kind == ProcessEnd::Kind::exited) return end.number;
  return Error(ErrorKind::unavailable,
               formatted("run a step as user {}: srun was killed", in_quotes(name)));
}

Error become_step(const StepOrder& order) {
  const Program program = program_of(order);
  const auto path = slurm_program("srun");
  if (!path) return path.error();
  std::vector<char*> words, variables;
  for (const auto& word : program.arguments) words.push_back(const_cast<char*>(word.c_str()));
  for (const auto& variable : *program.environment)
    variables.push_back(const_cast<char*>(variable.c_str()));
  words.push_back(nullptr);
  variables.push_back(nullptr);
  ::execve(path->c_str(), words.data(), variables.data());
  return Error::from_errno(errno, "execute " + in_quotes(*path));
}

}  // namespace spc::tool
