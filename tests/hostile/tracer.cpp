// Traces a process and everything that it starts, and injects a fault into one system call of one
// of these programs.
//
//   hostile_tracer PID ROLE list              injects nothing, prints each system call of ROLE
//                                             when it ends
//   hostile_tracer PID ROLE kill N            kills ROLE instead of its Nth system call
//   hostile_tracer PID ROLE stop N            stops ROLE (SIGSTOP) at its Nth system call
//   hostile_tracer PID ROLE fail N ERRNO [NUMBER]
//                                             fails the Nth call (with this NUMBER);
//                                             close(2) still closes
//
//   hostile_tracer PID ROLE watch TEXT        of ROLE and its forks, while they have a task's
//                                             capabilities before it enters (CAP_SYS_ADMIN,
//                                             CAP_SYS_CHROOT, CAP_NET_ADMIN): prints
//                                             "opened PID PATH" for each opened file, and
//                                             "read PID PLACE" when they read a string in their
//                                             memory that begins with TEXT, by the processor's
//                                             watchpoints; first, "watched PID N": the number of
//                                             such strings
//
// ROLE is the name of a program, or the name that a process gave itself, with a "+" for each later
// fork: "agent+" are the forks of the agent. Processes and threads of a role count together. `agent
// epilog` is "agent-epilog", and so on. Prints "ready" when it traces, then "call PID NUMBER" or
// "done PID NUMBER". On SIGTERM, it detaches from all processes and ends.

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;

constexpr std::array kOfDescriptor = {SYS_read,   SYS_write,   SYS_pread64, SYS_pwrite64,
                                      SYS_writev, SYS_pwritev, SYS_fsync,   SYS_fdatasync};
constexpr std::array<std::string_view, 4> kCommands = {"epilog", "setup", "policy", "spank"};

struct Task {
  pid_t process = 0;
  int failure = 0;  // errno injected into its system call
};

struct Wish {
  std::string role;
  enum What { list, kill, stop, fail, watch } what = list;
  std::string text;
  long at = 0;
  int error = 0;
  int number = -1;  // number of the counted system calls; all
};

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

pid_t number_in_status(pid_t task, std::string_view name) {
  std::ifstream file("/proc/" + std::to_string(task) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return std::atoi(line.c_str() + name.size());
  }
  return 0;
}

/// Returns the name of the program that a process executes.
std::string program_of(pid_t process) {
  const std::string proc = "/proc/" + std::to_string(process);
  std::string name = first_line(proc + "/comm");
  std::ifstream words(proc + "/cmdline");
  std::string word;
  std::getline(words, word, '\0');
  std::getline(words, word, '\0');
  if (std::ranges::count(kCommands, word) > 0) name += "-" + word;
  return name;
}

/// Returns whether the process has the capabilities of a task that waits for its container
/// (runtime/task/entering/enter.cpp).
bool may_enter(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("CapPrm:")) return line.ends_with("\t0000000000241000");
  }
  return false;
}

/// Returns the readable part of a process's memory at `address`.
std::string memory_at(pid_t process, std::uint64_t address, std::size_t size) {
  std::string bytes(size, '\0');
  const int file =
      ::open(("/proc/" + std::to_string(process) + "/mem").c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t got = ::pread(file, bytes.data(), size, static_cast<off_t>(address));
  ::close(file);
  bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return bytes;
}

/// Returns the addresses of strings in writable memory that begin with `text`. Those of malloc()
/// are aligned to 8 bytes.
std::vector<std::uint64_t> places_of(pid_t process, const std::string& text) {
  std::vector<std::uint64_t> places;
  std::ifstream maps("/proc/" + std::to_string(process) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uint64_t begin = 0, end = 0;
    char mode[5] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, mode) != 3 || mode[1] != 'w')
      continue;
    const std::string bytes = memory_at(process, begin, end - begin);
    for (auto at = bytes.find(text); at != std::string::npos; at = bytes.find(text, at + 1)) {
      if ((begin + at) % 8 == 0) places.push_back(begin + at);
    }
  }
  return places;
}

constexpr std::size_t kWatchpoints = 4;

void set_debug_register(pid_t task, std::size_t number, std::uint64_t value) {
  const auto place = offsetof(user, u_debugreg) + number * sizeof(long);
  if (::ptrace(PTRACE_POKEUSER, task, reinterpret_cast<void*>(place), value) != 0)
    std::perror("hostile_tracer: watch");
}

/// Sets watchpoints of 8 bytes, which stop the task with SIGTRAP on a read or write. A task has
/// four watchpoints. The next four places are watched in the next task.
void watch_memory(pid_t task, const std::vector<std::uint64_t>& places, std::size_t tasks_before) {
  constexpr std::uint64_t kReadOrWrite = 3, kEight = 2;
  std::uint64_t control = 0;
  for (std::size_t i = 0; i < std::min(places.size(), kWatchpoints); ++i) {
    set_debug_register(task, i, places[(tasks_before * kWatchpoints + i) % places.size()]);
    control |= (1UL << (2 * i)) | ((kReadOrWrite | kEight << 2) << (16 + 4 * i));
  }
  set_debug_register(task, 7, control);
}

class Tracer {
 public:
  explicit Tracer(Wish wish) : wish_(std::move(wish)) {}

  bool follow(pid_t process) {
    std::error_code gone;
    bool any = false;
    for (const auto& entry :
         fs::directory_iterator("/proc/" + std::to_string(process) + "/task", gone)) {
      const pid_t task = std::atoi(entry.path().filename().c_str());
      constexpr unsigned long kOptions = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK |
                                         PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE |
                                         PTRACE_O_TRACEEXEC;
      if (::ptrace(PTRACE_SEIZE, task, nullptr, kOptions) != 0) continue;
      tasks_[task].process = process;
      any = true;
    }
    roles_[process] = program_of(process);
    return any;
  }

  /// Handles all pending events.
  void take_all() {
    int status = 0;
    for (pid_t task; (task = ::waitpid(-1, &status, __WALL | WNOHANG)) > 0;) {
      if (WIFSTOPPED(status)) {
        stopped(task, WSTOPSIG(status), status >> 16);
      } else {
        tasks_.erase(task);
      }
    }
  }

  [[nodiscard]] bool empty() const { return tasks_.empty(); }

  /// Prints the listed calls. Not before the end: a full pipe would stop the traced processes.
  void print_calls() const {
    for (const auto& [process, number] : calls_) std::printf("call %d %d\n", process, number);
  }

 private:
  void adopt(pid_t task) {
    if (tasks_.contains(task)) return;
    const pid_t process = number_in_status(task, "Tgid:");
    tasks_[task].process = process;
    if (!roles_.contains(process) || process == task)
      roles_[process] = roles_[number_in_status(task, "PPid:")] + "+";
  }

  void stopped(pid_t task, int signal, int event) {
    adopt(task);
    const bool is_stop =
        signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
    if (event == PTRACE_EVENT_STOP && is_stop) {
      ::ptrace(PTRACE_LISTEN, task, nullptr, nullptr);
      return;
    }
    if (event == PTRACE_EVENT_EXEC) roles_[tasks_[task].process] = program_of(task);
    if (signal == (SIGTRAP | 0x80)) on_system_call(task);
    const bool is_watch = signal == SIGTRAP && event == 0 && wish_.what == Wish::watch;
    if (is_watch) on_memory(task);
    go_on(task, event != 0 || is_watch || signal == (SIGTRAP | 0x80) ? 0 : signal);
  }

  /// Forks of slurmstepd are traced until they have a name.
  void go_on(pid_t task, int signal) {
    const std::string& role = roles_[tasks_[task].process];
    const bool looks =
        role == wish_.role || tasks_[task].failure != 0 || role.starts_with("slurmstepd+");
    ::ptrace(looks ? PTRACE_SYSCALL : PTRACE_CONT, task, nullptr, signal);
  }

  void on_system_call(pid_t task) {
    __ptrace_syscall_info info{};
    if (::ptrace(PTRACE_GET_SYSCALL_INFO, task, sizeof info, &info) <= 0) return;
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
      entered(task, info);
    } else {
      left(task);
    }
  }

  void entered(pid_t task, const __ptrace_syscall_info& info) {
    const pid_t process = tasks_[task].process;
    const int number = static_cast<int>(info.entry.nr);
    if (number == SYS_prctl && info.entry.args[0] == PR_SET_NAME) renamed_ = task;
    if (wish_.what == Wish::watch) return while_it_may_enter(process, number, info.entry.args);
    if (roles_[process] != wish_.role) return;
    if (wish_.what == Wish::list) {
      calls_.emplace_back(process, number);
    } else if ((wish_.number < 0 || number == wish_.number) && ++count_ == wish_.at) {
      std::printf("done %d %d\n", process, number);
      if (wish_.what == Wish::kill) ::kill(process, SIGKILL);
      if (wish_.what == Wish::stop) ::kill(process, SIGSTOP);
      if (wish_.what == Wish::fail) prevent(task, number);
    }
    std::fflush(stdout);
  }

  void while_it_may_enter(pid_t process, int number, const std::uint64_t* arguments) {
    if (!roles_[process].starts_with(wish_.role) || !may_enter(process)) return;
    if (roles_[process] == wish_.role && watched_.insert(process).second) {
      const auto places = places_of(process, wish_.text);
      watch_memory(process, places, watched_.size() - 1);
      std::printf("watched %d %zu\n", process, places.size());
    }
    const bool opens =
        number == SYS_open || number == SYS_openat || number == SYS_openat2 || number == SYS_execve;
    const bool is_first = number == SYS_open || number == SYS_execve;
    if (opens)
      std::printf("opened %d %s\n", process,
                  memory_at(process, arguments[is_first ? 0 : 1], 256).c_str());
    std::fflush(stdout);
  }

  /// Handles a watchpoint. Reads after the capabilities are dropped are ignored.
  void on_memory(pid_t task) {
    const pid_t process = tasks_[task].process;
    user_regs_struct registers{};
    ::ptrace(PTRACE_GETREGS, task, nullptr, &registers);
    if (may_enter(process)) {
      std::printf("read %d %llx\n", process, registers.rip);
      std::fflush(stdout);
    } else {
      set_debug_register(task, 7, 0);
    }
    set_debug_register(task, 6, 0);
  }

  void prevent(pid_t task, int number) {
    tasks_[task].failure = wish_.error;
    user_regs_struct registers{};
    if (number == SYS_close || ::ptrace(PTRACE_GETREGS, task, nullptr, &registers) != 0) return;
    // The sandbox allows no nonexistent call, so replace the call by a harmless one.
    if (std::ranges::count(kOfDescriptor, number) > 0) {
      registers.rdi = ~0ULL;
    } else {
      registers.orig_rax = ~0ULL;
    }
    ::ptrace(PTRACE_SETREGS, task, nullptr, &registers);
  }

  void left(pid_t task) {
    Task& one = tasks_[task];
    if (renamed_ == task) {
      roles_[one.process] = first_line("/proc/" + std::to_string(one.process) + "/comm");
      renamed_ = 0;
    }
    user_regs_struct registers{};
    if (one.failure == 0 || ::ptrace(PTRACE_GETREGS, task, nullptr, &registers) != 0) return;
    registers.rax = static_cast<unsigned long long>(-static_cast<long long>(one.failure));
    ::ptrace(PTRACE_SETREGS, task, nullptr, &registers);
    one.failure = 0;
  }

  Wish wish_;
  long count_ = 0;
  pid_t renamed_ = 0;  // the process that is just changing its name
  std::vector<std::pair<pid_t, int>> calls_;
  std::map<pid_t, Task> tasks_;
  std::map<pid_t, std::string> roles_;  // by process
  std::set<pid_t> watched_;
};

bool read_wish(int argc, char** argv, Wish& wish) {
  if (argc < 4) return false;
  wish.role = argv[2];
  const std::string_view what = argv[3];
  if (what == "list") return argc == 4;
  if (what == "watch") {
    wish.what = Wish::watch;
    if (argc == 5) wish.text = argv[4];
    return argc == 5;
  }
  wish.what = what == "kill" ? Wish::kill : what == "stop" ? Wish::stop : Wish::fail;
  if (wish.what == Wish::fail ? argc != 6 && argc != 7 : argc != 5) return false;
  wish.at = std::atol(argv[4]);
  if (wish.what == Wish::fail) wish.error = std::atoi(argv[5]);
  if (argc == 7) wish.number = std::atoi(argv[6]);
  return wish.at > 0 && (wish.what != Wish::fail || (what == "fail" && wish.error > 0));
}

}  // namespace

int main(int argc, char** argv) {
  Wish wish;
  if (!read_wish(argc, argv, wish)) {
    std::fputs(
        "usage: hostile_tracer PID ROLE list | kill N | stop N | fail N ERRNO [NUMBER] | watch "
        "TEXT\n",
        stderr);
    return 2;
  }
  sigset_t news;
  sigemptyset(&news);
  for (const int number : {SIGCHLD, SIGTERM, SIGINT}) sigaddset(&news, number);
  ::sigprocmask(SIG_BLOCK, &news, nullptr);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  Tracer tracer(std::move(wish));
  if (!tracer.follow(std::atoi(argv[1]))) {
    std::perror("hostile_tracer: follow");
    return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  for (int signal = SIGCHLD; signal == SIGCHLD && !tracer.empty();
       signal = ::sigwaitinfo(&news, nullptr))
    tracer.take_all();
  tracer.print_calls();
  // At exit, the kernel detaches and resumes all processes.
  return 0;
}
