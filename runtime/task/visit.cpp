#include "task/visit.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "task/enter.hpp"

namespace spc {

Result<void> visit_container(const ContainerNamespaces& namespaces, const std::function<Result<void>()>& inside) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return Error::from_errno(errno, "set up the root file system: fork");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent || !enter_container(namespaces)) ::_exit(1);
    ::_exit(inside() ? 0 : 1);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) return Error(ErrorKind::system, "set up the root file system: helper exited unexpectedly");
  return {};
}

}  // namespace spc
