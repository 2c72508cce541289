#include "tool/containers/detached.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/process/child.hpp"
#include "base/process/pipe.hpp"

namespace spc::tool {

void Detached::let_go() {
  line_.reset();
  take_output();
}

void Detached::take_output() const {
  ::dup2(output_.get(), STDOUT_FILENO);
  ::dup2(output_.get(), STDERR_FILENO);
}

void Detached::failed() const {
  if (line_) [[maybe_unused]]
    const ssize_t sent = ::write(line_.get(), "x", 1);
}

Result<int> Detached::run(const std::string& output, const std::function<int(Detached&)>& body) {
  auto ends = SPC_TRY(make_pipe());
  UniqueFd& reading = ends.first;
  Detached detached;
  detached.line_ = std::move(ends.second);
  detached.output_ =
      UniqueFd(::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!detached.output_) return Error::from_errno(errno, "open " + in_quotes(output));
  const auto work = [&] {
    reading.reset();
    ::setsid();
    const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ::dup2(nothing.get(), STDIN_FILENO);
    const int status = body(detached);
    if (status != 0) detached.failed();
    return status;
  };
  auto child = SPC_TRY(Child::run(work, "run it in the background", 0));
  detached.line_.reset();
  char mark = 0;
  ssize_t got = 0;
  do got = ::read(reading.get(), &mark, 1);
  while (got < 0 && errno == EINTR);
  if (got == 1) return child.wait().code();
  child.release();
  return 0;
}

}  // namespace spc::tool
