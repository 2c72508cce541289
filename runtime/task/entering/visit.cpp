#include "task/entering/visit.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/process/child.hpp"
#include "task/entering/enter.hpp"

namespace spc {
namespace {

constexpr std::string_view kSetUp = "set up the root file system";

/// In the child: what went wrong, for the process that has started it.
int status_of(const Result<void>& done, int answer) {
  if (done) return 0;
  const WireError error(done.error());
  [[maybe_unused]] const auto written = ::pwrite(answer, &error, sizeof error, 0);
  return 1;
}

}  // namespace

Result<void> run_apart(const std::function<Result<void>()>& work, std::string_view what,
                       WireError& said) {
  const UniqueFd answer(::memfd_create("spank-container answer", MFD_CLOEXEC));
  if (!answer) return Error::from_errno(errno, std::string(what) + ": make a memory file");
  auto child = SPC_TRY(Child::run([&] { return status_of(work(), answer.get()); }, what));
  if (child.wait().success()) return {};
  if (::pread(answer.get(), &said, sizeof said, 0) != sizeof said) said = {};
  return Error(ErrorKind::system, std::string(what) + ": helper exited unexpectedly");
}

Result<void> run_apart(const std::function<Result<void>()>& work, std::string_view what) {
  WireError said;
  auto done = run_apart(work, what, said);
  return said.is_set() ? said.error() : std::move(done);
}

Result<void> visit_root(int root, const std::function<Result<void>()>& inside) {
  const auto visit = [&]() -> Result<void> {
    SPC_TRY(enter_root(root));
    return inside();
  };
  return run_apart(visit, kSetUp);
}

}  // namespace spc
