#include "image/store/store_keeper.hpp"

#include <fcntl.h>

#include <cerrno>
#include <string>

#include "base/error.hpp"
#include "image/store/store_files.hpp"
#include "protocol/store_layout.hpp"

namespace spc {
namespace {

Result<UniqueFd> open_part(int store, const std::string& path) {
  const std::string name = path.substr(0, path.find('/'));
  UniqueFd directory(
      ::openat(store, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (directory) return directory;
  return Error::from_errno(errno, "open " + name + " in the image store");
}

/// Below the store's directory; nothing: removes it.
Result<void> put(int store, const std::string& path, std::string_view bytes, Durable durable) {
  const auto directory = SPC_TRY(open_part(store, path));
  const std::string name = path.substr(path.find('/') + 1);
  return bytes.empty() ? remove_named(directory.get(), name)
                       : write_named(directory.get(), name, bytes, durable);
}

}  // namespace

Result<void> OwnStoreKeeper::publish_record(const Digest& manifest, std::string_view bytes) {
  return put(store_, store_layout::record_path(manifest), bytes, Durable::yes);
}

Result<void> OwnStoreKeeper::remove_record(const Digest& manifest) {
  return publish_record(manifest, {});
}

Result<void> OwnStoreKeeper::set_name(const Digest& key, std::optional<std::uint32_t> uid,
                                      std::string_view means) {
  const std::string path = uid ? store_layout::grant_path(*uid, key) : store_layout::name_path(key);
  return put(store_, path, means, Durable::no);
}

}  // namespace spc
