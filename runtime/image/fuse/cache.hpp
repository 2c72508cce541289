#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/result.hpp"

namespace spc::fuse {

/// Data read from the image, keyed by position; the most recently used up to `limit` bytes.
/// Thread-safe; concurrent requests for one key load it once. Value reports its size with cost().
template <typename Value>
class Cache {
 public:
  explicit Cache(std::size_t limit) : limit_(limit) {}

  /// `load` makes a Result<Value> for a missing key; failures are not cached.
  template <typename Load>
  Result<std::shared_ptr<const Value>> get(std::uint64_t key, const Load& load) {
    const std::shared_ptr<Slot> slot = slot_for(key);
    const std::lock_guard loading(slot->loading);
    if (!slot->value) {
      auto loaded = load();
      if (!loaded) return std::move(loaded).error();
      slot->value = std::make_shared<const Value>(*std::move(loaded));
      loaded_.fetch_add(slot->value->cost(), std::memory_order_relaxed);
      account(key, slot);
    }
    return slot->value;
  }

  /// Bytes that have been loaded, again or for the first time.
  [[nodiscard]] std::uint64_t loaded() const { return loaded_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    std::mutex loading;
    std::shared_ptr<const Value> value;
    std::size_t cost = 0;
    std::uint64_t key = 0;
  };
  using Slots = std::list<std::shared_ptr<Slot>>;  // most recently used first

  std::shared_ptr<Slot> slot_for(std::uint64_t key) {
    const std::lock_guard hold(mutex_);
    const auto found = by_key_.find(key);
    if (found != by_key_.end()) {
      slots_.splice(slots_.begin(), slots_, found->second);
      return slots_.front();
    }
    auto slot = std::make_shared<Slot>();
    slot->key = key;
    slot->cost = kSlotCost;
    slots_.push_front(slot);
    try {
      by_key_[key] = slots_.begin();
    } catch (...) {
      slots_.pop_front();
      throw;
    }
    used_ += kSlotCost;
    shrink();
    return slot;
  }

  void account(std::uint64_t key, const std::shared_ptr<Slot>& slot) {
    const std::lock_guard hold(mutex_);
    const auto found = by_key_.find(key);
    if (found == by_key_.end() || *found->second != slot) return;  // evicted meanwhile
    slot->cost += slot->value->cost();
    used_ += slot->value->cost();
    shrink();
  }

  void shrink() {
    while (used_ > limit_ && slots_.size() > 1) {
      used_ -= slots_.back()->cost;
      by_key_.erase(slots_.back()->key);
      slots_.pop_back();
    }
  }

  static constexpr std::size_t kSlotCost = 256;

  const std::size_t limit_;
  std::atomic<std::uint64_t> loaded_ = 0;
  std::mutex mutex_;
  std::size_t used_ = 0;
  Slots slots_;
  std::unordered_map<std::uint64_t, typename Slots::iterator> by_key_;
};

}  // namespace spc::fuse
