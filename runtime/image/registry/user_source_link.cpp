#include "image/registry/user_source_link.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/socket.hpp"

namespace spc {
namespace {

constexpr std::chrono::milliseconds kMeetingPatience{
    3500};  // user-source gives up after three seconds

bool is_socket(int fd) {
  struct stat status {};
  return fd >= 0 && ::fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode);
}

template <std::size_t Size>
Result<void> put(Text<Size>& into, std::string_view text) {
  if (!Text<Size>::fits(text)) return Error(ErrorKind::invalid, in_quotes(text) + ": is too long");
  into.set(text);
  return {};
}

Result<void> wait_readable(int socket, std::chrono::steady_clock::time_point until) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now())
            .count();
    if (left <= 0) return Error(ErrorKind::unavailable, "no response");
    pollfd watched{socket, POLLIN, 0};
    const int ready = ::poll(&watched, 1, static_cast<int>(left));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return Error::from_errno(errno, "wait for it");
  }
}

}  // namespace

UserSourceLink::UserSourceLink(int socket, Log& log, std::chrono::seconds patience)
    : socket_(is_socket(socket) ? socket : -1), log_(log), patience_(patience) {}

Result<UserSourceLink::Answer> UserSourceLink::ask(const UserSourceMessage& question,
                                                   std::chrono::milliseconds patience) {
  const std::string step = "query user-source";
  if (auto sent = send_struct(socket_, question); !sent) {
    if (sent.error().sys_errno() == EPIPE)
      return Answer{.message = {.kind = UserSourceKind::none}, .descriptors = {}};
    return std::move(sent).error().during(step);
  }
  for (;;) {
    Answer answer;
    SPC_TRY_DURING(step, wait_readable(socket_, std::chrono::steady_clock::now() + patience));
    answer.descriptors = SPC_TRY_DURING(step, receive_struct(socket_, answer.message, 1));
    // The answer to an earlier question that nobody waited for so long.
    if (answer.message.kind == UserSourceKind::met && question.kind != UserSourceKind::meet)
      continue;
    if (answer.message.kind != UserSourceKind::progress) return answer;
    log_.write(LogLevel::info, printable(answer.message.text.view()));
  }
}

Result<std::optional<RegistrySecret>> UserSourceLink::credentials(std::string_view registry,
                                                                  std::string_view user) {
  std::optional<RegistrySecret> none;
  if (!connected()) return none;
  UserSourceMessage question;
  question.kind = UserSourceKind::credentials;
  SPC_TRY(put(question.text, registry));
  SPC_TRY(put(question.user, user));
  const Answer answer = SPC_TRY(ask(question));
  if (answer.message.kind == UserSourceKind::none) return none;
  if (answer.message.kind == UserSourceKind::failed) return answer.message.error.error();
  if (answer.message.kind != UserSourceKind::secret || answer.descriptors.size() != 1) {
    return Error(ErrorKind::internal, "query user-source: unexpected reply");
  }
  return std::optional(SPC_TRY(RegistrySecret::from_file(answer.descriptors.front().get())));
}

Result<std::optional<UserSourceLink::Part>> UserSourceLink::document() {
  UserSourceMessage question;
  question.kind = UserSourceKind::document;
  return ask_part(question);
}

Result<std::optional<UserSourceLink::Part>> UserSourceLink::blob(const Digest& digest) {
  UserSourceMessage question;
  question.kind = UserSourceKind::blob;
  question.digest = digest;
  return ask_part(question);
}

Result<MeetingRecord> UserSourceLink::meet(const MeetingRecord& question) {
  if (!connected()) return Error(ErrorKind::unavailable, "nobody speaks for the user");
  UserSourceMessage asked;
  asked.kind = UserSourceKind::meet;
  asked.meeting = question;
  const Answer answer = SPC_TRY(ask(asked, kMeetingPatience));
  if (answer.message.kind == UserSourceKind::failed) return answer.message.error.error();
  if (answer.message.kind != UserSourceKind::met)
    return Error(ErrorKind::unavailable, "nobody speaks with srun");
  if (answer.message.meeting.kind != MeetingKind::place ||
      answer.message.meeting.count > kMostSources) {
    return Error(ErrorKind::invalid, "srun gives no place");
  }
  return answer.message.meeting;
}

Result<void> UserSourceLink::tell(const MeetingRecord& record) {
  if (!connected()) return {};
  UserSourceMessage told;
  told.kind = UserSourceKind::tell;
  told.meeting = record;
  return send_struct(socket_, told, {}, WhenFull::fail);
}

Result<std::optional<UserSourceLink::Part>> UserSourceLink::ask_part(
    const UserSourceMessage& question) {
  std::optional<Part> none;
  if (!connected()) return none;
  Answer answer = SPC_TRY(ask(question));
  const UserSourceMessage& message = answer.message;
  if (message.kind == UserSourceKind::none) return none;
  if (message.kind == UserSourceKind::failed) return message.error.error();
  if (message.kind != UserSourceKind::file || answer.descriptors.size() != 1) {
    return Error(ErrorKind::internal, "query user-source: unexpected reply");
  }
  return std::optional(Part{.file = std::move(answer.descriptors.front()),
                            .offset = message.offset,
                            .size = message.size,
                            .media_type = printable(message.text.view())});
}

}  // namespace spc
