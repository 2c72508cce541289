// The image of a start: user-source for credentials, local image files and directories, and the
// order for the agent.

#include "launch/sources/image_order.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "launch/site/site_request.hpp"
#include "launch/sources/host_side.hpp"
#include "protocol/image_record.hpp"
#include "protocol/task.hpp"
#include "protocol/user_source.hpp"
#include "reference/first_bytes.hpp"
#include "reference/location.hpp"
#include "reference/reference.hpp"
#include "reference/request.hpp"
#include "task/entering/arrival.hpp"

namespace spc {

// --- user source ---

namespace {

constexpr char kUserSource[] = "user-source";

/// Answers the first request of `import` if the program cannot be started. Reads the request first:
/// otherwise the peer would see a connection reset instead of the answer.
void answer_that_it_is_missing(int socket) {
  UserSourceMessage failed;
  static_cast<void>(::recv(socket, &failed, sizeof failed, MSG_DONTWAIT));
  failed = UserSourceMessage();
  failed.kind = UserSourceKind::failed;
  failed.error = WireError(
      Error(ErrorKind::system, "start " + own_program(kUserSource) + ": it cannot be executed")
          .hint("install spank-container on this node"));
  static_cast<void>(send_struct(socket, failed));
}

}  // namespace

void UserSource::prepare(UniqueFd socket, const ImageLocation& location,
                         const std::map<std::string, std::string>& environment,
                         std::string tracker) {
  socket_ = std::move(socket);
  tracker_ = std::move(tracker);
  location_ = location;
  environment_ = &environment;
}

Result<void> UserSource::wait_for(int agent) {
  for (;;) {
    pollfd watched[] = {{agent, POLLIN, 0}, {socket_.get(), POLLIN, 0}};
    if (::poll(watched, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return Error::from_errno(errno, "wait for the agent");
    }
    if (watched[0].revents != 0) return {};
    if ((watched[1].revents & POLLIN) != 0 && !started_) {
      // End of file is reported as readable as well.
      char byte = 0;
      if (::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) SPC_TRY(start());
    }
    socket_.reset();  // the process has it now, or no more requests are possible
  }
}

Result<void> UserSource::start() {
  started_ = true;
  if (location_.kind == ImageLocation::Kind::podman && elsewhere_) {
    return elsewhere_(socket_.get(), location_.canonical());
  }
  std::vector<std::string> environment;
  for (const auto& [name, value] : *environment_) environment.push_back(name + "=" + value);
  if (!tracker_.empty()) environment.push_back(std::string(kTrackerVariable) + "=" + tracker_);
  auto started = start_user_source(socket_.get(), location_.canonical(), std::move(environment));
  if (started) {
    child_ = *std::move(started);
  } else {
    answer_that_it_is_missing(socket_.get());
  }
  return {};
}

void UserSource::stop() {
  socket_.reset();
  child_.kill();
}

// --- local image ---

namespace {

constexpr std::size_t kHead = 2048;  // bytes; contains all signatures
constexpr std::size_t kTarBlock = 512;

using Bytes = std::span<const std::byte>;

bool has_at(Bytes head, std::size_t offset, std::string_view text) {
  return head.size() >= offset + text.size() &&
         std::memcmp(head.data() + offset, text.data(), text.size()) == 0;
}

/// Returns whether the head is the first block of a tar archive, old formats included: its checksum
/// is correct.
bool looks_like_tar(Bytes head) {
  if (head.size() < kTarBlock) return false;
  if (has_at(head, 257, "ustar")) return true;
  constexpr std::size_t kSumAt = 148;
  constexpr std::size_t kSumBytes = 8;
  unsigned sum = 0;
  for (std::size_t i = 0; i < kTarBlock; ++i) {
    sum += i >= kSumAt && i < kSumAt + kSumBytes ? unsigned{' '} : static_cast<unsigned>(head[i]);
  }
  const std::string text(reinterpret_cast<const char*>(head.data()) + kSumAt, kSumBytes);
  const char* const digits = text.c_str();
  char* end = nullptr;
  return std::strtoul(digits, &end, 8) == sum && end != digits && head[0] != std::byte{0};
}

/// Returns whether the head has the super block of ext2, ext3, ext4 or EROFS.
bool looks_like_file_system(Bytes head) {
  return has_at(head, 1080, "\x53\xef") || has_at(head, 1024, "\xe2\xe1\xf5\xe0");
}

bool looks_like_archive(Bytes head) {
  constexpr std::array<std::string_view, 4> kCompressed{"\x1f\x8b", "\x28\xb5\x2f\xfd",
                                                        "\xfd"
                                                        "7zXZ",
                                                        "BZh"};
  return looks_like_tar(head) ||
         std::any_of(kCompressed.begin(), kCompressed.end(),
                     [&](std::string_view magic) { return has_at(head, 0, magic); });
}

constexpr char kRecipe[] = "a recipe of an image";

/// Returns the kind of a file that users name by mistake.
const char* name_of_content(Bytes head) {
  if (head.empty()) return "an empty file";
  if (has_at(head, 0,
             "\x7f"
             "ELF"))
    return "a program";
  if (has_at(head, 0, "version https://git-lfs")) return "a Git LFS pointer, not the file itself";
  if (has_at(head, 0, "#!")) return "a script";
  if (has_at(head, 0, "PK\3\4")) return "a zip archive";
  if (has_at(head, 0, "Bootstrap:") || has_at(head, 0, "FROM ")) return kRecipe;
  return "no image";
}

Error not_an_image(const std::string& path, const std::string& what) {
  return Error(ErrorKind::invalid, formatted("open image {}: it is {}", in_quotes(path), what))
      .hint(what == kRecipe ? "scontainer build -o app.sif -f " + printable(path) + " ."
                            : "an image is a squashfs (.sqsh), a SIF file, an ext4 or EROFS file "
                              "system, a tar archive or a directory");
}

Result<std::string> read_at(int file, std::uint64_t offset, std::size_t size,
                            const std::string& path) {
  std::string bytes(size, '\0');
  std::size_t got = 0;
  while (got < size) {
    const ssize_t count =
        ::pread(file, bytes.data() + got, size - got, static_cast<off_t>(offset + got));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error::from_errno(errno, "read image " + in_quotes(path));
    if (count == 0) break;
    got += static_cast<std::size_t>(count);
  }
  bytes.resize(got);
  return bytes;
}

Result<void> check_squashfs(int file, std::uint64_t offset, std::uint64_t end,
                            const std::string& path) {
  const std::string head = SPC_TRY(read_at(file, offset, sizeof(SquashfsSuper), path));
  SPC_TRY(parse_squashfs_super(std::as_bytes(std::span(head)), end - offset));
  return {};
}

Result<std::uint64_t> squashfs_in_sif(int file, Bytes head, std::uint64_t size,
                                      const std::string& path) {
  const auto table = SPC_TRY(parse_sif_header(head, size));
  const std::string contents = SPC_TRY(read_at(file, table.offset, table.size, path));
  const auto root = SPC_TRY(
      find_sif_root(std::as_bytes(std::span(contents)), size, Platform::host().architecture));
  SPC_TRY(check_squashfs(file, root.offset, root.offset + root.size, path));
  return root.offset;
}

Result<LocalImage> look_into_file(LocalImage image, const struct stat& status,
                                  const std::string& path) {
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const std::string text = SPC_TRY(read_at(image.file.get(), 0, kHead, path));
  const Bytes head = std::as_bytes(std::span(text));
  const auto recognised = [&]() -> Result<void> {
    if (looks_like_squashfs(head)) {
      SPC_TRY(check_squashfs(image.file.get(), 0, size, path));
    } else if (looks_like_file_system(head)) {
      return {};  // its server validates it
    } else if (looks_like_sif(head)) {
      image.offset = SPC_TRY(squashfs_in_sif(image.file.get(), head, size, path));
    } else {
      image.kind = LocalImage::Kind::archive;
    }
    return {};
  };
  SPC_TRY_DURING("open image " + in_quotes(path), recognised());
  if (image.kind == LocalImage::Kind::archive && !looks_like_archive(head))
    return not_an_image(path, name_of_content(head));
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    image.warning =
        formatted("image {} is writable by others{}, who control its content", in_quotes(path),
                  (status.st_mode & S_IWOTH) != 0 ? "" : " in its group");
  }
  return image;
}

Result<LocalImage> look_into_directory(LocalImage image, const std::string& path) {
  // Check here that the user may search the directory. Inside no check follows, because the
  // container's root directory is that of the writable layer.
  if (::faccessat(image.file.get(), ".", X_OK, 0) != 0) {
    return Error::from_errno(errno, "open image " + in_quotes(path))
        .hint("it is opened with the user's permissions on the node");
  }
  if (::faccessat(image.file.get(), "oci-layout", F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
    std::string bare = path;
    while (bare.size() > 1 && bare.back() == '/') bare.pop_back();
    return Error(ErrorKind::invalid,
                 formatted("open image {}: it is an OCI image layout, not a root directory",
                           in_quotes(path)))
        .hint("use oci:" + bare);
  }
  return image;
}

const char* name_of_type(mode_t mode) {
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

Result<LocalImage> open_local_image(const std::string& path) {
  UniqueFd place(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (!place || ::fstat(place.get(), &status) != 0) {
    const int err = errno;
    auto error = Error::from_errno(err, "open image " + in_quotes(path));
    if (err == ENOENT) return std::move(error).hint("it must exist on every node of the step");
    return std::move(error).hint("it is opened with the user's permissions on the node");
  }
  const bool is_directory = S_ISDIR(status.st_mode);
  if (!is_directory && !S_ISREG(status.st_mode))
    return not_an_image(path, name_of_type(status.st_mode));

  LocalImage image;
  image.kind = is_directory ? LocalImage::Kind::directory : LocalImage::Kind::squashfs;
  const std::string again = "/proc/self/fd/" + std::to_string(place.get());
  image.file.reset(::open(again.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!image.file) {
    return Error::from_errno(errno, "open image " + in_quotes(path))
        .hint("it is opened with the user's permissions on the node");
  }
  if (!is_directory) return look_into_file(std::move(image), status, path);
  image.file = std::move(place);
  return look_into_directory(std::move(image), path);
}

std::string did_you_mean_file(const std::string& image) {
  struct stat status {};
  const bool is_there =
      image.find(':') == std::string::npos && image.find('\0') == std::string::npos &&
      ::stat(image.c_str(), &status) == 0 && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
  return is_there ? formatted("there is a file of this name here: did you mean {}?",
                              in_quotes("./" + image))
                  : "";
}

// --- image order ---

namespace {

constexpr std::string_view kFetched = "fetched:";  // prefix of a digest, in a file's identity

PullPolicy pull_of(const PolicyRecord& policy) {
  switch (policy.pull) {
    case PolicyRecord::missing: return PullPolicy::missing;
    case PolicyRecord::always: return PullPolicy::always;
    case PolicyRecord::never: return PullPolicy::never;
    default: return PullPolicy::newer;
  }
}

/// Returns the manifest in the store if it is public and no registry has to be queried.
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

/// Returns the order for an image that is in the store or that `import` will add. `earlier`: the
/// image of another task of the step, if any. `stored`: the image of a stored container. If a
/// signature policy is in effect, `import` verifies it at each start.
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
  import.meter = ::isatty(STDERR_FILENO) == 1;  // as with --pty
  if (has_name && !request.tracker.empty() && request.nodes > 1) import.step_nodes = request.nodes;
  import.registry_user = image.name.user;
  import.image = image.canonical();
  import.uid = ::geteuid();
  import.own_layers = request.name.has_value();
  order.request = import.serialize();
  return order;
}

/// Returns policy.json's transports for images that are files.
const char* transports_of(LocalImage::Kind kind) {
  switch (kind) {
    case LocalImage::Kind::squashfs: return "squashfs";
    case LocalImage::Kind::directory: return "directory";
    case LocalImage::Kind::archive: break;
  }
  return kArchiveTransports;
}

/// Returns the order for a path. An archive is imported into the store.
Result<ImageOrder> order_for_path(const LaunchRequest& request, const PolicyRecord& policy,
                                  const SitePolicy& site, const ImageLocation& image,
                                  const Digest& earlier, Log& log) {
  auto local = SPC_TRY_DURING("--container-image", open_local_image(image.path));
  if (!local.warning.empty()) log.write(LogLevel::warning, local.warning);
  SPC_TRY(check_opened_trust(local.file.get(), image.path, transports_of(local.kind), site));
  if (local.kind == LocalImage::Kind::archive)
    return order_for_store(request, policy, site, image, earlier);
  SPC_TRY(check_opened_place(local.file.get(), image.path, site));
  if (local.kind == LocalImage::Kind::squashfs)
    SPC_TRY_DURING("open image " + in_quotes(image.path),
                   refuse_fuse(local.file.get(), site.fuse_filesystems));
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

/// Returns the order for a stored container, which starts unchanged. If a signature policy is in
/// effect, `import` must first admit its original image.
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

/// Returns the order for a file of a server. In the user's cache it is a file of the user, and must
/// be neither an archive nor a directory.
Result<ImageOrder> order_for_remote_file(const ImageOrderRequest& with, ImageLocation image,
                                         bool reuses) {
  const std::string shown = image.canonical();
  // The notes of a stored container do not contain the query.
  RemoteFileRequest wanted{
      .image = with.request.image.empty() ? shown : with.request.image,
      .pull = reuses ? PullPolicy::missing : with.request.pull.value_or(pull_of(with.policy)),
      .since = with.request.since,
      .stored = {}};
  const std::string& file = with.named.notes().file;
  if (reuses && file.starts_with(kFetched))
    wanted.stored = "sha256:" + file.substr(kFetched.size());
  image.path = SPC_TRY(bring_remote_file(wanted, with.job, with.log));
  auto order = SPC_TRY_OR(.during_pull(shown), order_for_path(with.request, with.policy, with.site,
                                                              image, with.earlier, with.log));
  if (order.from != ContainerSpec::From::file) {
    return Error(ErrorKind::invalid, "it is neither a SIF file nor a file system")
        .during_pull(shown)
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
  wanted.image = known_as(image);
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
  const std::string known = known_as(image);
  const bool brought = importer.brings(image);
  if (brought) {
    SPC_TRY(check_importer(site));
    image.path = SPC_TRY(importer.get(reuses ? known : request.image, log));
    image.kind = ImageLocation::Kind::path;
  } else {
    SPC_TRY(check_place(image, site));
    SPC_TRY(check_trust(image, site));
  }
  const SitePolicy no_rules;  // the site's importer chooses where its files are
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
