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
#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/process/user_namespace.hpp"
#include "base/text.hpp"
#include "image/store/store.hpp"
#include "launch/sources/image_order.hpp"
#include "launch/task/image_files.hpp"
#include "protocol/store_layout.hpp"
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
