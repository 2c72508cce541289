#pragma once

#include <cstdint>

#include "base/digest.hpp"
#include "protocol/wire_error.hpp"

namespace spc {

/// Messages between the agent (root) and `import` (service user) over one SEQPACKET socket. For
/// each new object of the store, `import` also talks to a publisher, a fork of the agent, over a
/// separate socket. `import` never has a descriptor with which it could write to an object. Root
/// takes no descriptor from `import` and reads only `kind`, `digest`, `done` and `total`. It passes
/// `text` and `error` on, to the user or as the argument of `layer-writer`.
///
/// `import` is started with only these descriptors (0-2 are /dev/null, the environment is empty):
inline constexpr int kImportSocket = 3;  ///< this protocol
/// the user's side: first its request, one message with records `key=value\0` (see
/// reference/request.hpp), then protocol/user_source.hpp
inline constexpr int kImportSource = 4;
inline constexpr int kImportStore = 5;  ///< the store's directory, O_PATH
inline constexpr std::size_t kMostImportRequest = 64 << 10;

enum class ImportMessageKind : std::uint32_t {
  // import -> agent
  progress = 1,  ///< text: one line for the waiting user
  warning = 2,   ///< text: one line for the user that must be seen
  /// requests a new object of the store; text: the order for the `layer-writer` that writes it;
  /// empty: a file that `import` sends
  object = 3,
  done = 5,    ///< digest: the manifest whose record is now in the store
  failed = 6,  ///< error
  /// digest: remove this layer from the store, unless it is in use; no digest: unmount layers that
  /// jobs only hold
  evict = 7,
  /// done, total: bytes of the blobs, a few times per second; only if the request asks for it
  meter = 8,
  /// a sealed memory file with the image's configuration; only if the request is only_digest
  config = 12,
  /// total: layers of an image in the shared store that is used in place. Sent for each of them,
  /// bottom layer first. The reply is an object_socket, on which `import` sends a FuseLoan
  /// (protocol/fuse.hpp). The last one starts a `fuse` for all.
  serve = 22,

  // import -> publisher, over the object's socket. Closing it abandons the object.
  written = 13,  ///< the layer's report has arrived; the reply is `ended`
  /// digest: after `ended`, gives the layer this name; the reply is `published` or `refused`
  publish = 4,
  /// digest of a manifest; total: bytes that follow as ImportBytes and replace the image's record;
  /// 0: removes it
  record = 9,
  name = 10,   ///< the same for a public name; digest: its key (reference/reference.hpp)
  grant = 11,  ///< the same for the user in `done` alone

  // agent -> import
  object_socket = 16,  ///< reply to object: a socket to the publisher; to serve: to the `fuse`
  refused = 18,        ///< reply to any request, with its digest: error has the reason
  obeyed = 19,         ///< reply to evict, record, name and grant, with their digest

  // publisher -> import
  published = 17,  ///< the layer has its name
  /// unasked if `layer-writer` was started: import's ends of its input, report and socket for the
  /// layers below
  writer = 20,
  /// done: the writer's status as of wait(2); a descriptor of the layer's file, for reading
  ended = 21,
};

struct ImportMessage {
  ImportMessageKind kind{};
  Digest digest;
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  Text<600> text;
  WireError error;
};

/// A piece of a record or name; the last one is padded.
struct ImportBytes {
  char bytes[4096];
};

}  // namespace spc
