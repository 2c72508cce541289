#pragma once

#include <cstdint>

#include "base/digest.hpp"
#include "protocol/wire_error.hpp"

namespace spc {

/// Messages between the agent (root) and `import` (service user) over one SEQPACKET socket, and
/// between `import` and one fork of the agent, a publisher, for each new object of the store, over
/// a socket of its own. `import` never has a descriptor with which it could write to an object.
/// Root takes no descriptor from `import` and reads only `kind`, `digest`, `done` and `total`;
/// `text` and `error` are passed on, to the user or as the argument of `layer-writer`.
///
/// `import` is started with only these descriptors (0-2 are /dev/null, the environment is empty):
inline constexpr int kImportSocket = 3;  ///< this protocol
inline constexpr int kImportSource =
    4;  ///< the user's side: first its request, one message with records `key=value\0` (see
        ///< image/reference/request.hpp), then protocol/user_source.hpp
inline constexpr int kImportStore = 5;  ///< the store's directory, O_PATH
inline constexpr std::size_t kMostImportRequest = 64 << 10;

enum class ImportMessageKind : std::uint32_t {
  // import -> agent
  progress = 1,  ///< text: one line for the waiting user
  warning = 2,   ///< text: one line for the user that must be seen
  object = 3,    ///< requests a new object of the store; text: what `layer-writer` writes into it,
                 ///< empty: a file that `import` sends
  done = 5,      ///< digest: the manifest whose record is now in the store
  failed = 6,    ///< error
  evict = 7,  ///< digest: remove this layer from the store, unless it is in use; none: unmount what
              ///< jobs only hold
  meter = 8,  ///< done, total: bytes of the blobs, a few times per second; only if the request asks
              ///< for it
  config = 12,  ///< a sealed memory file with the image's configuration; only if the request asks
                ///< for no more (only_digest)

  // import -> publisher, over the object's socket. Closing it gives the object up.
  written = 13,  ///< the layer's report has arrived; the reply is `ended`
  publish = 4,   ///< digest: after `ended`, gives the layer this name; the reply is `published` or
                 ///< `refused`
  record = 9,    ///< digest of a manifest; total: bytes that follow as ImportBytes and replace the
                 ///< image's record; 0: removes it
  name = 10,     ///< the same for a public name; digest: its key (image/reference/named_image.hpp)
  grant = 11,    ///< the same for the user in `done` alone

  // agent -> import
  object_socket = 16,  ///< reply to object: one descriptor, a socket to the publisher
  refused = 18,        ///< reply to any request, with its digest: error has the reason
  obeyed = 19,         ///< reply to evict, record, name and grant, with their digest

  // publisher -> import
  published = 17,  ///< the layer has its name
  writer = 20,  ///< unasked if `layer-writer` was started: import's ends of its input, report and
                ///< socket for the layers below
  ended = 21,   ///< done: the writer's status as of wait(2); a descriptor of the layer's file, for
                ///< reading
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
