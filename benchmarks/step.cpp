// bench-step: one job step as slurmstepd runs it, with times.
//
//   bench-step [--image REF [--hold]] [--root DIR] [--tasks N] [--pause MS] --uid UID --gid GID --
//              PROGRAM [ARGUMENT...]
//
// Starts a step's agent, forks N tasks that wait until all exist (as slurmstepd's do), lets them
// enter the container and execute PROGRAM, and waits for them. Prints one line of JSON. Without
// --image, PROGRAM runs on the host, or with --root in a chroot, so that other programs are
// measured in the same way. --pause simulates slurmstepd's work between user_init and the tasks'
// start. --hold prints the line when PROGRAM has been started and then waits.

#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <span>
#include <string>
#include <vector>

#include "spank_container/runtime.h"

extern char** environ;

namespace {

struct Arguments {
  std::string image;
  std::string root;
  int tasks = 1;
  int pause_ms = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  bool hold = false;
  char** program = nullptr;
};

/// Report of a task, in memory shared with the parent. Nanoseconds of CLOCK_MONOTONIC.
struct TaskTimes {
  std::int64_t begin = 0;    ///< of task_init
  std::int64_t entered = 0;  ///< just before exec
  char timing[400] = {};     ///< the library's own timing line
};

[[noreturn]] void die(const char* action) {
  std::fprintf(stderr, "bench-step: %s: %s\n", action, std::strerror(errno));
  std::exit(1);
}

std::int64_t now_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--") {
      arguments.program = argv + i + 1;
      break;
    }
    if (name == "--hold") {
      arguments.hold = true;
      continue;
    }
    if (++i == argc) break;
    if (name == "--image") arguments.image = argv[i];
    if (name == "--root") arguments.root = argv[i];
    if (name == "--tasks") arguments.tasks = std::atoi(argv[i]);
    if (name == "--pause") arguments.pause_ms = std::atoi(argv[i]);
    if (name == "--uid") arguments.uid = static_cast<uid_t>(std::atoi(argv[i]));
    if (name == "--gid") arguments.gid = static_cast<gid_t>(std::atoi(argv[i]));
  }
  if (arguments.program == nullptr || *arguments.program == nullptr || arguments.uid == 0 ||
      arguments.tasks < 1) {
    std::fputs(
        "usage: bench-step [--image REF [--hold]] [--root DIR] [--tasks N] [--pause MS] --uid UID "
        "--gid GID -- PROGRAM...\n",
        stderr);
    std::exit(2);
  }
  return arguments;
}

void keep_timing(int level, const char* line, void* arg) {
  auto& times = *static_cast<TaskTimes*>(arg);
  if (level == SPC_LOG_DEBUG) std::snprintf(times.timing, sizeof times.timing, "%s", line);
}

/// The job's environment as maintained by spank_setenv and spank_unsetenv.
struct Environment {
  std::vector<std::string> variables;

  void set(const char* name, const char* value) {
    unset(name);
    variables.push_back(std::string(name) + "=" + value);
  }
  void unset(const char* name) {
    const std::string start = std::string(name) + "=";
    std::erase_if(variables,
                  [&](const std::string& variable) { return variable.starts_with(start); });
  }
  [[nodiscard]] std::vector<char*> pointers() {
    std::vector<char*> result;
    for (auto& variable : variables) result.push_back(variable.data());
    result.push_back(nullptr);
    return result;
  }
};

void set_variable(const char* name, const char* value, void* arg) {
  static_cast<Environment*>(arg)->set(name, value);
}
void unset_variable(const char* name, void* arg) { static_cast<Environment*>(arg)->unset(name); }

void enter(spc_runtime* runtime, const Arguments& arguments, Environment& job) {
  spc_options options{};
  options.size = sizeof options;
  const std::string image = "container-image=" + arguments.image;
  const char* const given[] = {image.c_str(), nullptr};
  options.given = given;
  const auto variables = job.pointers();
  spc_environment environment{};
  environment.size = sizeof environment;
  environment.variables = variables.data();
  environment.set = set_variable;
  environment.unset = unset_variable;
  // Modify a copy: the list that is being read must not change.
  Environment changed = job;
  environment.arg = &changed;
  if (spc_task_enter(runtime, &options, &environment) != SPC_OK) {
    std::fprintf(stderr, "bench-step: %s\n", spc_error_message(runtime));
    ::_exit(1);
  }
  job = std::move(changed);
}

[[noreturn]] void run_task(const Arguments& arguments, spc_runtime* runtime, int gate,
                           TaskTimes& times) {
  if (runtime != nullptr) spc_task_keep_privilege(runtime);
  if (!arguments.root.empty() && (::chroot(arguments.root.c_str()) != 0 || ::chdir("/") != 0))
    die("chroot");
  if (::setgroups(1, &arguments.gid) != 0 ||
      ::setresgid(arguments.gid, arguments.gid, arguments.gid) != 0 ||
      ::setresuid(arguments.uid, arguments.uid, arguments.uid) != 0) {
    die("become the user");
  }
  Environment job;
  for (char** variable = environ; *variable != nullptr; ++variable)
    job.variables.emplace_back(*variable);
  char end = 0;
  if (::read(gate, &end, 1) < 0) die("wait for the other tasks");

  times.begin = now_ns();
  if (runtime != nullptr) enter(runtime, arguments, job);
  const auto variables = job.pointers();
  environ = const_cast<char**>(variables.data());
  times.entered = now_ns();
  ::execvp(arguments.program[0], arguments.program);
  die(arguments.program[0]);
}

spc_runtime* start_step(const Arguments& arguments, TaskTimes* log_slot) {
  spc_runtime* runtime = nullptr;
  spc_step step{};
  step.size = sizeof step;
  step.uid = arguments.uid;
  step.gid = arguments.gid;
  if (spc_open(keep_timing, log_slot, &runtime) != SPC_OK || spc_step_open(runtime) != SPC_OK ||
      spc_step_start(runtime, &step) != SPC_OK) {
    std::fprintf(stderr, "bench-step: %s\n", spc_error_message(runtime));
    std::exit(1);
  }
  return runtime;
}

void print(const Arguments& arguments, std::span<const TaskTimes> times, std::int64_t user_init,
           std::int64_t forking, std::int64_t released, std::int64_t ended, const rusage& used) {
  const auto ms = [](std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e6; };
  const auto cpu = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
  };
  std::int64_t last = 0;
  for (const auto& task : times) last = std::max(last, task.entered);
  std::printf(
      "{\"user_init\": %.4f, \"forked\": %.4f, \"entered\": %.4f, \"ran\": %.4f, \"whole\": %.4f, "
      "\"cpu\": %.3f, "
      "\"faults\": %ld, \"switches\": %ld, \"tasks\": %d, \"timing\": \"%s\", \"task_init\": [",
      ms(user_init), ms(released - forking), ms(last - released), ms(ended - last),
      ms(user_init + ended - forking), cpu(used.ru_utime) + cpu(used.ru_stime),
      used.ru_minflt + used.ru_majflt, used.ru_nvcsw + used.ru_nivcsw, arguments.tasks,
      times[0].timing);
  for (const auto& task : times)
    std::printf("%s%.4f", &task == times.data() ? "" : ", ", ms(task.entered - task.begin));
  std::puts("]}");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  const auto tasks = static_cast<std::size_t>(arguments.tasks);
  void* shared = ::mmap(nullptr, tasks * sizeof(TaskTimes), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) die("allocate shared memory");
  const std::span<TaskTimes> times(static_cast<TaskTimes*>(shared), tasks);

  const std::int64_t begin = now_ns();
  // One handle for all tasks, as in slurmstepd. The last task's timing line is kept.
  spc_runtime* runtime = arguments.image.empty() ? nullptr : start_step(arguments, times.data());
  const std::int64_t user_init = now_ns() - begin;
  if (arguments.pause_ms > 0) ::usleep(static_cast<useconds_t>(arguments.pause_ms) * 1000);

  int gate[2];
  if (::pipe2(gate, O_CLOEXEC) != 0) die("create a pipe");
  const std::int64_t forking = now_ns();
  std::vector<pid_t> children;
  for (std::size_t i = 0; i < tasks; ++i) {
    const pid_t child = ::fork();
    if (child < 0) die("fork");
    if (child == 0) {
      ::close(gate[1]);
      run_task(arguments, runtime, gate[0], times[i]);
    }
    children.push_back(child);
  }
  const std::int64_t released = now_ns();
  ::close(gate[1]);

  if (arguments.hold) {
    while (times[0].entered == 0) {
      int status = 0;
      if (::waitpid(children[0], &status, WNOHANG) != 0) return 1;
      ::usleep(1000);
    }
    print(arguments, times, user_init, forking, released, now_ns(), rusage{});
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failed;
  }
  const std::int64_t ended = now_ns();
  spc_close(runtime);  // the agent is an ended child at this point
  rusage used{};
  ::getrusage(RUSAGE_CHILDREN, &used);
  if (failed > 0) {
    std::fprintf(stderr, "bench-step: %d of %d tasks of \"%s\" failed\n", failed, arguments.tasks,
                 arguments.program[0]);
    return 1;
  }
  if (!arguments.hold) print(arguments, times, user_init, forking, released, ended, used);
  return 0;
}
