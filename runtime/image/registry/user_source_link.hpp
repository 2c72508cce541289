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

/// import's side of base/user_source_protocol.hpp. Every question waits for its answer: the user's process may have to run
/// his programs first. One that says nothing for `patience` has failed. Nothing that it says is believed.
class UserSourceLink {
 public:
  /// `socket` and `log` are borrowed; lines about what takes long go to `log`. A descriptor that is no socket, or
  /// whose other end is closed, means that nobody reads for the user: each question then has the answer "none".
  UserSourceLink(int socket, Log& log, std::chrono::seconds patience = std::chrono::seconds(90));

  [[nodiscard]] bool connected() const { return socket_ >= 0; }

  /// What the user shows to `registry` (HOST[:PORT]); of `user` only, unless that is empty. Empty: he has nothing.
  Result<std::optional<RegistrySecret>> credentials(std::string_view registry, std::string_view user);

  /// `size` bytes at `offset` of `file`, which the user may change at any time.
  struct Part {
    UniqueFd file;
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    std::string media_type;  ///< empty: not known
  };
  /// The image's manifest or index.
  Result<std::optional<Part>> document();
  /// A manifest, configuration or layer of this image.
  Result<std::optional<Part>> blob(const Digest& digest);

 private:
  struct Answer {
    UserSourceMessage message;
    std::vector<UniqueFd> descriptors;
  };
  Result<Answer> ask(const UserSourceMessage& question);
  Result<std::optional<Part>> ask_part(const UserSourceMessage& question);

  int socket_;
  Log& log_;
  std::chrono::seconds patience_;
};

}  // namespace spc
