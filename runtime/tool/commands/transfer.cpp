#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>

#include "base/bytes.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/new_file.hpp"
#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/process/user_namespace.hpp"
#include "config/config.hpp"
#include "export/archive.hpp"
#include "export/push.hpp"
#include "export/write_image.hpp"
#include "image/store/store.hpp"
#include "launch/sources/image_order.hpp"
#include "local/image_files.hpp"
#include "local/remote_file.hpp"
#include "reference/first_bytes.hpp"
#include "reference/location.hpp"
#include "reference/reference.hpp"
#include "registry/client.hpp"
#include "registry/credentials.hpp"
#include "tool/build/build_step.hpp"
#include "tool/command.hpp"
#include "tool/containers/job_step.hpp"
#include "tool/images/obtain.hpp"
#include "tool/images/stored_images.hpp"
#include "tool/surroundings/places.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

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
Result<Digest> copy_into_store(const ImageStore& store, int file, const Part& part) {
  const UniqueFd copy = SPC_TRY(store.new_layer());
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
  SPC_TRY(store.publish_layer(copy.get(), digest));
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

/// Returns ErrorKind::invalid with the reason unless the file is a squashfs or a SIF.
Result<void> check_image_file(int file) {
  SPC_TRY(squashfs_in(file));
  return {};
}

/// Imports `file`, a squashfs or a SIF, into the caller's own store. `store` is the store's
/// directory. Returns the digest of the image's record. `name`: the displayed name. The image gets
/// no entry in names/.
Result<Digest> import_file(int directory, int file, const std::string& name) {
  const Part part = SPC_TRY(squashfs_in(file));
  const auto store = SPC_TRY(ImageStore::open(directory));
  const Digest layer = SPC_TRY(copy_into_store(store, file, part));
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

}  // namespace

// --- pull ---

namespace {

Result<FetchedFile> fetch_into(const Config& config, const PullRequest& wanted, int file) {
  const auto remote = SPC_TRY(RemoteFile::parse(wanted.image, config.default_registry));
  const std::string shown = without_secrets(wanted.image);
  PullDisplay display(shown, wanted.quiet);
  const auto http = SPC_TRY(HttpClient::create(
      {.stall = std::chrono::seconds(config.stall_timeout), .proxies = proxies_of_user(config)}));
  RemoteAccess access{.http = *http, .log = display, .config = config, .ask_user = {}, .meter = {}};
  access.meter = [&](std::uint64_t done, std::uint64_t total) { display.meter(done, total); };
  if (remote.image) {
    access.ask_user = [&] {
      return find_credentials(CredentialPlaces::of_user(), *remote.image, remote.image->user,
                              display);
    };
  }
  const std::string step = "pull " + in_quotes(shown);
  const auto fetched = SPC_TRY_DURING(step, fetch_remote_file(access, remote, file));
  SPC_TRY_DURING(step, check_image_file(file));
  return fetched;
}

Result<Digest> obtain_remote_image(int directory, const Config& config, const PullRequest& wanted) {
  const UniqueFd file(::openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file) return Error::from_errno(errno, "create a file in the user's image store");
  SPC_TRY(fetch_into(config, wanted, file.get()));
  const std::string name = name_without_secrets(wanted.image);
  const Digest digest = SPC_TRY_DURING("pull " + in_quotes(without_secrets(name)),
                                       import_file(directory, file.get(), name));
  const auto store = SPC_TRY(ImageStore::open(directory));
  SPC_TRY(store.write_name({.name = ref_file(name),
                            .manifest = digest,
                            .asked_at = static_cast<std::int64_t>(std::time(nullptr))}));
  return digest;
}

Result<Digest> fetch_remote_image(const Config& config, const PullRequest& wanted,
                                  const std::string& path, bool replace) {
  auto file = SPC_TRY(NewFile::create(path, replace ? Replace::yes : Replace::no));
  const auto fetched = SPC_TRY(fetch_into(config, wanted, file.file()));
  SPC_TRY(file.publish());
  return fetched.digest;
}

/// Pulls into the site's shared store only, for all nodes.
Result<int> pull_into_shared_store(const Arguments& arguments) {
  const std::string pull = arguments.value("pull");
  if ((!pull.empty() && pull != "missing") || arguments.has("digest")) {
    return Error(ErrorKind::invalid, "pull --shared: takes no --digest, and no --pull but missing")
        .hint("scontainer pull --help");
  }
  const auto config = SPC_TRY(read_config(SPC_CONFIG_FILE));
  SPC_TRY(open_shared_store());  // becomes the store's owner
  for (const std::string& image : arguments.words) {
    const auto wanted = SPC_TRY(parse_wanted(arguments, image));
    const auto location = SPC_TRY(ImageLocation::parse(image, config.default_registry));
    if (location.kind == ImageLocation::Kind::remote_file)
      return Error(ErrorKind::invalid,
                   formatted("pull --shared: {}: is a file, not an image of layers",
                             in_quotes(without_secrets(image))));
    ImportRequest request;
    request.image = location.canonical();
    request.only_shared = true;
    request.uid = ::geteuid();
    request.meter = !wanted.quiet && draws_progress();
    if (wanted.platform) request.platform = *wanted.platform;
    request.pull = wanted.pull;
    PullDisplay display(request.image, wanted.quiet);
    std::puts(SPC_TRY(import_into_shared_store(request, display)).str().c_str());
  }
  return 0;
}

Result<Digest> pull_into_file(const Config& config, const PullRequest& wanted,
                              const Arguments& arguments) {
  if (!RemoteFile::is_meant(wanted.image)) {
    return Error(ErrorKind::invalid,
                 "pull --output: takes one image, oras://NAME or https://HOST/FILE")
        .hint("for other images, scontainer pull and scontainer export");
  }
  return fetch_remote_image(config, wanted, arguments.value("output"), arguments.has("force"));
}

/// Pulls several images in parallel, each in its own process. Prints the digests in the order of
/// the images. A failed image does not stop the others.
Result<int> pull_side_by_side(const Arguments& arguments) {
  constexpr std::size_t kAtOnce = 4;
  struct Pull {
    Child child;
    UniqueFd digest;
  };
  std::vector<Pull> pulls;
  int status = 0;
  const auto end_one = [&](Pull& pull) {
    const std::string digest = read_pipe(pull.digest.get(), 4096);
    if (pull.child.wait().code() != 0) status = 1;
    std::fputs(digest.c_str(), stdout);
    std::fflush(stdout);  // the next process must not write it again
  };
  std::size_t ended = 0;
  for (const std::string& image : arguments.words) {
    if (pulls.size() - ended == kAtOnce) end_one(pulls[ended++]);
    auto [reading, writing] = SPC_TRY(make_pipe());
    Pull pull{.child = {}, .digest = std::move(reading)};
    const int writing_end = writing.get();
    Arguments one = arguments;
    one.words = {image};
    const auto work = [&] {
      ::dup2(writing_end, STDOUT_FILENO);
      const auto done = run_pull(one);
      if (!done) report_error(done.error().message());
      std::fflush(stdout);
      return done ? *done : 1;
    };
    pull.child = SPC_TRY(Child::run(work, "pull an image"));
    pulls.push_back(std::move(pull));
  }
  while (ended < pulls.size()) end_one(pulls[ended++]);
  return status;
}

}  // namespace

Result<int> run_pull(const Arguments& arguments) {
  if (arguments.has("shared")) return pull_into_shared_store(arguments);
  if (arguments.words.size() > 1) {
    if (arguments.has("output")) return Error(ErrorKind::invalid, "pull --output: takes one image");
    return pull_side_by_side(arguments);
  }
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config, ::geteuid(), places.containers));
  const auto wanted = SPC_TRY(parse_wanted(arguments, arguments.words[0]));
  Digest digest;
  if (arguments.has("output")) {
    digest = SPC_TRY(pull_into_file(config, wanted, arguments));
  } else if (arguments.has("digest")) {
    if (!places.own_store) {
      return Error(
          ErrorKind::refused,
          "--digest is not available to root: the node's service user pulls root's images");
    }
    digest = SPC_TRY(image_at_source(places, config, wanted)).digest;
  } else {
    digest = places.own_store
                 ? SPC_TRY(obtain(places, config, wanted, obtain_remote_image)).image.digest
                 : SPC_TRY(pull_into_node_store(places, config, wanted));
  }
  std::puts(digest.str().c_str());
  return 0;
}

// --- import ---

Result<int> run_import(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  if (!places.own_store) {
    return Error(ErrorKind::refused,
                 "import a file: the node's store takes images from registries only")
        .hint("use the file with --container-image, or import it as a non-root user");
  }
  const auto config = SPC_TRY(read_config(places.config, ::geteuid(), places.containers));
  std::string source = arguments.words[0];
  const auto reference = SPC_TRY_DURING(
      "new name", ImageReference::parse(arguments.words[1], config.default_registry));
  const auto ref_file = reference.ref_file_name();
  if (!ref_file || reference.digest)
    return Error(ErrorKind::invalid, "new name: must be NAME[:TAG]");
  const auto directory = SPC_TRY(make_own_store(places));
  const auto store = SPC_TRY(ImageStore::open(directory.get()));

  // A file name needs no leading ./ here. A name that could also be an image means the file.
  if (::access(source.c_str(), F_OK) == 0 && source[0] != '/' && source[0] != '.')
    source = "./" + source;
  auto local = source[0] == '/' || source[0] == '.' || source[0] == '~'
                   ? open_local_image(source)
                   : Result<LocalImage>(LocalImage{});
  if (!local) return std::move(local).error().during("import " + in_quotes(source));
  Digest digest;
  if (local->file && local->kind == LocalImage::Kind::squashfs) {
    digest = SPC_TRY_DURING("import " + in_quotes(source),
                            import_file(directory.get(), local->file.get(), reference.canonical()));
  } else {
    const auto location = SPC_TRY(ImageLocation::parse(source, config.default_registry));
    struct stat status {};
    if (location.kind == ImageLocation::Kind::registry) {
      return Error(ErrorKind::invalid,
                   formatted("import {}: is the name of an image in a registry", in_quotes(source)))
          .hint("use scontainer pull");
    }
    if (location.kind == ImageLocation::Kind::path && ::stat(location.path.c_str(), &status) == 0 &&
        S_ISDIR(status.st_mode)) {
      return Error(ErrorKind::invalid, formatted("import {}: is a directory", in_quotes(source)))
          .hint("scontainer run takes directories; for an image layout use oci:DIR");
    }
    digest =
        SPC_TRY(
            obtain(places, config,
                   {.image = source, .platform = {}, .pull = {}, .quiet = arguments.has("quiet")}))
            .image.digest;
  }
  SPC_TRY(store.write_name({.name = *ref_file,
                            .manifest = digest,
                            .asked_at = static_cast<std::int64_t>(std::time(nullptr))}));
  std::puts(digest.str().c_str());
  return 0;
}

// --- export ---

namespace {

/// Returns the image's settings as files in the form that the exported file's readers expect.
/// Images imported from enroot or Apptainer already contain them. `is_changed`: by --change.
Result<std::vector<AddedFile>> files_for(ImageForm form, const ArchiveSource& source, int root,
                                         bool is_changed) {
  const std::vector<AddedFile> none;
  const bool is_sif = form == ImageForm::sif;
  if (!is_changed && (is_sif ? bool(open_in_image(root, ".singularity.d"))
                             : source.opened.settings == kSettingsInFiles))
    return none;
  const std::string settings = SPC_TRY(settings_of(source.opened, root));
  auto files =
      is_sif ? apptainer_files(settings, source.config) : enroot_files(settings, source.config);
  // A script of the image that is its entrypoint stays: it must not start itself.
  const auto entrypoint = setting_values(settings, "entrypoint");
  std::erase_if(files, [&](const AddedFile& file) {
    return std::ranges::find(entrypoint, "/" + file.path) != entrypoint.end();
  });
  return files;
}

/// Mounts the image to be exported, as the user in a new user namespace.
Result<MountedImage> mount_exported(const Arguments& arguments, const Places& places,
                                    OpenedImage& opened) {
  SPC_TRY(make_directories(places.workspace()));
  WritableLayer shown{.wanted = false};
  if (arguments.has("changes"))
    shown.directory = SPC_TRY(absolute_path(arguments.value("changes")));
  SPC_TRY_DURING("mount the image", enter_user_namespace(RootMap::self));
  return SPC_TRY_DURING("mount the image",
                        mount_image(std::move(opened.files), places.workspace(), shown));
}

/// Writes the mounted image as a new directory, with its settings as in a SIF file.
Result<void> write_directory(int root, const ArchiveSource& source, std::string path,
                             bool is_changed) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const auto added = SPC_TRY(files_for(ImageForm::sif, source, root, is_changed));
  if (::mkdir(path.c_str(), 0755) != 0) {
    return Error::from_errno(errno, "create directory " + in_quotes(path))
        .hint("name a directory that does not exist, below one that does");
  }
  const UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return Error::from_errno(errno, "open directory " + in_quotes(path));
  BuildCopy all;
  all.sources = {"."};
  all.target = "/";
  const FoundFiles files = SPC_TRY(find_sources(root, all, nullptr));
  SPC_TRY(copy_files(root, files, all, nullptr, directory.get()));
  for (const AddedFile& file : added) {
    SPC_TRY(write_file_in(directory.get(), "/" + file.path, file.text, file.mode & 07777));
  }
  return {};
}

}  // namespace

Result<int> run_export(const Arguments& arguments) {
  const std::string& name = arguments.words[0];
  const ImageTarget target = parse_image_target(arguments.words[1]);
  if (target.form == ImageForm::oci_layer)
    return Error(ErrorKind::invalid,
                 "export " + in_quotes(without_secrets(name)) +
                     ": one layer is what --container-save writes, of a job's container")
        .hint("name a FILE.tar, FILE.sif or FILE.sqsh");
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config, ::geteuid(), places.containers));
  auto source = SPC_TRY(open_archive_source(places, config, name));
  OpenedImage& opened = source.opened;
  const auto changes = arguments.values("change");
  const std::string step = "export " + in_quotes(without_secrets(name));
  if (target.form == ImageForm::squashfs && target.path.ends_with('/')) {
    const auto mounted = SPC_TRY(mount_exported(arguments, places, opened));
    SPC_TRY_DURING(step, change_settings(source, mounted.root.get(), changes));
    SPC_TRY_DURING(step,
                   write_directory(mounted.root.get(), source, target.path, !changes.empty()));
    return 0;
  }
  const Replace replace = arguments.has("force") ? Replace::yes : Replace::no;
  auto file = SPC_TRY(NewFile::create(target.path, replace));
  const auto mounted = SPC_TRY(mount_exported(arguments, places, opened));
  const int root = mounted.root.get();
  SPC_TRY_DURING(step, change_settings(source, root, changes));
  const auto write = [&]() -> Result<void> {
    if (target.form == ImageForm::oci_archive) {
      const std::string settings = SPC_TRY(settings_of(opened, root));
      return write_oci_archive(
          root, {.config = source.config, .settings = settings, .name = opened.name}, file.file());
    }
    const auto added = SPC_TRY(files_for(target.form, source, root, !changes.empty()));
    SPC_TRY(write_squashfs(root, added, file.file(), 0, own_program("layer-writer")));
    return target.form == ImageForm::sif ? make_sif(file.file(), source.config) : Result<void>();
  };
  if (const auto written = write(); !written) return file.about(written.error()).during(step);
  // The first line of a SIF makes it a program.
  if (target.form == ImageForm::sif) ::fchmod(file.file(), 0755);
  SPC_TRY(file.publish());
  return 0;
}

// --- push ---

namespace {

/// A push: its source, target and registry connection.
class Push {
 public:
  Push(const Arguments& arguments, const Places& places, const Config& config)
      : arguments_(arguments), places_(places), config_(config), image_(arguments.words[0]) {}

  Result<int> run() {
    const std::string& to = arguments_.words.back();
    const auto target = SPC_TRY_DURING("push", ImageReference::parse(to, config_.default_registry));
    if (target.digest)
      return Error(ErrorKind::invalid,
                   "push: a new name is NAME[:TAG]: its digest follows from what is pushed");
    PullDisplay display(target.canonical(), arguments_.has("quiet"));
    log_ = &display;
    http_ = SPC_TRY(HttpClient::create({.stall = std::chrono::seconds(config_.stall_timeout),
                                        .proxies = proxies_of_user(config_)}));
    auto source = open_source(target);
    if (!source)
      return std::move(source).error().during("push " + in_quotes(without_secrets(image_)));

    RegistrySession session = SPC_TRY(session_for(target));
    session.endpoints = {session.endpoints.back()};
    session.scopes = {formatted("repository:{}:pull,push", target.repository)};
    const std::string neighbour = (*source)->repository_at(target.registry);
    if (!neighbour.empty() && neighbour != target.repository)
      session.scopes.push_back(formatted("repository:{}:pull", neighbour));
    session.secret =
        SPC_TRY(find_credentials(CredentialPlaces::of_user(), target, target.user, display));
    session.asked = true;
    auto pushed =
        push_image(**source, session, target.tag,
                   [&](std::uint64_t done, std::uint64_t total) { display.meter(done, total); });
    if (!pushed)
      return std::move(pushed).error().during("push " + in_quotes(without_secrets(image_)));
    display.write(
        LogLevel::info,
        formatted(
            "pushed {}: {} of {} sent, {} blobs; {} were there, {} came from another repository",
            target.canonical(), human_bytes(pushed->sent_bytes), human_bytes(pushed->total_bytes),
            pushed->sent, pushed->there, pushed->mounted));
    std::puts(Sha256::of((*source)->manifest().text).str().c_str());
    return 0;
  }

 private:
  using Source = std::unique_ptr<PushSource>;

  Result<RegistrySession> session_for(const ImageReference& image) {
    RegistrySession session{.http = *http_,
                            .log = *log_,
                            .registry = image.registry,
                            .repository = image.repository,
                            .endpoints = endpoints_of(image, config_),
                            .config = &config_,
                            .ask_user = {}};
    session.ask_user = [this, image] {
      return find_credentials(CredentialPlaces::of_user(), image, image.user, *log_);
    };
    return session;
  }

  Result<Source> open_source(const ImageReference& target) {
    const auto location = SPC_TRY(ImageLocation::parse(image_, config_.default_registry));
    using Kind = ImageLocation::Kind;
    if (const auto changes = arguments_.values("change"); !changes.empty()) {
      const std::string lines = SPC_TRY(lines_of_changes(changes));
      if (location.kind == Kind::path || arguments_.has("flatten")) return flattened();
      return changed(lines);
    }
    if (location.kind == Kind::registry) return open_stored(target);
    if (location.kind == Kind::path) {
      const auto local = SPC_TRY(open_local_image(location.path));
      if (local.kind != LocalImage::Kind::archive) return flattened();
    }
    return whole(location);
  }

  /// Makes an image with the same layers and a changed configuration.
  Result<Source> changed(const std::string& lines) {
    if (!places_.own_store)
      return Error(ErrorKind::refused, "--change: needs the store of an ordinary user")
          .hint("run it as a non-root user");
    BuildOrder order;
    order.file = "--change";
    order.text = "FROM " + image_ + "\n" + lines;
    order.quiet = true;
    image_ = SPC_TRY(build_image(places_, config_, order, "")).str();
    auto found = SPC_TRY(find_stored());
    for (const ImageOrigin& origin : found.origins.all()) {
      const auto place = ImageLocation::parse(origin.user ? origin.name : "");
      if (place && place->kind == ImageLocation::Kind::oci_layout) return whole(*place);
    }
    return Error(ErrorKind::internal, "--change: the changed image has no layout");
  }

  /// Opens an archive or layout, with the layers that it takes from another image.
  Result<Source> whole(const ImageLocation& location) {
    auto image = SPC_TRY(user_source::LocalImage::open(location, *log_));
    const Platform wanted = SPC_TRY(platform());
    auto source = SPC_TRY(source_from(std::move(image), wanted, image_));
    const std::string& below = source->manifest().parsed.layers_of;
    if (below.empty()) return source;
    const auto origin = SPC_TRY(ImageReference::parse(below));
    origin_ = std::make_unique<RegistrySession>(SPC_TRY(session_for(origin)));
    return with_layers_of(std::move(source), *origin_);
  }

  Result<Platform> platform() const {
    const std::string text = arguments_.value("platform");
    return text.empty() ? Platform::host() : Platform::parse(text);
  }

  /// Opens the image at its origin. The store has converted layers only, and a registry needs the
  /// original blobs.
  Result<Source> open_stored(const ImageReference& target) {
    auto found = find_stored();
    if (!found) return std::move(found).error();
    if (arguments_.has("flatten")) return flattened();
    std::optional<ImageReference> from;
    bool is_local = false;
    for (const ImageOrigin& origin : found->origins.all()) {
      is_local = is_local || origin.user;
      // An image that was built here has its blobs where it was built.
      const auto place = ImageLocation::parse(origin.user ? origin.name : "");
      if (place && place->kind == ImageLocation::Kind::oci_layout) {
        auto built = whole(*place);
        if (built && Sha256::of((*built)->manifest().text) == found->digest) return built;
      }
      if (origin.registry.empty()) continue;
      if (!from || (origin.registry == target.registry && from->registry != target.registry))
        from = reference_to(origin.name);
    }
    // Users cannot read the origins of the node's public images.
    if (!from && !is_local && !found->names.empty()) from = reference_to(found->names.front().name);
    if (!from) {
      log_->write(LogLevel::warning,
                  formatted("{} is from no registry: its files are pushed as one layer",
                            in_quotes(without_secrets(image_))));
      return flattened();
    }
    origin_ = std::make_unique<RegistrySession>(SPC_TRY(session_for(*from)));
    return source_from(*origin_, found->record ? found->record->manifest : std::string(),
                       found->digest);
  }

  /// Returns the image from the caller's own store, or from the public images of the node's store.
  Result<ListedImage> find_stored() const {
    Result<ListedImage> found = Error(ErrorKind::not_found, "");
    std::vector<std::string> stores = {places_.store};
    if (places_.own_store && !arguments_.has("flatten")) stores.emplace_back(SPC_STORE_DIR);
    for (const std::string& path : stores) {
      const auto store = open_store(path);
      if (!store) continue;
      auto here = find_image(store->get(), image_, config_.default_registry);
      if (here && (here->record || !here->names.empty())) return here;
      if (!here && !found && found.error().what().empty()) found = std::move(here);
    }
    if (!found && found.error().what().empty()) {
      return Error(ErrorKind::not_found,
                   formatted("no image {} in the store", in_quotes(without_secrets(image_))))
          .hint("scontainer pull brings it there");
    }
    return found;
  }

  std::optional<ImageReference> reference_to(const std::string& name) const {
    auto reference = ImageReference::parse(name, config_.default_registry);
    return reference ? std::optional(*std::move(reference)) : std::nullopt;
  }

  Result<Source> flattened() {
    auto files = SPC_TRY(open_archive_source(places_, config_, image_));
    const auto file = SPC_TRY(user_source::temporary_file(0));
    const auto changes = arguments_.values("change");
    const auto change = [&](ArchiveSource& source, int root) {
      return change_settings(source, root, changes);
    };
    SPC_TRY(write_archive_apart(places_, std::move(files), file.get(), change));
    ImageLocation archive{
        .kind = ImageLocation::Kind::oci_archive, .name = {}, .path = {}, .reference = {}};
    archive.path = "/proc/self/fd/" + std::to_string(file.get());
    auto image = SPC_TRY(user_source::LocalImage::open(archive, *log_));
    return source_from(std::move(image), Platform::host(), image_);
  }

  const Arguments& arguments_;
  const Places& places_;
  const Config& config_;
  std::string image_;
  Log* log_ = nullptr;
  std::unique_ptr<HttpClient> http_;
  std::unique_ptr<RegistrySession> origin_;
};

}  // namespace

Result<int> run_push(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config, ::geteuid(), places.containers));
  return Push(arguments, places, config).run();
}

// --- login ---

namespace {

/// Turns off the terminal's echo during its lifetime.
class NoEcho {
 public:
  NoEcho() {
    if (::tcgetattr(STDIN_FILENO, &before_) != 0) return;
    termios silent = before_;
    silent.c_lflag &= static_cast<tcflag_t>(~ECHO);
    changed_ = ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &silent) == 0;
  }
  NoEcho(const NoEcho&) = delete;
  NoEcho& operator=(const NoEcho&) = delete;
  ~NoEcho() {
    if (changed_) ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
  }

 private:
  termios before_{};
  bool changed_ = false;
};

/// Reads one line of stdin without its end, byte by byte, so that later input stays unread.
Result<std::string> read_line() {
  std::string line;
  for (char c = 0; line.size() < 64 << 10;) {
    const ssize_t got = ::read(STDIN_FILENO, &c, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, "read from standard input");
    if (got == 0 || c == '\n') break;
    line += c;
  }
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

Result<std::string> ask(const char* prompt, bool silent) {
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  if (terminal) std::fputs(prompt, stderr);
  if (!terminal || !silent) return read_line();
  const NoEcho no_echo;
  auto line = read_line();
  std::fputs("\n", stderr);
  return line;
}

struct NamedRegistry {
  Config config;
  std::string registry;
};

Result<NamedRegistry> registry_named_in(const Arguments& arguments) {
  const auto places = Places::find();
  NamedRegistry named{.config = SPC_TRY(read_config(places ? places->config : SPC_CONFIG_FILE)),
                      .registry = {}};
  std::string_view name = arguments.words.empty() ? named.config.default_registry
                                                  : std::string_view(arguments.words[0]);
  // docker and podman accept a URL, as https://index.docker.io/v1/.
  for (const std::string_view scheme : {"https://", "http://"}) {
    if (name.starts_with(scheme))
      name = name.substr(scheme.size(), name.find('/', scheme.size()) - scheme.size());
  }
  named.registry = SPC_TRY(parse_registry(name));
  return named;
}

Result<RegistrySecret> ask_for_secret(const Arguments& arguments) {
  RegistrySecret secret;
  secret.source = "input";
  secret.username = arguments.value("username");
  const bool from_input = arguments.has("password-stdin");
  if (from_input && secret.username.empty()) {
    return Error(ErrorKind::invalid, "login: --password-stdin needs --username=USER");
  }
  if (secret.username.empty()) secret.username = SPC_TRY(ask("user name: ", false));
  secret.password =
      SecretText(SPC_TRY(from_input ? read_line() : ask("password or token: ", true)));
  if (secret.username.empty() || secret.password.empty()) {
    return Error(ErrorKind::invalid, "login: user name and password required")
        .hint("use --username=USER, and pass the password on standard input");
  }
  if (secret.username.find(':') != std::string::npos)
    return Error(ErrorKind::invalid, "login: a user name must not contain ':'");
  return secret;
}

Result<LoginCheck> try_at_registry(const NamedRegistry& named, const RegistrySecret& secret,
                                   Log& log) {
  const auto http =
      SPC_TRY(HttpClient::create({.stall = std::chrono::seconds(named.config.stall_timeout),
                                  .proxies = proxies_of_user(named.config)}));
  return check_login(*http, log, named.registry, named.config, secret);
}

}  // namespace

Result<int> run_login(const Arguments& arguments) {
  const NamedRegistry named = SPC_TRY(registry_named_in(arguments));
  const RegistrySecret secret = SPC_TRY(ask_for_secret(arguments));
  PullDisplay log(named.registry, true);
  const char* remark = "";
  if (!arguments.has("no-check")) {
    const auto check = SPC_TRY_DURING("login", try_at_registry(named, secret, log));
    if (check == LoginCheck::not_needed)
      remark = "; not checked: the registry does not require a login";
  }
  const auto place =
      SPC_TRY(store_credentials(CredentialPlaces::of_user(), named.registry, secret, log));
  std::printf("stored for %s in %s%s\n", printable(named.registry).c_str(),
              printable(place).c_str(), remark);
  return 0;
}

Result<int> run_logout(const Arguments& arguments) {
  const NamedRegistry named = SPC_TRY(registry_named_in(arguments));
  PullDisplay log(named.registry, true);
  const auto places = SPC_TRY(remove_credentials(CredentialPlaces::of_user(), named.registry, log));
  if (places.empty())
    std::printf("no credentials stored for %s\n", printable(named.registry).c_str());
  for (const std::string& place : places) {
    std::printf("removed the credentials for %s from %s\n", printable(named.registry).c_str(),
                printable(place).c_str());
  }
  return 0;
}

}  // namespace spc::tool
