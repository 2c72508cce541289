#include "tool/images/shared_images.hpp"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <map>
#include <set>

#include "base/format.hpp"
#include "base/text.hpp"
#include "image/config/config.hpp"
#include "image/registry/manifest.hpp"
#include "tool/doctor/bounded.hpp"

namespace spc::tool {
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

/// A manifest is a small blob that begins as JSON does and says that it is one.
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

/// A line of fields between tabs, which none of them has.
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
  return SharedStore::open(config.shared.directory, config.shared.max_size);
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
