#pragma once

#include <cstdint>

#include "base/digest.hpp"
#include "protocol/wire_error.hpp"

namespace spc {

/// Messages between the agent (root) and `import` (service user) over one SEQPACKET socket. The agent reads
/// only `kind`, `digest`, `done` and descriptors; `text` and `error` are passed on to the user.
///
/// `import` is started with only these descriptors (0-2 are /dev/null, the environment is empty):
inline constexpr int kImportSocket = 3;   ///< this protocol
inline constexpr int kImportSource = 4;   ///< the user's side: first its request, one message with records `key=value\0` (see
                                          ///< image/reference/request.hpp), then protocol/user_source.hpp
inline constexpr int kImportStore = 5;    ///< the store's directory, O_PATH
inline constexpr std::size_t kMostImportRequest = 64 << 10;

enum class ImportMessageKind : std::uint32_t {
  // import -> agent
  progress = 1,   ///< text: one line for the waiting user
  warning = 2,    ///< text: one line for the user that must be seen
  new_layer = 3,  ///< requests a new, unnamed file in the store
  publish = 4,    ///< digest + the file's descriptor: give it the name of this blob digest
  done = 5,       ///< digest: the manifest whose record is now in the store
  failed = 6,     ///< error
  evict = 7,      ///< digest: remove this layer from the store, unless it is in use; none: unmount what jobs only hold
  meter = 8,      ///< done, total: bytes of the blobs, a few times per second; only if the request asks for it
  record = 9,     ///< digest of a manifest + the descriptor of a file from new_layer: this is now the image's record; without: none is
  name = 10,      ///< digest: the key of a public name (image/reference/named_image.hpp); + such a file: what it means
  grant = 11,     ///< the same for the user in `done` alone
  config = 12,    ///< a sealed memory file with the image's configuration; only if the request asks for no more (only_digest)

  // agent -> import
  layer_file = 16,  ///< reply to new_layer, with one descriptor open for reading and writing
  published = 17,   ///< reply to publish, with its digest; can follow other replies, when the verifier is done
  refused = 18,     ///< reply to any request, with its digest: error has the reason
  obeyed = 19,      ///< reply to evict, record, name and grant, with their digest
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
