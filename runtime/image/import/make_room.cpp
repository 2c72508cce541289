// Eviction before a pull, and the limit of concurrent imports per user.

#include "image/import/import.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "base/format.hpp"
#include "base/process/kernel.hpp"
#include "image/pull/layer_process.hpp"
#include "image/store/eviction.hpp"

namespace spc {
namespace {

std::string megabytes(std::uint64_t bytes) {
  return std::to_string((bytes + 999'999) / 1'000'000) + " MB";
}

std::uint64_t layer_bytes(const StoreInventory& inventory) {
  std::uint64_t bytes = 0;
  for (const auto& layer : inventory.layers) bytes += layer.bytes;
  return bytes;
}

Error no_room(const ImageStore& store, const std::string& has, std::uint64_t needed,
              const char* hint) {
  return std::move(
             Error(ErrorKind::no_space, formatted("the image store {} {}, the image needs {}",
                                                  in_quotes(store.path()), has, megabytes(needed))))
      .hint(hint);
}

/// Processors from which on compression takes no time, because one thread inflates a layer.
constexpr unsigned kCompressAside = 4;
/// Layers are stored uncompressed only if this many such images have room.
constexpr std::uint64_t kRoomFor = 10;

}  // namespace

bool has_room_beside(const ImageStore& store, const StoreConfig& config, std::uint64_t needed,
                     std::uint64_t bytes) {
  auto space = store.space();
  const auto inventory =
      config.max_size > 0 ? take_inventory(store) : Result<StoreInventory>(StoreInventory{});
  if (!space || !inventory) return true;
  space->free -= std::min(space->free, needed);
  return fits_beside(
      {.max_bytes = config.max_size, .layer_bytes = layer_bytes(*inventory) + needed}, *space,
      bytes);
}

bool stores_plain_first(const Config& config, const ImportRequest& request, const ImageStore& store,
                        LayerCompression compression, std::uint64_t bytes) {
  return config.layer_compression == "auto" && compression == LayerCompression::lz4 &&
         !request.user_store &&
         (config.shared.directory.empty() ||
          (config.shared.keep != "layers" && !config.shared.uses_in_place())) &&
         usable_processors() < kCompressAside && is_on_local_disk(store.path()) &&
         has_room_beside(store, config.store, bytes, (kRoomFor - 1) * bytes);
}

Result<void> make_room(const ImageStore& store, const StoreConfig& config, std::uint64_t needed,
                       const std::set<Digest>& keep, AgentLink& agent, const char* hint) {
  const auto inventory = SPC_TRY(take_inventory(store));
  const StoreLimits limits{.max_bytes = config.max_size,
                           .high_percent = config.high_watermark,
                           .low_percent = config.low_watermark,
                           .layer_bytes = layer_bytes(inventory)};
  const auto space = SPC_TRY(store.space());
  const Kept kept{.layers = keep,
                  .is_in_use = [&](const Digest& layer) { return store.is_layer_in_use(layer); }};
  const auto bytes = bytes_to_free(limits, space, needed);
  auto plan = plan_eviction(inventory, bytes, kept, std::time(nullptr));
  if (plan.bytes < bytes && SPC_TRY(agent.release_held()))
    plan = plan_eviction(inventory, bytes, kept, std::time(nullptr));
  if (!plan.images.empty()) {
    agent.write(
        LogLevel::info,
        formatted("making room in the image store: evicting {} least recently used images, {}",
                  plan.images.size(), megabytes(plan.bytes)));
  }
  const auto evicted =
      SPC_TRY(evict(store, plan, [&](const Digest& layer) { return agent.evict(layer); }));

  const auto now = SPC_TRY(store.space());
  if (needed > 0 && now.free < needed + margin_of(now))
    return no_room(store, formatted("has {} free", megabytes(now.free)), needed, hint);
  if (config.max_size > 0 && limits.layer_bytes - evicted.bytes + needed > config.max_size) {
    return no_room(store,
                   formatted("is limited to {} and uses {}", megabytes(config.max_size),
                             megabytes(limits.layer_bytes - evicted.bytes)),
                   needed, hint);
  }
  return {};
}

Result<StoreLock> wait_for_slot(const ImageStore& store, const StoreConfig& config,
                                std::uint32_t uid, AgentLink& agent) {
  for (bool told = false;; told = true) {
    auto slot = SPC_TRY(store.try_slot(uid, config.max_imports_per_user));
    if (slot) return *std::move(slot);
    if (!told) {
      agent.write(LogLevel::info,
                  formatted("waiting: the limit of {} concurrent pulls per user is reached",
                            config.max_imports_per_user));
    }
    pollfd one = agent.watch();
    // the agent sends nothing here; readable means that it has exited
    if (::poll(&one, 1, 200) == 1) SPC_TRY(agent.check());
  }
}

Error about_store(Error error, const ImageStore& store) {
  const std::string text = error.message();
  bool about_room = false;
  for (const int err : {ENOSPC, EDQUOT, EROFS}) {
    std::string reason = strerrordesc_np(err);
    if (!reason.empty())
      about_room = about_room || text.find(reason.substr(1)) != std::string::npos;
  }
  const auto space = store.space();
  if (!about_room || !space) return error;
  return std::move(error).during(formatted("image store {} ({} and {} inodes free)",
                                           in_quotes(store.path()), megabytes(space->free),
                                           space->free_inodes));
}

}  // namespace spc
