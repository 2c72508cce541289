#pragma once

#include <cstdint>

#include "base/digest.hpp"
#include "protocol/wire_error.hpp"

namespace spc {

/// What the agent (root) and `import` (service user) say to each other over one SEQPACKET socket. The agent looks
/// only at `kind`, `digest` and descriptors; `text` and `error` pass through to the user.
///
/// `import` is started with these descriptors and nothing else (0-2 are /dev/null, the environment is empty):
inline constexpr int kImportSocket = 3;   ///< this protocol
inline constexpr int kImportRequest = 4;  ///< sealed memory file: records `key=value\0` (see image/request.hpp)
inline constexpr int kImportStore = 5;    ///< the store's directory, O_PATH
inline constexpr int kImportSource = 6;   ///< whoever reads for the user: base/user_source_protocol.hpp

enum class ImportMessageKind : std::uint32_t {
  // import -> agent
  progress = 1,   ///< text: one line for the waiting user
  warning = 2,    ///< text: one line for the user, not to be missed
  new_layer = 3,  ///< asks for a new, unnamed file in the store
  publish = 4,    ///< digest + the file's descriptor: give it the name of this blob digest
  done = 5,       ///< digest: the manifest whose record now is in images/
  failed = 6,     ///< error
  evict = 7,      ///< digest: take this layer out of the store, unless it is in use
  meter = 8,      ///< done, total: bytes of the blobs, a few times a second; only to who asked for it in the request

  // agent -> import
  layer_file = 16,  ///< answer to new_layer, with one descriptor open for reading and writing
  published = 17,   ///< answer to publish, with its digest; it may come after other answers, when the verifier has read it
  refused = 18,     ///< answer to new_layer, publish or evict, with their digest: error says why
  evicted = 19,     ///< answer to evict
};

struct ImportMessage {
  ImportMessageKind kind{};
  Digest digest;
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  Text<600> text;
  WireError error;
};

}  // namespace spc
