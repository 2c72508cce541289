#pragma once

#include <poll.h>

#include <map>
#include <optional>
#include <vector>

#include "base/digest.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/store/store_keeper.hpp"
#include "protocol/import.hpp"

namespace spc {

/// import's side of protocol/import.hpp.
class AgentLink final : public Log, public StoreKeeper {
 public:
  /// `socket` is borrowed.
  explicit AgentLink(int socket) : socket_(socket) {}

  /// A line for the waiting user: info is progress, a warning must be seen.
  void write(LogLevel level, std::string_view line) noexcept override;

  /// Printed as numbers instead of lines for whoever asked.
  void meter(std::uint64_t done, std::uint64_t total) noexcept;

  /// A new unnamed file in the store, open for reading and writing.
  Result<UniqueFd> new_layer();
  /// Requests a name for the file; takes as long as the agent's verifier needs to read it. Consumes the last descriptor,
  /// since nobody may have the file open for writing.
  Result<void> publish(const Digest& layer, UniqueFd file);
  /// Whether publish() was answered: true: the layer is in the store; Error: it was refused.
  Result<bool> published(const Digest& layer);
  /// Removes the layer from the store. False: it is in use.
  Result<bool> evict(const Digest& layer);
  /// Unmounts what no step uses, but jobs hold for their next ones. False: there is no such thing here.
  Result<bool> release_held() { return evict(Digest{}); }

  Result<void> publish_record(const Digest& manifest, std::string_view bytes) override;
  Result<void> remove_record(const Digest& manifest) override;
  Result<void> set_name(const Digest& key, std::optional<std::uint32_t> uid, std::string_view means) override;

  /// Readable when receive() has work to do.
  [[nodiscard]] pollfd watch() const { return {.fd = socket_, .events = POLLIN, .revents = 0}; }
  /// Reads pending answers without waiting. Error: the agent is gone.
  Result<void> receive();

  /// What the image says of itself, for who asked for no more than that.
  Result<void> describe(std::string_view config);

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
  Result<void> put(ImportMessage message, std::string_view bytes);

  int socket_;
  std::map<Digest, std::optional<Result<bool>>> published_;  // requested, with the answers so far
};

}  // namespace spc
