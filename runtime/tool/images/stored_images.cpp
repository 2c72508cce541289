#include "tool/images/stored_images.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <span>

#include "base/directory.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "image/reference/file_url.hpp"
#include "image/reference/named_image.hpp"
#include "image/reference/reference.hpp"
#include "protocol/store_layout.hpp"

namespace spc::tool {
namespace {

constexpr std::size_t kMaxRecord = ImageRecordHeader::kMaxBytes;

/// Names in a directory of the store, without those of unfinished files; empty if it is not there.
Result<std::vector<std::string>> names_in(int store, const char* directory) {
  std::vector<std::string> names;
  DirectoryReader files(UniqueFd(::openat(store, directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  while (files.next()) {
    if (!files.name().starts_with('.')) names.emplace_back(files.name());
  }
  if (files.error() != 0 && files.error() != ENOENT) {
    return Error::from_errno(files.error(),
                             formatted("read {} in the image store", in_quotes(directory)));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string name_of_ref(std::string text) {
  for (auto at = text.find("%2F"); at != std::string::npos; at = text.find("%2F", at))
    text.replace(at, 3, "/");
  return text;
}

std::optional<StoredName> read_name(int store, const char* directory,
                                    const std::string& file_name) {
  const auto named = read_named_image(store, std::string(directory) + "/" + file_name);
  if (!named) return std::nullopt;
  return StoredName{
      .name = name_of_ref(named->name), .manifest = named->manifest, .asked_at = named->asked_at};
}

bool has(const std::vector<StoredName>& names, const std::string& name) {
  return std::ranges::find(names, name, &StoredName::name) != names.end();
}

/// Proven: by a name that everybody may use, or by where it came from.
bool is_called(const ListedImage& image, const std::string& name) {
  return has(image.names, name) ||
         std::ranges::find(image.origins.all(), name, &ImageOrigin::name) !=
             image.origins.all().end();
}

/// Of those images that are known. Several users may have asked for the same.
void add_grants(int store, std::map<Digest, ListedImage>& images) {
  const auto grants = names_in(store, store_layout::kGrants);
  if (!grants) return;
  for (const auto& file_name : *grants) {
    auto name = read_name(store, store_layout::kGrants, file_name);
    const auto image = name ? images.find(name->manifest) : images.end();
    if (image != images.end() && !has(image->second.asked_as, name->name))
      image->second.asked_as.push_back(*std::move(name));
  }
}

/// Record, size and completeness, as far as the caller may read them.
void fill_in(int store, ListedImage& image) {
  const std::string path = store_layout::record_path(image.digest);
  const UniqueFd file(
      ::openat(store, path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file) return;
  struct stat status {};
  if (::fstat(file.get(), &status) == 0) image.used_at = status.st_mtim.tv_sec;
  const auto bytes = read_file(file.get(), kMaxRecord);
  if (!bytes) return;
  auto record = parse_image_record(*bytes);
  if (!record) return;
  std::set<Digest> seen;
  for (const Digest& layer : record->layers) {
    if (!seen.insert(layer).second) continue;
    if (::fstatat(store, store_layout::layer_path(layer).c_str(), &status, AT_SYMLINK_NOFOLLOW) ==
        0) {
      image.bytes += static_cast<std::uint64_t>(status.st_size);
    } else if (errno == ENOENT) {
      image.complete = false;
    }
  }
  image.record = *std::move(record);
  const UniqueFd origins(::openat(store, store_layout::origin_path(image.digest).c_str(),
                                  O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!origins) return;
  if (const auto text = read_file(origins.get(), kMaxRecord))
    image.origins = ImageOrigins::parse(*text);
}

bool is_digest_prefix(std::string_view text) {
  return text.size() >= 6 && text.size() <= 64 &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

std::vector<std::string> signed_by(int store, const Digest& digest) {
  const UniqueFd file(::openat(store, store_layout::signatures_path(digest).c_str(),
                               O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  const auto records =
      file ? read_file(file.get(), kMaxRecord) : Result<std::string>(std::string());
  return records ? setting_values(*records, "key") : std::vector<std::string>();
}

std::string ref_file(const std::string& name) {
  std::string out;
  for (const char c : name) c == '/' ? out.append("%2F") : out.append(1, c);
  return out;
}

/// Whoever uses it holds a lock on it.
Result<bool> remove_layer(int store, const Digest& layer) {
  const std::string path = store_layout::layer_path(layer);
  const UniqueFd file(::openat(store, path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file && errno == ENOENT) return true;
  if (!file)
    return Error::from_errno(errno, formatted("open {} in the image store", in_quotes(path)));
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return false;
  if (::unlinkat(store, path.c_str(), 0) != 0)
    return Error::from_errno(errno, formatted("remove {} from the image store", in_quotes(path)));
  return true;
}

Result<std::vector<ListedImage>> list_images(int store) {
  std::map<Digest, ListedImage> images;
  for (const auto& file_name : SPC_TRY(names_in(store, store_layout::kNames))) {
    auto name = read_name(store, store_layout::kNames, file_name);
    if (name) images[name->manifest].names.push_back(*std::move(name));
  }
  // Only the service user and root may look into the node's records/.
  if (const auto records = names_in(store, store_layout::kRecords)) {
    for (const auto& hexadecimal : *records) {
      if (const auto digest = Digest::parse("sha256:" + hexadecimal)) images[*digest];
    }
  }
  add_grants(store, images);
  std::vector<ListedImage> list;
  for (auto& [digest, image] : images) {
    image.digest = digest;
    fill_in(store, image);
    std::erase_if(image.asked_as,
                  [&known = image](const StoredName& one) { return is_called(known, one.name); });
    list.push_back(std::move(image));
  }
  const auto by_name = [](const ListedImage& one) {
    return one.names.empty() ? std::string("~") : one.names.front().name;
  };
  std::stable_sort(list.begin(), list.end(),
                   [&](const auto& a, const auto& b) { return by_name(a) < by_name(b); });
  return list;
}

Result<ListedImage> find_image(int store, const std::string& text,
                               const std::string& default_registry, bool or_asked_as) {
  auto images = SPC_TRY(list_images(store));
  const auto reference = ImageReference::parse(text, default_registry);
  const std::string canonical = reference ? reference->canonical() : std::string();
  const std::string of_url = name_without_secrets(text);
  std::string_view prefix = text;
  if (prefix.starts_with("sha256:")) prefix.remove_prefix(7);
  ListedImage* found = nullptr;
  for (auto& image : images) {
    if (is_called(image, text) || is_called(image, canonical) || is_called(image, of_url))
      return std::move(image);
    if (!is_digest_prefix(prefix) || !image.digest.hex().starts_with(prefix)) continue;
    if (found != nullptr)
      return Error(ErrorKind::invalid, in_quotes(text) + ": ambiguous digest")
          .hint("use more digits");
    found = &image;
  }
  for (auto& image :
       or_asked_as&& found == nullptr ? std::span(images) : std::span<ListedImage>()) {
    if (!has(image.asked_as, canonical)) continue;
    if (found != nullptr)
      return Error(ErrorKind::invalid,
                   in_quotes(text) + ": several images were asked for by this tag")
          .hint("use a digest");
    found = &image;
  }
  if (found != nullptr) return std::move(*found);
  return Error(ErrorKind::not_found,
               formatted("no image {} in the store",
                         in_quotes(canonical.empty() ? without_secrets(text) : canonical)))
      .hint("list images with scontainer images, pull them with scontainer pull");
}

Result<ListedImage> image_of(int store, const Digest& digest) {
  ListedImage image;
  image.digest = digest;
  fill_in(store, image);
  if (!image.record)
    return Error(ErrorKind::not_found, formatted("no image {} in the store", digest.str()));
  return image;
}

Result<std::vector<UniqueFd>> open_layers(int store, const ListedImage& image) {
  std::vector<UniqueFd> files;
  for (const Digest& layer : image.record->layers) {
    UniqueFd file(::openat(store, store_layout::layer_path(layer).c_str(),
                           O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (!file) {
      const int err = errno;
      return Error::from_errno(err, "open layer " + layer.str())
          .hint("pull it again with scontainer pull");
    }
    if (::flock(file.get(), LOCK_SH | LOCK_NB) != 0)
      return Error::from_errno(errno, "lock layer " + layer.str());
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace spc::tool
