#include "image/store/inventory.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <set>

#include "image/store/store_files.hpp"
#include "protocol/store_layout.hpp"

namespace spc {
namespace {

/// The beginning of a record, which is all that is needed here: the rest may be megabytes.
Result<StoredRecord> read_head(const ImageStore& store, int file, const Digest& manifest) {
  StoredRecord record{.manifest = manifest, .layers = {}};
  struct stat status {};
  if (::fstat(file, &status) != 0) return Error::from_errno(errno, "stat an image in the store");
  record.last_used = status.st_mtim.tv_sec;
  ImageRecordHeader header;
  if (::pread(file, &header, sizeof header, 0) != sizeof header ||
      std::memcmp(header.magic, ImageRecordHeader::kMagic, sizeof header.magic) != 0 ||
      header.layer_count > ImageRecordHeader::kMaxLayers) {
    return record;
  }
  record.layers.resize(header.layer_count);
  const auto bytes = static_cast<ssize_t>(header.layer_count * sizeof(Digest));
  if (::pread(file, record.layers.data(), static_cast<std::size_t>(bytes), sizeof header) !=
      bytes) {
    record.layers.clear();
    return record;
  }
  record.public_until = store.public_until(manifest);
  record.layer_format = header.layer_format;
  return record;
}

Result<std::vector<StoredLayer>> list_layers(const ImageStore& store) {
  const UniqueFd directory(::openat(store.directory(), store_layout::kLayers,
                                    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!directory) return Error::from_errno(errno, "open the layers in " + in_quotes(store.path()));
  std::vector<StoredLayer> layers;
  for (const auto& file : SPC_TRY(names_in(directory.get()))) {
    if (!file.ends_with(store_layout::kLayerEnding)) continue;
    const auto name =
        Digest::parse("sha256:" + file.substr(0, file.size() - store_layout::kLayerEnding.size()));
    struct stat status {};
    if (!name || ::fstatat(directory.get(), file.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    layers.push_back(
        {*name, static_cast<std::uint64_t>(status.st_blocks) * 512, status.st_mtim.tv_sec});
  }
  return layers;
}

}  // namespace

Result<std::vector<StoredRecord>> list_records(const ImageStore& store) {
  std::vector<StoredRecord> images;
  std::set<Digest> seen;
  // Earlier versions had them in images/: what is there nobody starts, but its layers wait for the
  // image to be asked for again.
  for (const int directory : {store.records(), store.images()}) {
    for (const auto& name : SPC_TRY(names_in(directory))) {
      const auto manifest = Digest::parse("sha256:" + name);
      if (!manifest || !seen.insert(*manifest).second) continue;
      const UniqueFd file(
          ::openat(directory, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
      if (file) images.push_back(SPC_TRY(read_head(store, file.get(), *manifest)));
    }
  }
  return images;
}

Result<StoreInventory> take_inventory(const ImageStore& store) {
  StoreInventory inventory;
  inventory.images = SPC_TRY(list_records(store));
  for (const auto& name : names_left_in(store.records())) {
    if (const auto manifest = Digest::parse("sha256:" + name))
      inventory.images.push_back({.manifest = *manifest, .layers = {}});
  }
  inventory.layers = SPC_TRY(list_layers(store));
  return inventory;
}

}  // namespace spc
