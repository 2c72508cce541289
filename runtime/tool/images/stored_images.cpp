#include "tool/images/stored_images.hpp"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <map>
#include <set>
#include <span>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/supervised.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "protocol/store_layout.hpp"
#include "reference/location.hpp"
#include "reference/reference.hpp"
#include "registry/manifest.hpp"

namespace spc::tool {

// --- catalogue ---

Result<std::vector<CatalogueEntry>> read_catalogue() {
  constexpr std::string_view kEnding = ".toml";
  const std::string directory = directory_of_catalogue();
  std::vector<CatalogueEntry> catalogue;
  DirectoryReader files(directory);
  while (files.next()) {
    const auto file_name = files.name();
    if (file_name.starts_with('.') || !file_name.ends_with(kEnding) ||
        file_name.size() == kEnding.size())
      continue;
    const auto name = file_name.substr(0, file_name.size() - kEnding.size());
    catalogue.push_back(SPC_TRY(read_catalogue_entry(std::string(name))));
  }
  if (files.error() != 0 && files.error() != ENOENT)
    return Error::from_errno(files.error(), "read " + in_quotes(directory));
  std::sort(catalogue.begin(), catalogue.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return catalogue;
}

// --- stored images ---

namespace {

constexpr std::size_t kMaxRecord = ImageRecordHeader::kMaxBytes;

/// Returns the names in a directory of the store without unfinished files. Empty if the directory
/// does not exist.
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

/// Returns whether the name is proven: a public name, or one of the image's origins.
bool is_called(const ListedImage& image, const std::string& name) {
  return has(image.names, name) ||
         std::ranges::find(image.origins.all(), name, &ImageOrigin::name) !=
             image.origins.all().end();
}

/// Adds users' requests to known images. Several users may have requested the same image.
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

/// Fills in the node's description of a public image for users, who may not read its record.
void fill_in_public(int store, ListedImage& image) {
  const std::string path = std::string(kPublicImages) + "/" + image.digest.hex();
  const UniqueFd file(
      ::openat(store, path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  const auto bytes = file ? read_file(file.get(), kMaxRecord) : Result<std::string>(std::string());
  auto record = parse_image_record(bytes ? *bytes : "");
  if (!record) return;
  ImageOrigin origin;
  for (const auto& platform : setting_values(record->settings, "platform"))
    origin.platform = platform;
  for (const auto& size : setting_values(record->settings, "bytes"))
    std::from_chars(size.data(), size.data() + size.size(), image.bytes);
  image.origins.add(std::move(origin));
  image.record = *std::move(record);
}

/// Fills in record, size and completeness, as far as the caller may read them.
void fill_in(int store, ListedImage& image) {
  const std::string path = store_layout::record_path(image.digest);
  const UniqueFd file(
      ::openat(store, path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file) return fill_in_public(store, image);
  struct stat status {};
  if (::fstat(file.get(), &status) == 0) image.used_at = status.st_mtim.tv_sec;
  const auto bytes = read_file(file.get(), kMaxRecord);
  if (!bytes) return;
  auto record = parse_image_record(*bytes);
  if (!record) return;
  std::set<Digest> seen;
  for (const Digest& layer : record->in_place ? std::vector<Digest>() : record->layers) {
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

/// A process that uses the layer holds a lock on it.
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

std::vector<StoredName> ListedImage::all_names() const {
  std::vector<StoredName> all = names;
  all.insert(all.end(), asked_as.begin(), asked_as.end());
  if (!names.empty()) return all;
  for (const auto& origin : origins.all())
    all.push_back({.name = origin.name, .manifest = digest, .asked_at = used_at});
  return all;
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
          .hint("use its digest, as scontainer images --digests prints it");
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

// --- shared images ---

namespace {

constexpr char kServiceUser[] = "spank-container";
constexpr std::size_t kMaxDocument = 4 << 20;
constexpr std::chrono::seconds kPatience{20};

Result<void> become_service_user() {
  const passwd* const user = ::getpwnam(kServiceUser);
  if (user == nullptr) return Error(ErrorKind::not_found, formatted("no user {}", kServiceUser));
  if (::geteuid() == user->pw_uid) return {};
  if (::geteuid() != 0) {
    return Error(ErrorKind::refused, "the shared store belongs to the service user")
        .hint(formatted("run it as root or as {}", kServiceUser));
  }
  if (::setgroups(1, &user->pw_gid) != 0 ||
      ::setresgid(user->pw_gid, user->pw_gid, user->pw_gid) != 0 ||
      ::setresuid(user->pw_uid, user->pw_uid, user->pw_uid) != 0) {
    return Error::from_errno(errno, formatted("become user {}", kServiceUser));
  }
  return {};
}

/// Returns the manifest if the blob is one: small, starting as JSON, with a manifest's media type.
std::optional<Manifest> manifest_in(const SharedStore& store, const SharedStore::Blob& blob) {
  if (blob.bytes > kMaxDocument) return std::nullopt;
  const auto text = store.look_at(blob.digest, kMaxDocument);
  if (!text || !text->starts_with('{')) return std::nullopt;
  auto parsed = parse_manifest(*text, {}, "manifest");
  if (!parsed || !std::holds_alternative<Manifest>(*parsed)) return std::nullopt;
  return std::get<Manifest>(*std::move(parsed));
}

bool may_see_it() {
  if (::geteuid() == 0) return true;
  const passwd* const user = ::getpwnam(kServiceUser);
  return user != nullptr && ::geteuid() == user->pw_uid;
}

std::vector<SharedImage> images_in(const SharedStore& store) {
  const auto blobs = store.blobs();
  const auto places = store.places();
  std::map<Digest, std::uint64_t> there;
  for (const auto& blob : blobs) there.emplace(blob.digest, blob.bytes);
  std::vector<SharedImage> images;
  for (const auto& blob : blobs) {
    const auto manifest = manifest_in(store, blob);
    if (!manifest) continue;
    SharedImage image{.digest = blob.digest, .places = {}, .platform = {}, .used_at = blob.used_at};
    if (const auto delivered = places.find(blob.digest); delivered != places.end())
      image.places = delivered->second;
    std::set<Digest> parts{blob.digest, manifest->config.digest};
    for (const Descriptor& layer : manifest->layers) parts.insert(layer.digest);
    image.layers = manifest->layers.size();
    for (const Digest& part : parts) {
      const auto found = there.find(part);
      image.complete = image.complete && found != there.end();
      if (found != there.end()) image.bytes += found->second;
    }
    const auto text = store.look_at(manifest->config.digest, kMaxDocument);
    if (const auto config =
            text ? parse_image_config(*text, "configuration") : Result<ImageConfig>(ImageConfig());
        config) {
      if (!config->platform.os.empty()) image.platform = config->platform.str();
    }
    images.push_back(std::move(image));
  }
  return images;
}

/// Returns a line of tab-separated fields. No field contains a tab.
std::string line_of(const SharedImage& image) {
  std::string places;
  for (const auto& place : image.places) places += (places.empty() ? "" : " ") + printable(place);
  return formatted("{}\t{}\t{}\t{}\t{}\t{}\t{}\n", image.digest.str(), printable(image.platform),
                   image.layers, image.bytes, static_cast<int>(image.complete), image.used_at,
                   places);
}

template <typename Number>
void read_number(std::string_view text, Number& number) {
  std::from_chars(text.data(), text.data() + text.size(), number);
}

std::optional<SharedImage> image_in(std::string_view line) {
  const auto fields = split(line, '\t');
  const auto digest = Digest::parse(fields.front());
  if (fields.size() != 7 || !digest) return std::nullopt;
  SharedImage image{.digest = *digest,
                    .places = {},
                    .platform = std::string(fields[1]),
                    .complete = fields[4] == "1"};
  read_number(fields[2], image.layers);
  read_number(fields[3], image.bytes);
  read_number(fields[5], image.used_at);
  for (const std::string_view place : split(fields[6], ' ')) {
    if (!place.empty()) image.places.emplace_back(place);
  }
  return image;
}

}  // namespace

Result<SharedStore> open_shared_store() {
  const auto config = SPC_TRY(read_config(SPC_CONFIG_FILE));
  if (config.shared.directory.empty()) {
    return Error(ErrorKind::not_found, "this site has no shared store")
        .hint("see SHARED STORE in spank-container.conf(5)");
  }
  SPC_TRY(become_service_user());
  return SharedStore::open(config.shared.directory, config.shared.max_size,
                           config.shared.grace());
}

Result<std::vector<SharedImage>> list_shared_images() {
  std::vector<SharedImage> images;
  const auto config = read_config(SPC_CONFIG_FILE);
  if (!may_see_it() || !config || config->shared.directory.empty()) return images;
  const auto answer = answer_before(std::chrono::steady_clock::now() + kPatience, [] {
    const auto store = open_shared_store();
    std::string text = store ? std::string() : "!" + store.error().message();
    for (const SharedImage& image : store ? images_in(*store) : std::vector<SharedImage>())
      text += line_of(image);
    return text;
  });
  if (!answer)
    return Error(ErrorKind::unavailable, formatted("shared store {}: no answer in time",
                                                   in_quotes(config->shared.directory)));
  if (answer->starts_with('!')) return Error(ErrorKind::unavailable, answer->substr(1));
  for (const std::string_view line : split(*answer, '\n')) {
    if (auto image = image_in(line)) images.push_back(*std::move(image));
  }
  return images;
}

}  // namespace spc::tool
