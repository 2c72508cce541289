#include "task/step_agent.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "protocol/save.hpp"

namespace spc {
namespace {

/// Receives the queued message of a socket with the control data that the kernel passes (SCM_*),
/// but without descriptors. Returns false if no message is queued or it has no control data.
template <typename Message, typename Passed>
bool take(int socket, Message& message, int kind, Passed& passed) {
  iovec data{&message, sizeof message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof passed)];
  msghdr header{.msg_iov = &data,
                .msg_iovlen = 1,
                .msg_control = control,
                .msg_controllen = CMSG_LEN(sizeof passed)};
  if (::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != sizeof message) return false;
  const cmsghdr* found = CMSG_FIRSTHDR(&header);
  if (found == nullptr || found->cmsg_type != kind) return false;
  std::memcpy(&passed, CMSG_DATA(found), sizeof passed);
  return true;
}

constexpr unsigned kToProcessGroup = 4;  ///< PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9

/// The program's path and its arguments, created before the fork. Empty strings are no arguments.
using Arguments = std::array<std::string, 6>;

/// Executes the agent with descriptors 0-2 on /dev/null, `socket` on 3, `keeper` on 4 (or
/// /dev/null), and no others. An agent that kept slurmstepd's descriptor 2 would keep the step from
/// ending.
[[noreturn]] void execute(const Arguments& arguments, int socket, int keeper) {
  const int null = ::open("/dev/null", O_RDWR);
  const int high = ::fcntl(socket >= 0 ? socket : null, F_DUPFD, 100);
  const int higher = ::fcntl(keeper >= 0 ? keeper : null, F_DUPFD, 100);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  ::dup2(high, kAgentSocket);
  ::dup2(higher, kAgentKeeper);
  ::syscall(SYS_close_range, kAgentKeeper + 1, ~0U, 0U);
  // A step's signals are meant for its tasks. With some of Slurm's proctrack plugins they reach the
  // agent as well.
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  char* words[std::tuple_size_v<Arguments> + 1] = {};
  for (std::size_t i = 0; i < arguments.size() && !arguments[i].empty(); ++i)
    words[i] = const_cast<char*>(arguments[i].c_str());
  ::execve(words[0], words, words + arguments.size());  // an empty environment
  ::_exit(127);
}

}  // namespace

Result<StepChannel> StepChannel::open() {
  auto [tasks, agent] = SPC_TRY(socket_pair());
  auto [step, save] = SPC_TRY(socket_pair());
  auto [parking, entrance] = SPC_TRY(socket_pair());
  const int passed[] = {agent.get()};
  const int yes = 1;
  ::setsockopt(step.get(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes);
  SPC_TRY(send_struct(entrance.get(), char{}, passed));
  return StepChannel{std::move(tasks), std::move(parking), std::move(step), std::move(save),
                     std::move(entrance)};
}

Result<void> StepChannel::finish(std::uint32_t ended, std::uint32_t killed, std::uint32_t failed,
                                 const std::function<void(const char*)>& tell_user) {
  // Limit of forwarded lines. Output that srun has not read must fit into a pipe, so that it cannot
  // block slurmstepd.
  constexpr int kMostLines = 80;
  SaveMessage message;
  ucred sender{};
  // No agent has announced itself.
  if (!take(step.get(), message, SCM_CREDENTIALS, sender)) return {};
  const bool may_be_lost = message.may_be_lost;
  message = {.kind = SaveMessageKind::save, .tasks = ended, .killed = killed, .failed = failed};
  [[maybe_unused]] const auto sent = send_struct(step.get(), message, {}, WhenFull::fail);
  siginfo_t state{};
  // Its number may have been reused, unless it is our child.
  const bool is_ours =
      ::waitid(P_PID, static_cast<id_t>(sender.pid), &state, WEXITED | WNOHANG | WNOWAIT) == 0;
  const UniqueFd saver(is_ours ? static_cast<int>(::syscall(SYS_pidfd_open, sender.pid, 0)) : -1);
  pollfd events[] = {{step.get(), POLLIN, 0}, {saver.get(), POLLIN, 0}};
  save.reset();  // the end of a process that may be lost is the end of the socket
  for (int lines = 0; (saver || may_be_lost) && message.kind != SaveMessageKind::done;) {
    if (::poll(events, 2, may_be_lost ? 3000 : -1) < 0) continue;  // milliseconds
    if (events[1].revents != 0 || !take(step.get(), message, SCM_CREDENTIALS, sender)) break;
    std::string line = message.text.str();
    // The sender escapes them.
    std::ranges::replace_if(
        line, [](unsigned char byte) { return byte < 0x20 || byte >= 0x7f; }, '?');
    if (!line.empty() && lines++ < kMostLines) tell_user(line.c_str());
  }
  step.reset();
  if (may_be_lost || message.kind == SaveMessageKind::done) return {};
  return Error(ErrorKind::unavailable, "save the container: the saver exited unexpectedly")
      .hint("if it was not cancelled, increase --mem");
}

Result<StepAgent> StepAgent::start(UniqueFd parked_end, const StepId& step, pid_t stepd) {
  const auto text = [](std::uint32_t number) { return std::to_string(number); };
  const Arguments arguments = {own_program("agent"), "step",         text(step.uid),
                               text(step.gid),       text(step.job), text(step.step)};
  if (::access(arguments[0].c_str(), X_OK) != 0)
    return Error::from_errno(errno, "start " + quoted(arguments[0]))
        .hint("install spank-container on this node");
  StepAgent agent;
  // Set by fork itself: slurmstepd collects any child that ends, and then the number may be reused.
  int process = -1;
  agent.pid_ = static_cast<pid_t>(
      ::syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, nullptr, &process, nullptr, nullptr));
  if (agent.pid_ < 0) return Error::from_errno(errno, "fork the agent");
  if (agent.pid_ > 0) {
    // The clone of contain_spank shares slurmstepd's memory but not its descriptors, which end with
    // the clone.
    if (::getpid() == stepd) agent.process_.reset(process);
    return agent;
  }

  // Regain full root in the child only. Use raw system calls: glibc's set*id would signal
  // slurmstepd's other threads. The supplementary groups stay the job's, for the builder's overlay.
  ::syscall(SYS_setresuid, 0, 0, 0);
  ::syscall(SYS_setresgid, 0, 0, 0);
  ::setpgid(0, 0);  // stop() waits for the whole group
  // After the ID change, which clears it. With contain_spank our parent is a clone that ends with
  // this callback, and the signal would arrive immediately. In that case the end of file on the
  // socket ends the agent.
  if (::getppid() == stepd) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != stepd) ::_exit(0);
  }
  int agent_end = -1;
  char byte = 0;
  if (!take(parked_end.get(), byte, SCM_RIGHTS, agent_end)) ::_exit(127);
  execute(arguments, agent_end, parked_end.get());
}

Result<void> StepAgent::stop(const StepChannel& channel) {
  siginfo_t end{};
  if (pid_ <= 0) return {};
  ::shutdown(channel.tasks.get(), SHUT_RDWR);  // for every process that has inherited it
  // With contain_spank the agent is no child of ours, but it ends by itself as well. Its user may
  // have stopped it, and it has to end its helpers. It may hang in a file system that the user
  // serves. Slurm's own wait for the step is limited, and so is this one.
  pollfd gone{process_.get(), POLLIN, 0};
  for (const int signal : {SIGCONT, SIGKILL})
    if (::syscall(SYS_pidfd_send_signal, process_.get(), signal, nullptr, 0) == 0 &&
        ::poll(&gone, 1, 1000) > 0)
      break;
  ::waitid(P_PIDFD, static_cast<id_t>(process_.get()), &end, WEXITED | WNOHANG);
  // Helpers of a killed agent end with it, or with its mount, but a moment later. One that the user
  // has stopped would keep Slurm from removing the step's cgroups. From Linux 6.9 on the descriptor
  // reaches the agent's own group. Before, only orphans that slurmstepd adopts as its children show
  // that the group still exists: its number may have been reused. Signal 0 only checks and has no
  // effect.
  const auto remain = [&](int signal) {
    siginfo_t member{};
    const bool sent =
        ::syscall(SYS_pidfd_send_signal, process_.get(), signal, nullptr, kToProcessGroup) == 0;
    if (sent || errno == ESRCH) return ::waitpid(-pid_, nullptr, WNOHANG) > 0 || sent;
    const bool is_ours =
        ::waitid(P_PGID, static_cast<id_t>(pid_), &member, WEXITED | WNOHANG | WNOWAIT) == 0;
    return ::waitpid(-pid_, nullptr, WNOHANG) > 0 || ::kill(-pid_, is_ours ? signal : 0) == 0;
  };
  for (int patience = 1000; patience > 0 && remain(patience < 500 ? SIGKILL : 0); --patience)
    ::usleep(1000);
  pid_ = -1;
  if (end.si_code == CLD_EXITED && end.si_status != 0)
    return Error::from_errno(end.si_status, "hold the layers for the job's later steps");
  return {};
}

Result<void> run_agent(const char* command, std::uint32_t first, std::uint32_t second,
                       const std::string& what) {
  const Arguments arguments = {own_program("agent"), command, std::to_string(first),
                               std::to_string(second)};
  const pid_t child = ::fork();
  if (child < 0) return Error::from_errno(errno, "fork the agent");
  if (child == 0) execute(arguments, -1, -1);
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (status == 0) return {};
  return Error(ErrorKind::system, what + ": " + arguments[0] + " failed")
      .hint("run it manually to see the reason");
}

}  // namespace spc
