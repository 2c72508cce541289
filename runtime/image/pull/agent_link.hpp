#pragma once

#include <poll.h>

#include <map>
#include <optional>
#include <vector>

#include "base/digest.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/import.hpp"

namespace spc {

/// import's side of base/import_protocol.hpp.
class AgentLink final : public Log {
 public:
  /// `socket` is borrowed.
  explicit AgentLink(int socket) : socket_(socket) {}

  /// A line for the user who waits: info is progress, a warning is not to be missed.
  void write(LogLevel level, std::string_view line) noexcept override;

  /// Shown as numbers instead of lines, to who asked for it.
  void meter(std::uint64_t done, std::uint64_t total) noexcept;

  /// A new file without a name in the store, open for reading and writing.
  Result<UniqueFd> new_layer();
  /// Asks for the file to get its name, which takes as long as the agent's verifier needs to read it. Nobody may have it
  /// open for writing any more, so the last descriptor is consumed.
  Result<void> publish(const Digest& layer, UniqueFd file);
  /// Whether the answer to publish() has come: true, the layer is in the store. An Error: it was refused.
  Result<bool> published(const Digest& layer);
  /// Takes the layer out of the store. False: it is in use.
  Result<bool> evict(const Digest& layer);

  /// Readable when receive() has something to do.
  [[nodiscard]] pollfd watch() const { return {.fd = socket_, .events = POLLIN, .revents = 0}; }
  /// Takes what answers there are, without waiting. An agent that is gone is an Error.
  Result<void> receive();

  /// The last message is one of these.
  Result<void> done(const Digest& manifest);
  Result<void> failed(const Error& error);

 private:
  struct Answer {
    ImportMessage message;
    std::vector<UniqueFd> descriptors;
  };
  Result<Answer> next_answer();
  Result<Answer> answer_to(const Digest& digest);
  Result<void> keep(const Answer& answer);

  int socket_;
  std::map<Digest, std::optional<Result<bool>>> published_;  // asked for, with the answers that came
};

}  // namespace spc
