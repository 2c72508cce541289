#pragma once

#include <cstddef>
#include <cstdint>

#include "base/digest.hpp"
#include "protocol/tracker.hpp"
#include "protocol/wire_error.hpp"

namespace spc {

/// Requests of `import` (service user) to `user-source` (the job's user): credentials for one
/// registry, or an image that only the user may read: files, podman's storage, a local docker
/// daemon. SEQPACKET, fixed-size messages; one request at a time. The agent creates the pair of
/// sockets for `import` and the leader, which sends the request to pull there. On the first of
/// these requests, so never for a public image, the leader starts `user-source LOCATION`
/// (ImageLocation::canonical()) with its end as descriptor 3. `import` trusts no reply: blobs have
/// digests, and credentials are checked with the registry.
///
/// `user-source` also relays between `import` and the step's srun (protocol/tracker.hpp), over one
/// connection that it opens for the first record. It closes the connection when it ends: as soon as
/// all copies of `import`'s end of the socket are closed, or the container is ready.
inline constexpr int kUserSourceSocket = 3;

enum class UserSourceKind : std::uint32_t {
  // import -> user-source
  /// text: HOST[:PORT] of the registry, the only one whose secret is passed; user: login name, or
  /// empty
  credentials = 1,
  document = 2,  ///< the image's top document: an OCI manifest or index
  blob = 3,      ///< digest: a manifest, configuration or layer of this image
  /// tracker: join or more, which srun answers with a place; `user-source` fills in node_id
  ask_tracker = 4,
  tell_tracker = 5,  ///< tracker: progress, done or left; no reply

  // user-source -> import
  /// one descriptor: a sealed memory file with records `key=value\0`: username and password, or
  /// identity_token
  secret = 16,
  none = 17,  ///< no credentials for this registry, or no such blob
  /// one descriptor: `size` bytes at `offset` are the requested data; text: its media type, if
  /// known
  file = 18,
  failed = 19,    ///< error: the reason
  progress = 20,  ///< before a reply; text: the slow action
  tracker_answer = 21,       ///< tracker: the place that srun has assigned
};

struct UserSourceMessage {
  UserSourceKind kind{};
  Digest digest;
  std::uint64_t offset = 0;  ///< offset in the file, in bytes
  std::uint64_t size = 0;    ///< bytes
  Text<256> user;
  Text<600> text;
  WireError error;
  TrackerRecord tracker;
};

/// `user-source fetch`, started by the leader for a file of a server: downloads it into the user's
/// cache (local/remote_file.hpp). It reads the order on 0, `key=value\0`, because command lines are
/// public and a URL may contain a secret: image (as typed), pull (a PullPolicy), since (TagAge's,
/// or empty), cache (~/.cache) and stored (the digest of the file that a stored container needs, or
/// empty). It writes a FetchAnswer to 1, and lines for the user to 2. The leader checks the path in
/// the answer like a path that the user types.
inline constexpr char kFetch[] = "fetch";
inline constexpr std::size_t kMostFetchRequest = 16 << 10;  ///< bytes
inline constexpr char kFetchWarning[] = "warning: ";

struct FetchAnswer {
  WireError error;  ///< not set: the file is in the cache
  Text<4096> path;
};

}  // namespace spc
