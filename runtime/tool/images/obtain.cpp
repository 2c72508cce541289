#include "tool/images/obtain.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <optional>
#include <span>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/process/user_namespace.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "image/store/store.hpp"
#include "launch/sources/image_order.hpp"
#include "launch/task/image_files.hpp"
#include "protocol/image_record.hpp"
#include "protocol/import.hpp"
#include "protocol/layer.hpp"
#include "protocol/store_layout.hpp"
#include "protocol/user_source.hpp"
#include "reference/location.hpp"
#include "reference/reference.hpp"
#include "task/entering/arrival.hpp"
#include "tool/images/stored_images.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

// --- helper program ---

namespace {

constexpr int kFirst = 3;

/// In the child: leaves the caller's mount namespace. A server in it would keep its own mount, and
/// so itself, alive when the caller is killed. Outside an own user namespace, leaving is not
/// permitted and not needed.
bool leave_mount_namespace() {
  ::unshare(CLONE_NEWNS);
  ::signal(SIGPIPE, SIG_DFL);
  return true;
}

}  // namespace

Result<HelperProgram> HelperProgram::start(const std::string& path,
                                           const std::vector<std::string>& arguments,
                                           const std::vector<int>& descriptors,
                                           Environment environment) {
  if (::access(path.c_str(), X_OK) != 0) {
    return Error::from_errno(errno, "start " + in_quotes(path))
        .hint("install spank-container again");
  }
  Program program{
      .path = path, .arguments = {path}, .descriptors = {{STDERR_FILENO, STDERR_FILENO}}};
  program.arguments.insert(program.arguments.end(), arguments.begin(), arguments.end());
  for (int number = kFirst; const int descriptor : descriptors)
    program.descriptors.push_back({descriptor, number++});
  if (environment == Environment::empty) program.environment.emplace();
  program.prepare = leave_mount_namespace;
  return HelperProgram(SPC_TRY(Child::start(program)));
}

// --- import run ---

namespace {

static_assert(kImportSocket == 3 && kImportSource == 4 && kImportStore == 5 &&
                  kUserSourceSocket == 3,
              "descriptors are passed in this order");

Result<void> answer(int import, ImportMessageKind kind, const Digest& digest = {},
                    std::span<const int> passed = {}) {
  return send_struct(import, ImportMessage{.kind = kind, .digest = digest}, passed);
}

Result<void> refuse(int import, const Digest& digest, const Error& why) {
  return send_struct(
      import,
      ImportMessage{.kind = ImportMessageKind::refused, .digest = digest, .error = WireError(why)});
}

/// The agent's publisher for the caller's own store, in a child of this process.
class Publisher {
 public:
  Publisher(int store, UniqueFd import) : store_(store), import_(std::move(import)) {}

  Result<void> make(const std::string& order) {
    const auto done = order.empty() ? put() : make_layer(order);
    return done ? done : refuse(import_.get(), {}, done.error());
  }

 private:
  Result<void> make_layer(const std::string& order);
  Result<void> publish(const Digest& blob, int layer) const;
  Result<void> put();

  int store_;
  UniqueFd import_;
};

Result<void> Publisher::make_layer(const std::string& order) {
  const UniqueFd layers(
      ::openat(store_, store_layout::kLayers, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  UniqueFd file(::openat(layers.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0444));
  if (!file) {
    const int err = errno;
    auto error = Error::from_errno(err, "create a layer in the user's image store");
    if (err != EOPNOTSUPP && err != EISDIR) return error;
    return std::move(error).hint(
        "its file system does not support unnamed files (NFS): set XDG_DATA_HOME to a local "
        "directory");
  }
  auto [input, input_end] = SPC_TRY(make_pipe());
  auto [report_end, report] = SPC_TRY(socket_pair());
  auto [below, below_end] = SPC_TRY(socket_pair());
  (void)::fcntl(input_end.get(), F_SETPIPE_SZ, kLayerPipe);
  auto writer = SPC_TRY(HelperProgram::start(own_program("layer-writer"), {order},
                                             {file.get(), report.get(), below.get(), input.get()},
                                             HelperProgram::Environment::empty));
  const int ends[] = {input_end.get(), report_end.get(), below_end.get()};
  SPC_TRY(answer(import_.get(), ImportMessageKind::writer, {}, ends));
  for (UniqueFd* end : {&input, &input_end, &report, &report_end, &below, &below_end}) end->reset();
  ImportMessage message;
  SPC_TRY(receive_struct(import_.get(), message));
  message = {.kind = ImportMessageKind::ended,
             .done = static_cast<std::uint64_t>(writer.wait_status().raw())};
  const UniqueFd layer(
      ::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDONLY | O_CLOEXEC));
  if (!layer) return Error::from_errno(errno, "open a layer of the user's image store");
  file.reset();
  const int passed[] = {layer.get()};
  SPC_TRY(send_struct(import_.get(), message, passed));
  SPC_TRY(receive_struct(import_.get(), message));
  SPC_TRY(publish(message.digest, layer.get()));
  return answer(import_.get(), ImportMessageKind::published, message.digest);
}

Result<void> Publisher::publish(const Digest& blob, int layer) const {
  const std::string program = own_program("layer-verifier");
  if (::access(program.c_str(), X_OK) == 0) {
    const int code =
        SPC_TRY(HelperProgram::start(program, {}, {layer}, HelperProgram::Environment::empty))
            .wait();
    if (code != 0)
      return Error(ErrorKind::corrupt, code == 1 ? "not a layer written by the converter"
                                                 : "the layer verifier failed");
  }
  const std::string itself = "/proc/self/fd/" + std::to_string(layer);
  if (::fdatasync(layer) == 0 &&
      (::linkat(AT_FDCWD, itself.c_str(), store_, store_layout::layer_path(blob).c_str(),
                AT_SYMLINK_FOLLOW) == 0 ||
       errno == EEXIST))
    return {};
  return Error::from_errno(errno, "publish layer " + blob.str());
}

Result<void> Publisher::put() {
  ImportMessage message;
  SPC_TRY(receive_struct(import_.get(), message));
  if (message.total > ImageRecordHeader::kMaxBytes)
    return Error(ErrorKind::invalid, "write into the store: it is too large");
  std::string bytes;
  for (ImportBytes piece{}; bytes.size() < message.total;) {
    SPC_TRY(receive_struct(import_.get(), piece));
    bytes.append(piece.bytes,
                 std::min<std::size_t>(sizeof piece.bytes, message.total - bytes.size()));
  }
  OwnStoreKeeper keeper(store_);
  std::optional<std::uint32_t> uid;
  if (message.kind == ImportMessageKind::grant) uid = static_cast<std::uint32_t>(message.done);
  SPC_TRY(message.kind == ImportMessageKind::record ? keeper.publish_record(message.digest, bytes)
                                                    : keeper.set_name(message.digest, uid, bytes));
  return answer(import_.get(), ImportMessageKind::obeyed, message.digest);
}

/// One run of `import` with the services that it needs from this process.
class ImportRun {
 public:
  ImportRun(int store, std::string image, PullDisplay& display)
      : store_(store), image_(std::move(image)), display_(display) {}

  Result<void> start(const ImportRequest& request);
  Result<Digest> serve();
  [[nodiscard]] const std::string& config() const { return image_config_; }

 private:
  Result<void> on_message();
  Result<void> on_question();
  Result<void> start_publisher(const std::string& order);
  Result<void> evict(const Digest& blob);

  int store_;
  std::string image_;
  std::string image_config_;
  PullDisplay& display_;
  UniqueFd socket_;
  UniqueFd questions_;
  HelperProgram import_;
  HelperProgram user_source_;
  std::vector<Child> publishers_;
  std::optional<Result<Digest>> outcome_;
};

Result<void> ImportRun::start(const ImportRequest& request) {
  if (!request.only_shared && ::faccessat(store_, store_layout::kLayers, F_OK, 0) != 0)
    return Error::from_errno(errno, "open the user's image store");
  auto [ours, theirs] = SPC_TRY(socket_pair());
  auto [questions, source] = SPC_TRY(socket_pair());
  const std::string wishes = request.serialize();
  SPC_TRY(send_message(questions.get(), std::as_bytes(std::span(wishes)), {}));
  import_ =
      SPC_TRY(HelperProgram::start(own_program("import"), {}, {theirs.get(), source.get(), store_},
                                   HelperProgram::Environment::ours));  // for its proxy variables
  socket_ = std::move(ours);
  questions_ = std::move(questions);
  return {};
}

Result<Digest> ImportRun::serve() {
  while (!outcome_) {
    std::vector<pollfd> watched{{.fd = socket_.get(), .events = POLLIN}};
    if (questions_) watched.push_back({.fd = questions_.get(), .events = POLLIN});
    if (::poll(watched.data(), watched.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return Error::from_errno(errno, "wait for the image");
    }
    if (questions_ && watched[1].revents != 0) SPC_TRY(on_question());
    std::erase_if(publishers_, [](Child& one) { return one.try_wait().has_value(); });
    if (watched[0].revents != 0) SPC_TRY(on_message());
  }
  return *std::move(outcome_);
}

Result<void> ImportRun::on_message() {
  ImportMessage message;
  auto descriptors = receive_struct(socket_.get(), message, 1);
  if (!descriptors) {
    return Error(ErrorKind::unavailable,
                 formatted("pull {}: import exited unexpectedly", in_quotes(image_)))
        .hint("try again; run scontainer doctor to find the reason");
  }
  switch (message.kind) {
    case ImportMessageKind::progress:
      display_.write(LogLevel::info, message.text.view());
      return {};
    case ImportMessageKind::warning:
      display_.write(LogLevel::warning, message.text.view());
      return {};
    case ImportMessageKind::meter: display_.meter(message.done, message.total); return {};
    case ImportMessageKind::config:
      if (!descriptors->empty())
        image_config_ =
            SPC_TRY(read_file(descriptors->front().get(), ImageRecordHeader::kMaxBytes));
      return {};
    case ImportMessageKind::object: return start_publisher(message.text.str());
    case ImportMessageKind::evict: return evict(message.digest);
    case ImportMessageKind::done: outcome_.emplace(message.digest); return {};
    case ImportMessageKind::failed: outcome_.emplace(message.error.error()); return {};
    default: return Error(ErrorKind::internal, "unexpected message from import");
  }
}

/// Handles the first request of `import` to the user's side: from then on `user-source` answers.
Result<void> ImportRun::on_question() {
  const std::string program = own_program("user-source");
  if (::access(program.c_str(), X_OK) == 0) {
    user_source_ = SPC_TRY(HelperProgram::start(program, {image_}, {questions_.get()},
                                                HelperProgram::Environment::ours));
  }
  questions_.reset();
  return {};
}

Result<void> ImportRun::start_publisher(const std::string& order) {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const auto work = [&] {
    theirs.reset();
    return Publisher(store_, std::move(ours)).make(order) ? 0 : 1;
  };
  publishers_.push_back(SPC_TRY(Child::run(work, "write into the user's image store")));
  const int passed[] = {theirs.get()};
  return answer(socket_.get(), ImportMessageKind::object_socket, {}, passed);
}

Result<void> ImportRun::evict(const Digest& blob) {
  const auto removed = remove_layer(store_, blob);
  if (!removed) return refuse(socket_.get(), blob, removed.error());
  return *removed
             ? answer(socket_.get(), ImportMessageKind::obeyed, blob)
             : refuse(socket_.get(), blob, Error(ErrorKind::unavailable, "the layer is in use"));
}

}  // namespace

Result<Digest> import_into_own_store(int store, const ImportRequest& request,
                                     PullDisplay& display) {
  ImportRun run(store, request.image, display);
  SPC_TRY(run.start(request));
  return run.serve();
}

Result<SourceImage> look_at_source(int store, const ImportRequest& request, PullDisplay& display) {
  ImportRun run(store, request.image, display);
  SPC_TRY(run.start(request));
  const Digest digest = SPC_TRY(run.serve());
  return SourceImage{digest, run.config()};
}

Result<Digest> import_into_shared_store(const ImportRequest& request, PullDisplay& display) {
  const UniqueFd no_store(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  return import_into_own_store(no_store.get(), request, display);
}

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
  request.user_containers = places.containers;
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
