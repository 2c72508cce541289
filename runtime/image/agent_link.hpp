#pragma once

#include "base/digest.hpp"
#include "base/import_protocol.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

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
  /// Gives the file its name. Nobody may have it open for writing any more, so the last descriptor is consumed.
  Result<void> publish(const Digest& blob, UniqueFd file);

  /// The last message is one of these.
  Result<void> done(const Digest& manifest);
  Result<void> failed(const Error& error);

 private:
  int socket_;
};

}  // namespace spc
