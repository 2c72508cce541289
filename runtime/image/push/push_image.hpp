#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "image/push/push_source.hpp"
#include "image/push/registry_push.hpp"

namespace spc {

/// What a push did, blob by blob.
struct PushCounts {
  unsigned sent = 0;
  unsigned there = 0;
  unsigned mounted = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t total_bytes = 0;
};

/// Bytes of the image that the registry has, and all.
using PushMeter = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Brings the image to the repository of `to`, whose `session` it is, and gives it the name `tag`
/// when all of it is there. What the registry has is not sent, and what another of its repositories
/// has is mounted.
Result<PushCounts> push_image(PushSource& from, RegistrySession& session, const std::string& tag,
                              const PushMeter& meter);

}  // namespace spc
