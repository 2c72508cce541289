#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/pull/agent_link.hpp"
#include "image/store/store.hpp"

namespace spc {

/// Makes room for `needed` bytes in the store, by evicting the least recently used images if
/// necessary, and layers left by a crash. `keep`: the layers this import needs. `hint`: what a user
/// can do if there is no space.
Result<void> make_room(const ImageStore& store, const StoreConfig& config, std::uint64_t needed,
                       const std::set<Digest>& keep, AgentLink& agent, const char* hint);

/// Whether so many bytes more than the `needed`, for which nothing is evicted, stay within max_size
/// and the file system. True if the store cannot be looked at.
bool has_room_beside(const ImageStore& store, const StoreConfig& config, std::uint64_t needed,
                     std::uint64_t bytes);

/// Waits until this user has fewer imports on this node than the site allows. The slot is held as
/// long as the lock.
Result<StoreLock> wait_for_slot(const ImageStore& store, const StoreConfig& config,
                                std::uint32_t uid, AgentLink& agent);

/// The same error; if it is about space in the store, it also names the store and its free space.
Error about_store(Error error, const ImageStore& store);
template <typename Value>
Result<Value> about_store(Result<Value> result, const ImageStore& store) {
  return result ? std::move(result) : Result<Value>(about_store(std::move(result).error(), store));
}

}  // namespace spc
