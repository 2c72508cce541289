#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "base/format.hpp"
#include "base/unique_fd.hpp"
#include "tool/command.hpp"
#include "tool/containers/job_step.hpp"
#include "tool/containers/running.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {
namespace {

/// As podman's: SIGTERM, and SIGKILL for what is still there ten seconds later. What is killed with
/// its supervisor is all of it.
Result<void> stop_one(const Places& places, const std::string& name) {
  constexpr int kPatience = 10'000;  // milliseconds
  const auto container = SPC_TRY(find_container(places.running, name));
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, container.supervisor, 0)));
  if (!process)
    return errno == ESRCH ? Result<void>() : Error::from_errno(errno, "stop " + in_quotes(name));
  const auto send = [&](int number) {
    return ::syscall(SYS_pidfd_send_signal, process.get(), number, nullptr, 0) == 0;
  };
  pollfd end{process.get(), POLLIN, 0};
  if (send(SIGTERM) && ::poll(&end, 1, kPatience) > 0) return {};
  send(SIGKILL);
  if (::poll(&end, 1, kPatience) > 0) return {};
  return Error(ErrorKind::unavailable, formatted("stop {}: it does not end", in_quotes(name)));
}

}  // namespace

Result<int> run_stop(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  for (const std::string& name : arguments.words) SPC_TRY(stop_one(places, name));
  return 0;
}

Result<int> run_attach(const Arguments& arguments) {
  const std::string& job = arguments.words[0];
  if (!names_job(job))
    return Error(ErrorKind::invalid, in_quotes(job) + " is no job")
        .hint("JOB or JOB.STEP, as in squeue --steps");
  // Debian's bash has the second in front of a prompt of its own.
  const std::string prompt = formatted("export PS1='{}:\\w\\$ ' debian_chroot={}; ", job, job);
  return become_step_in(
      job, {"sh", "-c", prompt + "command -v bash >/dev/null && exec bash -i || exec sh -i"});
}

}  // namespace spc::tool
