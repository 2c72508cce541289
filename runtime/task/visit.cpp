#include "task/visit.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/process/child.hpp"
#include "protocol/wire_error.hpp"
#include "task/enter.hpp"

namespace spc {
namespace {

/// In the child: what went wrong, for the process that has started it.
int visit_status(const Result<void>& done, int answer) {
  if (done) return 0;
  const WireError error(done.error());
  [[maybe_unused]] const auto written = ::pwrite(answer, &error, sizeof error, 0);
  return 1;
}

Error error_of_visit(int answer) {
  WireError error;
  if (::pread(answer, &error, sizeof error, 0) == sizeof error && error.is_set()) return error.error();
  return Error(ErrorKind::system, "set up the root file system: helper exited unexpectedly");
}

}  // namespace

Result<void> visit_container(const ContainerNamespaces& namespaces, const std::function<Result<void>()>& inside) {
  const UniqueFd answer(::memfd_create("spank-container visit", MFD_CLOEXEC));
  if (!answer) return Error::from_errno(errno, "set up the root file system: make a memory file");
  const auto visit = [&] { return enter_container(namespaces) ? visit_status(inside(), answer.get()) : 1; };
  auto child = SPC_TRY(Child::run(visit, "set up the root file system"));
  return child.wait().success() ? Result<void>() : Result<void>(error_of_visit(answer.get()));
}

}  // namespace spc
