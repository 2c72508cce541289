#include "launch/host/image_order.hpp"

#include <unistd.h>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/socket.hpp"
#include "image/reference/file_url.hpp"
#include "image/reference/named_image.hpp"
#include "image/reference/request.hpp"
#include "launch/host/data_file.hpp"
#include "launch/host/host_side.hpp"
#include "launch/host/local_image.hpp"
#include "launch/site/policy_rules.hpp"
#include "launch/site/remote_file.hpp"
#include "launch/site/trust_rules.hpp"
#include "protocol/task.hpp"

namespace spc {
namespace {

constexpr std::string_view kFetched = "fetched:";  // before a digest, as a file's identity

PullPolicy pull_of(const PolicyRecord& policy) {
  switch (policy.pull) {
    case PolicyRecord::missing: return PullPolicy::missing;
    case PolicyRecord::always: return PullPolicy::always;
    case PolicyRecord::never: return PullPolicy::never;
    default: return PullPolicy::newer;
  }
}

/// The manifest that the store has for it, if it is public and no registry has to be asked.
std::optional<Digest> known_image(const LaunchRequest& request, const PolicyRecord& policy,
                                  const ImageReference& reference, const ImportRequest& import) {
  const auto name = ref_file_of(reference, import.platform);
  if (!name) return std::nullopt;
  TagDemand demand{.immutable = reference.digest.has_value(),
                   .pull = *import.pull,
                   .since = request.since,
                   .meant = import.resolved};
  auto known = known_manifest(*name, demand, policy);
  if (known || !import.resolved) return known;
  const auto resolved = ref_file_of(reference, import.platform, *import.resolved);
  return resolved ? known_manifest(*resolved, demand, policy) : std::nullopt;
}

/// For an image that is in the store or that `import` brings there. `earlier`: which one another
/// task of the step has, if any. `stored`: the image of a stored container. Where signatures
/// decide, they do so at each start, in `import`.
Result<ImageOrder> order_for_store(const LaunchRequest& request, const PolicyRecord& policy,
                                   const SitePolicy& site, const ImageLocation& image,
                                   const Digest& earlier,
                                   const std::optional<Digest>& stored = std::nullopt) {
  ImageOrder order;
  const PullPolicy pull = stored ? PullPolicy::missing : request.pull.value_or(pull_of(policy));
  ImportRequest import;
  if (request.platform) import.platform = *request.platform;
  import.manifest = stored;
  const bool has_name = image.kind == ImageLocation::Kind::registry;
  ImageReference reference = image.name;
  if (stored) reference.digest = stored;
  import.pull = pull;
  auto name = has_name ? ref_file_of(reference, import.platform) : std::nullopt;
  const auto resolved =
      has_name && asks_anyway(pull) ? resolved_tag(reference, request.resolved) : std::nullopt;
  if (const auto of_both =
          resolved ? ref_file_of(reference, import.platform, *resolved) : std::nullopt) {
    import.resolved = resolved;
    name = of_both;
  }
  if (name) order.image_name = name_key(*name);
  const bool may_be_known = has_name && site.signature_policy.empty();
  if (earlier != Digest{}) {
    order.flags |= TaskMessage::start_known;
    order.manifest = earlier;
  } else if (const auto known =
                 may_be_known ? known_image(request, policy, reference, import) : std::nullopt) {
    order.flags |= TaskMessage::start_known;
    order.manifest = *known;
  }
  import.since = request.since;
  import.verbose = request.verbose;
  import.record = true;
  if (has_name && !request.meeting.empty() && request.nodes > 1) import.meet = request.nodes;
  import.registry_user = image.name.user;
  import.image = image.canonical();
  import.uid = ::geteuid();
  order.request = import.serialize();
  return order;
}

std::string home_for(const ImageLocation& image) {
  return image.path.starts_with("~/") ? UserIdentity::of_this_process().home : "";
}

/// What policy.json calls images that are files.
const char* transports_of(LocalImage::Kind kind) {
  switch (kind) {
    case LocalImage::Kind::squashfs: return "squashfs";
    case LocalImage::Kind::directory: return "directory";
    case LocalImage::Kind::archive: break;
  }
  return kArchiveTransports;
}

/// For a path; what turns out to be an archive goes to the store.
Result<ImageOrder> order_for_path(const LaunchRequest& request, const PolicyRecord& policy,
                                  const SitePolicy& site, const ImageLocation& image,
                                  const Digest& earlier, Log& log) {
  auto local = SPC_TRY_DURING("--container-image", open_local_image(image.path, home_for(image)));
  if (!local.warning.empty()) log.write(LogLevel::warning, local.warning);
  SPC_TRY(check_opened_trust(local.file.get(), image.path, transports_of(local.kind), site));
  if (local.kind == LocalImage::Kind::archive)
    return order_for_store(request, policy, site, image, earlier);
  SPC_TRY(check_opened_place(local.file.get(), image.path, site));
  if (local.kind == LocalImage::Kind::squashfs)
    SPC_TRY_DURING("open image " + in_quotes(image.path), refuse_fuse(local.file.get()));
  if (local.kind == LocalImage::Kind::directory) {
    SPC_TRY_DURING("--container-image",
                   check_mount_source(local.file.get(), image.path, site.mounts_off));
  }
  ImageOrder order;
  order.from = local.kind == LocalImage::Kind::squashfs ? ContainerSpec::From::file
                                                        : ContainerSpec::From::directory;
  order.flags = local.kind == LocalImage::Kind::squashfs ? TaskMessage::start_squashfs
                                                         : TaskMessage::start_directory;
  order.offset = local.offset;
  order.file = std::move(local.file);
  return order;
}

/// A stored container starts as it is, unless signatures decide: `import` has to admit the image
/// that it was made from.
Result<ImageOrder> order_for_stored(const LaunchRequest& request, const PolicyRecord& policy,
                                    const SitePolicy& site, const ContainerNotes& notes,
                                    const Digest& earlier) {
  if (site.signature_policy.empty()) return ImageOrder{.flags = TaskMessage::start_stored};
  const auto image = SPC_TRY(ImageLocation::parse(notes.image, policy.default_registry));
  SPC_TRY(check_stored_trust(image, site));
  if (image.kind != ImageLocation::Kind::registry)
    return ImageOrder{.flags = TaskMessage::start_stored};
  const Digest manifest = SPC_TRY_DURING("the container's notes", Digest::parse(notes.digest));
  return order_for_store(request, policy, site, image, earlier, manifest);
}

/// For a file of a server: in the user's cache it is a file of the user, and neither an archive nor
/// a directory.
Result<ImageOrder> order_for_remote_file(const ImageOrderRequest& with, ImageLocation image,
                                         bool reuses) {
  const std::string shown = image.canonical();
  // The notes of a stored container have no query.
  RemoteFileRequest wanted{
      .image = with.request.image.empty() ? shown : with.request.image,
      .pull = reuses ? PullPolicy::missing : with.request.pull.value_or(pull_of(with.policy)),
      .since = with.request.since,
      .stored = {}};
  const std::string& file = with.named.notes().file;
  if (reuses && file.starts_with(kFetched))
    wanted.stored = "sha256:" + file.substr(kFetched.size());
  image.path = SPC_TRY(bring_remote_file(wanted, with.job, with.log));
  auto order = SPC_TRY_DURING(
      "pull image " + in_quotes(shown),
      order_for_path(with.request, with.policy, with.site, image, with.earlier, with.log));
  if (order.from != ContainerSpec::From::file) {
    return Error(ErrorKind::invalid,
                 formatted("pull image {}: it is neither a SIF file nor a file system",
                           in_quotes(shown)))
        .hint("download it, and use oci-archive:FILE, docker-archive:FILE or ./FILE");
  }
  order.file_digest = image.path.substr(image.path.rfind('/') + 1);
  return order;
}

Result<ImageOrder> order_for(const ImageOrderRequest& with, const ImageLocation& image,
                             const SitePolicy& site, bool reuses) {
  using Kind = ImageLocation::Kind;
  if (image.kind == Kind::remote_file) return order_for_remote_file(with, image, reuses);
  if (image.kind == Kind::path)
    return order_for_path(with.request, with.policy, site, image, with.earlier, with.log);
  return order_for_store(with.request, with.policy, site, image, with.earlier);
}

}  // namespace

WantedImage wanted_image(const LaunchRequest& request, const ImageLocation& image,
                         const PolicyRecord& policy) {
  WantedImage wanted;
  if (request.image.empty()) return wanted;
  wanted.image = known_as(image, home_for(image));
  if (image.kind != ImageLocation::Kind::registry) return wanted;
  if (image.name.digest) wanted.digest = image.name.digest->str();
  ImportRequest import;
  if (request.platform) import.platform = *request.platform;
  import.pull = PullPolicy::missing;
  import.resolved = resolved_tag(image.name, request.resolved);
  if (import.resolved) wanted.digest = import.resolved->str();
  if (const auto known = known_image(request, policy, image.name, import))
    wanted.digest = known->str();
  return wanted;
}

Result<ImageOrder> order_image(const ImageOrderRequest& with, ImageLocation image) {
  const auto& [request, policy, site, job, earlier, named, importer, log] = with;
  if (named.plan() == NamePlan::join) return ImageOrder{.flags = TaskMessage::start_join};
  if (named.plan() == NamePlan::reuse && !named.needs_file())
    return order_for_stored(request, policy, site, named.notes(), earlier);
  const bool reuses = named.plan() == NamePlan::reuse;
  if (reuses)
    image = SPC_TRY(
        ImageLocation::parse(without_secrets(named.notes().image), policy.default_registry));
  const std::string known = known_as(image, home_for(image));
  const bool brought = importer.brings(image);
  if (brought) {
    SPC_TRY(check_importer(site));
    image.path = SPC_TRY(importer.get(reuses ? known : request.image, log));
    image.kind = ImageLocation::Kind::path;
  } else {
    SPC_TRY(check_place(image, site));
    SPC_TRY(check_trust(image, site));
  }
  const SitePolicy
      no_rules;  // what the site's own program has brought lies where that program wants it
  auto order = SPC_TRY(order_for(with, image, brought ? no_rules : site, reuses));
  if (!request.name) return order;
  const bool local =
      (order.flags & (TaskMessage::start_squashfs | TaskMessage::start_directory)) != 0;
  std::string file =
      local ? file_identity(order.file.get(), brought ? FileKind::brought : FileKind::of_user) : "";
  if (!order.file_digest.empty()) file = std::string(kFetched) + order.file_digest;
  if (reuses) {
    SPC_TRY(named.must_be_the_same(file));
  } else {
    named.will_be(known, file);
  }
  return order;
}

}  // namespace spc
