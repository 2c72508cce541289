#include "launch/host/user_source.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "protocol/user_source.hpp"
#include "task/entering/arrival.hpp"

namespace spc {
namespace {

constexpr char kUserSource[] = "user-source";

/// The question that `import` has asked is answered in place of the program that cannot be started.
/// One that nobody has read would make the other side see a broken connection instead of the
/// answer.
void answer_that_it_is_missing(int socket) {
  UserSourceMessage failed;
  static_cast<void>(::recv(socket, &failed, sizeof failed, MSG_DONTWAIT));
  failed = UserSourceMessage();
  failed.kind = UserSourceKind::failed;
  failed.error = WireError(
      Error(ErrorKind::system, "start " + own_program(kUserSource) + ": it cannot be executed")
          .hint("install spank-container on this node"));
  static_cast<void>(send_struct(socket, failed));
}

}  // namespace

void UserSource::prepare(UniqueFd socket, const ImageLocation& location,
                         const std::map<std::string, std::string>& environment,
                         std::string meeting) {
  socket_ = std::move(socket);
  meeting_ = std::move(meeting);
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
    if ((watched[1].revents & POLLIN) != 0 && !started_) {
      // End of file is readable too.
      char byte = 0;
      if (::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) SPC_TRY(start());
    }
    socket_.reset();  // somebody answers now, or nobody asks any more
  }
}

Result<void> UserSource::start() {
  started_ = true;
  if (location_.kind == ImageLocation::Kind::podman && elsewhere_) {
    return elsewhere_(socket_.get(), location_.canonical());
  }
  std::vector<std::string> environment;
  for (const auto& [name, value] : *environment_) environment.push_back(name + "=" + value);
  if (!meeting_.empty()) environment.push_back(std::string(kMeetingVariable) + "=" + meeting_);
  auto started = start_user_source(socket_.get(), location_.canonical(), std::move(environment));
  if (started) {
    child_ = *std::move(started);
  } else {
    answer_that_it_is_missing(socket_.get());
  }
  return {};
}

void UserSource::stop() {
  socket_.reset();
  child_.kill();
}

}  // namespace spc
