#include "tool/images/obtain.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/format.hpp"
#include "image/reference/advice.hpp"
#include "image/reference/file_url.hpp"
#include "image/reference/location.hpp"
#include "image/reference/reference.hpp"
#include "image/store/store.hpp"
#include "tool/images/remote_image.hpp"

namespace spc::tool {
namespace {

bool is_local(const ListedImage& image) {
  const auto& origins = image.origins.all();
  return std::all_of(origins.begin(), origins.end(),
                     [](const ImageOrigin& origin) { return origin.user.has_value(); });
}

/// The stored image if it is complete and for the wanted platform.
std::optional<ListedImage> usable(int store, const std::string& name,
                                  const std::optional<Platform>& platform,
                                  const std::string& default_registry) {
  auto found = find_image(store, name, default_registry);
  if (!found || !found->record || !found->complete) return std::nullopt;
  if (platform && !found->platform().empty() && found->platform() != platform->str())
    return std::nullopt;
  return *std::move(found);
}

ImportRequest request_for(const Places& places, const Wanted& wanted, const ImageLocation& image) {
  ImportRequest request;
  request.image = image.canonical();
  request.registry_user = image.name.user;
  request.user_store = true;
  request.config = places.config;
  request.uid = ::geteuid();
  request.verbose = wanted.verbose;
  if (wanted.platform) request.platform = *wanted.platform;
  return request;
}

}  // namespace

Result<SourceImage> image_at_source(const Places& places, const Config& config,
                                    const Wanted& wanted) {
  const auto store = SPC_TRY(make_own_store(places));
  const auto image = SPC_TRY(ImageLocation::parse(wanted.image, config.default_registry));
  if (image.kind == ImageLocation::Kind::remote_file) {
    return Error(ErrorKind::not_found, formatted("image {}: not in the user's store",
                                                 in_quotes(without_secrets(wanted.image))))
        .hint("scontainer pull");
  }
  ImportRequest request = request_for(places, wanted, image);
  request.only_digest = true;
  PullDisplay display(image.canonical(), wanted.quiet);
  auto found = look_at_source(store.get(), request, display);
  return found ? std::move(found) : Result<SourceImage>(advised(found.error(), wanted.image));
}

Result<ObtainedImage> obtain(const Places& places, const Config& config, const Wanted& wanted) {
  auto store = SPC_TRY(make_own_store(places));
  const PullPolicy pull = wanted.pull.value_or(config.pull);
  auto there = usable(store.get(), wanted.image, wanted.platform, config.default_registry);
  const auto location = ImageLocation::parse(wanted.image, config.default_registry);
  const bool has_name = !location || location->kind == ImageLocation::Kind::registry ||
                        location->kind == ImageLocation::Kind::remote_file;
  if (!has_name) there.reset();  // what lies there now decides
  const auto reference = ImageReference::parse(wanted.image, config.default_registry);
  // An image from a file, or one that was named by its digest, is what it is: there is nobody to
  // ask.
  const bool cannot_change = there && (is_local(*there) || !reference || reference->digest);
  const bool enough = pull == PullPolicy::missing || pull == PullPolicy::never ||
                      (cannot_change && pull != PullPolicy::always);
  if (there && enough) {
    SPC_TRY(ImageStore::open(store.get())).touch_image(there->digest);
    return ObtainedImage{std::move(store), *std::move(there)};
  }
  if (pull == PullPolicy::never) {
    return Error(ErrorKind::not_found, formatted("image {}: not in the user's store",
                                                 in_quotes(without_secrets(wanted.image))))
        .hint("drop --pull=never");
  }
  if (RemoteFile::is_meant(wanted.image)) {
    const Digest digest = SPC_TRY(obtain_remote_image(store.get(), config, wanted));
    auto fetched = SPC_TRY(image_of(store.get(), digest));
    return ObtainedImage{std::move(store), std::move(fetched)};
  }
  const auto image = SPC_TRY(ImageLocation::parse(wanted.image, config.default_registry));

  ImportRequest request = request_for(places, wanted, image);
  request.pull = pull;
  request.meter = !wanted.quiet && draws_progress();
  PullDisplay display(image.canonical(), wanted.quiet);
  const auto digest = import_into_own_store(store.get(), request, display);
  if (!digest) {
    if (!there || digest.error().kind() != ErrorKind::unavailable || pull == PullPolicy::always) {
      return advised(digest.error(), wanted.image);
    }
    display.write(LogLevel::warning, digest.error().message() + "; using the stored image");
    return ObtainedImage{std::move(store), *std::move(there)};
  }
  auto fetched = SPC_TRY(image_of(store.get(), *digest));
  fetched.names.push_back({image.canonical(), *digest, 0});
  const auto user = setting_values(fetched.record->settings, "user");
  if (!user.empty() && is_other_user(user.front()) && (!there || there->digest != *digest)) {
    display.write(LogLevel::warning, formatted("the image's USER {} is not used: its programs run "
                                               "as you, and cannot read what only that user may",
                                               in_quotes(user.front())));
  }
  return ObtainedImage{std::move(store), std::move(fetched)};
}

}  // namespace spc::tool
