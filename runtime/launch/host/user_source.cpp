#include "launch/host/user_source.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/socket.hpp"
#include "protocol/user_source.hpp"
#include "task/enter.hpp"

namespace spc {
namespace {

constexpr char kUserSource[] = SPC_LIBEXECDIR "/user-source";

enum class MayGainPrivilege { yes, no };

/// In the child. The socket becomes descriptor 3, and there is nothing else.
[[noreturn]] void become_user_source(int socket, pid_t parent, MayGainPrivilege gain, char* const* arguments,
                                     char* const* environment) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
  ::setpgid(0, 0);
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  if (gain == MayGainPrivilege::no && !give_up_privilege()) ::_exit(126);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);

  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {0, 1, 2}) ::dup2(null, fd);
  if (socket == kUserSourceSocket) {
    ::fcntl(socket, F_SETFD, 0);
  } else {
    ::dup2(socket, kUserSourceSocket);
  }
  ::syscall(SYS_close_range, kUserSourceSocket + 1, ~0U, 0);
  ::execve(kUserSource, arguments, environment);

  // A question that nobody has read would make the other side see a broken connection instead of the answer.
  UserSourceMessage failed;
  static_cast<void>(::recv(kUserSourceSocket, &failed, sizeof failed, MSG_DONTWAIT));
  failed = UserSourceMessage();
  failed.kind = UserSourceKind::failed;
  failed.error = WireError(Error(ErrorKind::system, "start " SPC_LIBEXECDIR "/user-source: it cannot be executed")
                               .hint("install spank-container on this node"));
  static_cast<void>(send_struct(kUserSourceSocket, failed));
  ::_exit(127);
}

}  // namespace

void UserSource::prepare(UniqueFd socket, const ImageLocation& location, const std::map<std::string, std::string>& environment) {
  socket_ = std::move(socket);
  location_ = location;
  environment_ = &environment;
}

Result<void> UserSource::wait_for(int agent) {
  for (;;) {
    pollfd watched[] = {{agent, POLLIN, 0}, {socket_.get(), POLLIN, 0}};
    if (::poll(watched, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return Error::from_errno(errno, "wait for the agent");
    }
    if (watched[0].revents != 0) return {};
    if ((watched[1].revents & POLLIN) != 0 && pid_ < 0) {
      // End of file is readable too.
      char byte = 0;
      if (::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) SPC_TRY(start());
    }
    socket_.reset();  // somebody answers now, or nobody asks any more
  }
}

Result<void> UserSource::start() {
  const std::string location = location_.canonical();
  char* const arguments[] = {const_cast<char*>(kUserSource), const_cast<char*>(location.c_str()), nullptr};
  std::vector<std::string> texts;
  for (const auto& [name, value] : *environment_) texts.push_back(name + "=" + value);
  std::vector<char*> environment;
  for (std::string& text : texts) environment.push_back(text.data());
  environment.push_back(nullptr);

  // podman makes its user namespace with newuidmap, which has to gain what any process of the user may gain.
  const auto gain = location_.kind == ImageLocation::Kind::podman ? MayGainPrivilege::yes : MayGainPrivilege::no;
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) return Error::from_errno(errno, "fork user-source");
  if (pid_ == 0) become_user_source(socket_.get(), parent, gain, arguments, environment.data());
  ::setpgid(pid_, pid_);
  return {};
}

void UserSource::stop() {
  socket_.reset();
  if (pid_ <= 0) return;
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

}  // namespace spc
