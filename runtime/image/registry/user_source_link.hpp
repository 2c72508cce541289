#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/registry/secret.hpp"
#include "protocol/user_source.hpp"

namespace spc {

/// import's side of protocol/user_source.hpp. Every request waits for its reply: the user's process
/// may have to run programs first. Without a message for `patience` it has failed. No reply is
/// trusted.
class UserSourceLink {
 public:
  /// `socket` and `log` are borrowed; long operations are reported to `log`. If the descriptor is
  /// not a socket, or its other end is closed, nobody reads for the user: every request is then
  /// answered with "none".
  UserSourceLink(int socket, Log& log, std::chrono::seconds patience = std::chrono::seconds(90));

  [[nodiscard]] bool connected() const { return socket_ >= 0; }

  /// The user's credentials for `registry` (HOST[:PORT]); of `user` only, unless that is empty.
  /// Empty: none.
  Result<std::optional<RegistrySecret>> credentials(std::string_view registry,
                                                    std::string_view user);

  /// `size` bytes at `offset` of `file`, which the user can change at any time.
  struct Part {
    UniqueFd file;
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    std::string media_type;  ///< empty: unknown
  };
  /// The image's manifest or index.
  Result<std::optional<Part>> document();
  /// A manifest, configuration or layer of this image.
  Result<std::optional<Part>> blob(const Digest& digest);

  /// A join or more for the step's srun (protocol/meeting.hpp), and the place that it gives this
  /// node. Within two seconds, else an Error: this node goes alone, and should not ask again.
  Result<MeetingRecord> meet(const MeetingRecord& question);
  /// Progress, done or left, for srun. Never waits; one that finds no room is lost, which is an
  /// Error.
  Result<void> tell(const MeetingRecord& record);

 private:
  struct Answer {
    UserSourceMessage message;
    std::vector<UniqueFd> descriptors;
  };
  Result<Answer> ask(const UserSourceMessage& question, std::chrono::milliseconds patience);
  Result<Answer> ask(const UserSourceMessage& question) { return ask(question, patience_); }
  Result<std::optional<Part>> ask_part(const UserSourceMessage& question);

  int socket_;
  Log& log_;
  std::chrono::seconds patience_;
};

}  // namespace spc
