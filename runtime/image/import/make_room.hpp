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

/// Sees to it that `needed` bytes more find room in the store, by evicting what was not used for longest if need be; layers
/// that a crash has left go in passing. `keep`: the layers that this import needs. `hint`: what a user can do who reads that there is no room.
Result<void> make_room(const ImageStore& store, const StoreConfig& config, std::uint64_t needed, const std::set<Digest>& keep,
                       AgentLink& agent, const char* hint);

/// Waits until this user has fewer imports underway on this node than the site allows. The slot is held as long as the lock.
Result<StoreLock> wait_for_slot(const ImageStore& store, const StoreConfig& config, std::uint32_t uid, AgentLink& agent);

/// The same result; if it is an error and that is about the room in the store, it says which store that is and what is free there.
Error about_store(Error error, const ImageStore& store);
template <typename Value>
Result<Value> about_store(Result<Value> result, const ImageStore& store) {
  return result ? std::move(result) : Result<Value>(about_store(std::move(result).error(), store));
}

}  // namespace spc
