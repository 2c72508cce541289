#pragma once

#include <cstddef>
#include <cstdint>

#include "base/digest.hpp"
#include "protocol/meeting.hpp"
#include "protocol/wire_error.hpp"

namespace spc {

/// Requests of `import` (service user) to `user-source` (the job's user): credentials for one
/// registry, or an image among what only the user may read: files, podman's storage, a local docker
/// daemon. SEQPACKET, fixed-size messages; one request at a time. The agent creates the pair for
/// `import` and the leader, which sends the request to pull there, and starts `user-source
/// LOCATION` (ImageLocation::canonical()) with its end as descriptor 3 on the first of these: for a
/// public image never. `import` trusts no reply: blobs have digests, credentials are checked with
/// the registry.
///
/// It also speaks for `import` with the step's srun (protocol/meeting.hpp), over one connection
/// that it opens for the first record and that closes when it ends: as soon as nobody holds
/// `import`'s end of the socket any more, or the container is ready.
inline constexpr int kUserSourceSocket = 3;

enum class UserSourceKind : std::uint32_t {
  // import -> user-source
  credentials = 1,  ///< text: HOST[:PORT] of the registry, the only one whose secret is given;
                    ///< user: whose, or empty
  document = 2,     ///< the image's top document: an OCI manifest or index
  blob = 3,         ///< digest: a manifest, configuration or layer of this image
  meet = 4,  ///< meeting: join or more, which srun answers with a place; node_id is filled in on
             ///< the way
  tell = 5,  ///< meeting: progress, done or left; no reply

  // user-source -> import
  secret = 16,  ///< one descriptor: a sealed memory file with records `key=value\0`: username and
                ///< password, or identity_token
  none = 17,    ///< no credentials for this registry, or no such blob
  file = 18,  ///< one descriptor: `size` bytes at `offset` are the requested data; text: its media
              ///< type, if known
  failed = 19,    ///< error: the reason
  progress = 20,  ///< before a reply; text: what takes long
  met = 21,       ///< meeting: the place that srun gives
};

struct UserSourceMessage {
  UserSourceKind kind{};
  Digest digest;
  std::uint64_t offset = 0;  ///< bytes
  std::uint64_t size = 0;    ///< bytes
  Text<256> user;
  Text<600> text;
  WireError error;
  MeetingRecord meeting;
};

/// `user-source fetch`, started by the leader for a file of a server: brings it into the user's
/// cache (image/remote/kept_files.hpp). It reads on 0 what to fetch, `key=value\0`, as others see
/// command lines and a URL may have a secret in it: image (as typed), pull (a PullPolicy), since
/// (TagAge's, or empty), cache (~/.cache) and stored (the digest of the file that a stored
/// container needs, or empty). It prints a FetchAnswer, and on 2 lines for the user. The leader
/// trusts the path no more than one that the user types.
inline constexpr char kFetch[] = "fetch";
inline constexpr std::size_t kMostFetchRequest = 16 << 10;  ///< bytes
inline constexpr char kFetchWarning[] = "warning: ";

struct FetchAnswer {
  WireError error;  ///< not set: it is there
  Text<4096> path;
};

}  // namespace spc
