#include "tool/images/obtain.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/json.hpp"
#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/process/user_namespace.hpp"
#include "base/text.hpp"
#include "image/store/store.hpp"
#include "launch/sources/image_order.hpp"
#include "launch/task/image_files.hpp"
#include "protocol/store_layout.hpp"
#include "reference/first_bytes.hpp"
#include "reference/location.hpp"
#include "reference/reference.hpp"
#include "task/entering/arrival.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

// --- local image ---

Result<OpenedImage> open_stored_image(int store, const ListedImage& image) {
  if (!image.record)
    return Error(ErrorKind::refused,
                 formatted("use image {}: permission denied for its record", image.digest.str()));
  OpenedImage opened;
  opened.name = image.names.empty() ? image.digest.str() : image.names.front().name;
  opened.settings = image.record->settings;
  if (opened.settings != kSettingsInFiles)
    opened.settings += "manifest=" + image.digest.str() + '\0';
  auto layers = SPC_TRY(open_layers(store, image));
  for (auto& layer : layers) opened.files.layers.push_back({std::move(layer), 0});
  return opened;
}

Result<OpenedImage> open_image(const Places& places, const Config& config,
                               const PullRequest& wanted) {
  const auto location = ImageLocation::parse(wanted.image, config.default_registry);
  if (location && location->kind == ImageLocation::Kind::path) {
    SPC_TRY(make_own_store(places));
    auto local = SPC_TRY(open_local_image(location->path));
    if (!local.warning.empty()) report_error("warning: " + local.warning);
    OpenedImage opened;
    opened.name = location->path;
    opened.settings = kSettingsInFiles;
    if (local.kind == LocalImage::Kind::directory) {
      opened.files.directory = std::move(local.file);
      return opened;
    }
    if (local.kind == LocalImage::Kind::squashfs) {
      opened.files.layers.push_back({std::move(local.file), local.offset});
      return opened;
    }
  }
  const auto obtained = SPC_TRY(obtain(places, config, wanted));
  return open_stored_image(obtained.store.get(), obtained.image);
}

// --- remote image ---

Result<Digest> pull_by_images_program(int /*store*/, const Config& /*config*/,
                                      const PullRequest& wanted) {
  auto [reading, writing] = SPC_TRY(make_pipe());
  Program pull{.path = own_program(kImagesProgram),
               .arguments = {"scontainer", "pull"},
               .environment = {},
               .descriptors = {{STDIN_FILENO, STDIN_FILENO},
                               {writing.get(), STDOUT_FILENO},
                               {STDERR_FILENO, STDERR_FILENO}}};
  if (wanted.pull) pull.arguments.push_back("--pull=" + std::string(name_of(*wanted.pull)));
  if (wanted.quiet) pull.arguments.emplace_back("--quiet");
  pull.arguments.push_back(wanted.image);
  Child child = SPC_TRY(Child::start(pull));
  writing.reset();
  const std::string digest = read_pipe(reading.get(), 4096);
  if (child.wait().code() != 0) return Error(ErrorKind::unavailable, "");
  return Digest::parse(trimmed(digest));
}

// --- file import ---

namespace {

using Part = SifPartition;

Result<std::string> read_bytes(int file, std::uint64_t offset, std::size_t size) {
  std::string bytes(size, '\0');
  const ssize_t got = ::pread(file, bytes.data(), size, static_cast<off_t>(offset));
  if (got < 0) return Error::from_errno(errno, "read the file");
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

/// Returns the position of the squashfs.
Result<Part> squashfs_in(int file) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return Error::from_errno(errno, "look at the file");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const std::string head =
      SPC_TRY(read_bytes(file, 0, std::max(SifTable::kHeaderBytes, sizeof(SquashfsSuper))));
  Part part{.offset = 0, .size = size};
  if (looks_like_sif(std::as_bytes(std::span(head)))) {
    const auto table = SPC_TRY(parse_sif_header(std::as_bytes(std::span(head)), size));
    const std::string contents = SPC_TRY(read_bytes(file, table.offset, table.size));
    part = SPC_TRY(
        find_sif_root(std::as_bytes(std::span(contents)), size, Platform::host().architecture));
  } else if (!looks_like_squashfs(std::as_bytes(std::span(head)))) {
    return Error(ErrorKind::invalid, "it is neither a SIF nor a squashfs file");
  }
  const std::string super = SPC_TRY(read_bytes(file, part.offset, sizeof(SquashfsSuper)));
  SPC_TRY(parse_squashfs_super(std::as_bytes(std::span(super)), part.size));
  return part;
}

/// Copies the squashfs into the store, named by its digest.
Result<Digest> copy_into_store(int store, int file, const Part& part) {
  const UniqueFd layers(::openat(store, store_layout::kLayers, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const UniqueFd copy(::openat(layers.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0444));
  if (!copy) return Error::from_errno(errno, "create a file in the user's image store");
  Sha256 hash;
  std::vector<std::byte> buffer(1 << 20);
  for (std::uint64_t at = 0; at < part.size;) {
    const auto wanted =
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), part.size - at));
    const ssize_t got = ::pread(file, buffer.data(), wanted, static_cast<off_t>(part.offset + at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, "read the file");
    if (got == 0) return Error(ErrorKind::corrupt, "the file was truncated");
    const auto piece = std::span(buffer).first(static_cast<std::size_t>(got));
    hash.update(piece);
    SPC_TRY_DURING("write into the user's image store", write_all(copy.get(), piece));
    at += static_cast<std::uint64_t>(got);
  }
  const Digest digest = hash.finish();
  if (::fsync(copy.get()) != 0)
    return Error::from_errno(errno, "write into the user's image store");
  const std::string itself = "/proc/self/fd/" + std::to_string(copy.get());
  const std::string name = store_layout::layer_file(digest);
  if (::linkat(AT_FDCWD, itself.c_str(), layers.get(), name.c_str(), AT_SYMLINK_FOLLOW) != 0 &&
      errno != EEXIST) {
    return Error::from_errno(errno, "publish a file in the user's image store");
  }
  return digest;
}

/// Returns the image's record. The settings are in the file itself, as with enroot, and are read at
/// each run.
ImageRecord record_of(const Digest& layer, const std::string& name) {
  ImageRecord record;
  record.layer_format = kLayerFormat;
  record.layers = {layer};
  record.settings = kSettingsInFiles;
  record.config = Json{{"architecture", Platform::host().architecture}, {"os", "linux"}}.str();
  record.manifest = Json{{"schemaVersion", 2}, {"squashfs", layer.str()}, {"name", name}}.str();
  return record;
}

}  // namespace

Result<void> check_image_file(int file) {
  SPC_TRY(squashfs_in(file));
  return {};
}

Result<Digest> import_file(int directory, int file, const std::string& name) {
  const Part part = SPC_TRY(squashfs_in(file));
  const auto store = SPC_TRY(ImageStore::open(directory));
  const Digest layer = SPC_TRY(copy_into_store(directory, file, part));
  const ImageRecord record = record_of(layer, name);
  const Digest digest = Sha256::of(record.manifest);
  ImageOrigins origins;
  origins.add({.registry = "",
               .repository = "",
               .user = ::geteuid(),
               .name = name,
               .platform = Platform::host().str(),
               .public_until = 0});
  SPC_TRY(store.write_origins(digest, origins));
  SPC_TRY(store.write_image(digest, record));
  return digest;
}

// --- obtain ---

Result<PullRequest> parse_wanted(const Arguments& arguments, const std::string& image) {
  PullRequest wanted;
  wanted.image = image;
  if (const auto platform = arguments.value("platform"); !platform.empty()) {
    wanted.platform = SPC_TRY_DURING("--platform", Platform::parse(platform));
  }
  if (const auto pull = arguments.value("pull"); !pull.empty()) {
    wanted.pull = parse_pull_policy(pull);
    if (!wanted.pull)
      return Error(ErrorKind::invalid, formatted("--pull: {} is not allowed", in_quotes(pull)))
          .hint(kPullPolicies);
  }
  wanted.quiet = arguments.has("quiet");
  wanted.verbose = arguments.has("verbose");
  return wanted;
}

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

ImportRequest request_for(const Places& places, const PullRequest& wanted,
                          const ImageLocation& image) {
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
                                    const PullRequest& wanted) {
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
  if (found) return found;
  return advised(found.error(), wanted.image, config.default_registry);
}

Result<ObtainedImage> obtain(const Places& places, const Config& config, const PullRequest& wanted,
                             RemotePull* pull_file) {
  auto store = SPC_TRY(make_own_store(places));
  const PullPolicy pull = wanted.pull.value_or(config.pull);
  auto there = usable(store.get(), wanted.image, wanted.platform, config.default_registry);
  const auto location = ImageLocation::parse(wanted.image, config.default_registry);
  const bool has_name = !location || location->kind == ImageLocation::Kind::registry ||
                        location->kind == ImageLocation::Kind::remote_file;
  if (!has_name) there.reset();  // use the current content of the path
  const auto reference = ImageReference::parse(wanted.image, config.default_registry);
  // An image from a file, or one named by its digest, cannot change, so no registry is asked.
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
  if (location && location->kind == ImageLocation::Kind::remote_file) {
    const Digest digest = SPC_TRY(pull_file(store.get(), config, wanted));
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
      return advised(digest.error(), wanted.image, config.default_registry);
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

// --- image archive ---

namespace {

constexpr std::size_t kMaxSettings = 4 << 20;

std::string records_of(const ImageSettings& settings) {
  std::string records;
  const auto add = [&](const char* key, const std::string& value) {
    records += key + ("=" + value) + '\0';
  };
  for (const auto* variables : {&settings.environment, &settings.assignments}) {
    for (const std::string& variable : *variables) add("env", variable);
  }
  if (!settings.workdir.empty()) add("workdir", settings.workdir);
  std::vector<std::string> entrypoint;
  if (!settings.start_script.empty()) entrypoint = {"/bin/sh", settings.start_script};
  for (const std::string& word : settings.after_scripts(std::move(entrypoint)))
    add("entrypoint", word);
  return records;
}

}  // namespace

Result<ArchiveSource> open_archive_source(const Places& places, const Config& config,
                                          const std::string& name) {
  const auto location = ImageLocation::parse(name, config.default_registry);
  if (location && location->kind == ImageLocation::Kind::path) {
    return ArchiveSource{
        SPC_TRY(open_image(places, config, {.image = name, .platform = {}, .pull = {}})), {}};
  }
  // An archive or a local storage is read now, as it may have changed.
  const bool is_local = location && location->kind != ImageLocation::Kind::registry &&
                        location->kind != ImageLocation::Kind::remote_file;
  if (is_local && places.own_store) {
    PullRequest wanted{.image = name, .platform = {}, .pull = {}};
    const auto obtained = SPC_TRY(obtain(places, config, wanted));
    auto opened = SPC_TRY(open_stored_image(obtained.store.get(), obtained.image));
    return ArchiveSource{std::move(opened), obtained.image.record->config};
  }
  const auto store = SPC_TRY(open_store(places.store));
  const auto image = SPC_TRY(find_image(store.get(), name, config.default_registry));
  auto opened = SPC_TRY(open_stored_image(store.get(), image));
  return ArchiveSource{std::move(opened), image.record->config};
}

Result<std::string> settings_of(const OpenedImage& opened, int root) {
  if (opened.settings != kSettingsInFiles) return opened.settings;
  const UniqueFd found(::memfd_create("spank-container settings", MFD_CLOEXEC));
  SPC_TRY_DURING("read the image's settings", visit_root(root, [&]() -> Result<void> {
                   ImageSettings settings;
                   read_image_files({}, settings, nullptr);
                   return write_all(found.get(), records_of(settings));
                 }));
  return read_file(found.get(), kMaxSettings);
}

Result<void> write_archive_apart(const Places& places, ArchiveSource source, int file,
                                 const ChangeSource& change) {
  SPC_TRY(make_directories(places.workspace()));
  return run_apart(
      [&]() -> Result<void> {
        SPC_TRY_DURING("mount the image", enter_user_namespace(RootMap::self));
        const auto mounted = SPC_TRY_DURING(
            "mount the image",
            mount_image(std::move(source.opened.files), places.workspace(), {.wanted = false}));
        const int root = mounted.root.get();
        if (change) SPC_TRY(change(source, root));
        const std::string settings = SPC_TRY(settings_of(source.opened, root));
        const OciImage image{.config = source.config,
                             .settings = settings,
                             .name = source.opened.name,
                             .compressed = true};
        return write_oci_archive(root, image, file);
      },
      "write the image as one layer");
}

}  // namespace spc::tool
