// Image files of servers: download, the user's cache of them, and its look-up for a step.

#include "local/remote_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <thread>
#include <utility>

#include "base/bytes.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/json.hpp"
#include "base/unique_fd.hpp"
#include "reference/location.hpp"
#include "registry/client.hpp"
#include "registry/manifest.hpp"

namespace spc {

// --- fetch file ---

namespace {

/// Sink that writes into a file and computes its digest.
class FileSink final : public FetchSink {
 public:
  FileSink(int file, const std::function<void(std::uint64_t)>& meter)
      : file_(file), meter_(meter) {}
  HttpHandler::Take take(std::span<const std::byte> bytes) override {
    hash_.update(bytes);
    if (auto written = write_all(file_, bytes); !written) {
      failed_ = std::move(written).error();
      return HttpHandler::Take::stop;
    }
    size_ += bytes.size();
    if (meter_) meter_(size_);
    return HttpHandler::Take::taken;
  }
  [[nodiscard]] const std::optional<Error>& failed() const { return failed_; }
  FetchedFile finish() {
    return {.digest = hash_.finish(), .size = size_, .media_type = {}, .validator = {}};
  }

 private:
  int file_;
  const std::function<void(std::uint64_t)>& meter_;
  Sha256 hash_;
  std::uint64_t size_ = 0;
  std::optional<Error> failed_;
};

}  // namespace

Result<FetchedFile> fetch_file(RegistrySession& session, const FetchRequest& request, int file,
                               const std::function<void(std::uint64_t)>& meter) {
  FileSink sink(file, meter);
  Fetch fetch(session, request, sink);
  fetch.start();
  while (!fetch.finished()) {
    SPC_TRY(session.http.wait(std::chrono::milliseconds(100)));
    if (sink.failed()) return Error(*sink.failed()).during("keep " + request.what);
    fetch.advance();
  }
  const auto head = SPC_TRY(fetch.result());
  FetchedFile fetched = sink.finish();
  fetched.media_type = std::string(head.header("content-type"));
  for (const char* name : {"last-modified", "etag"}) {
    if (const auto value = head.header(name); !value.empty()) fetched.validator = Sha256::of(value);
  }
  return fetched;
}

// --- file cache ---

namespace {

constexpr std::int64_t kDay = 86400;
constexpr std::int64_t kForgotten = 60 * kDay;
constexpr char kUnfinished[] = "unfinished";

std::string file_of(const std::string& text) { return Sha256::of(text).hex(); }

Result<void> make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return Error::from_errno(errno, "make directory " + in_quotes(path))
      .hint("set XDG_CACHE_HOME to a directory for fetched files");
}

}  // namespace

Result<KeptFiles> KeptFiles::open(const std::string& cache) {
  KeptFiles files;
  files.directory_ = cache + "/spank-container/files";
  for (const std::string& path :
       {cache, cache + "/spank-container", files.directory_, files.directory_ + "/names"}) {
    SPC_TRY(make_directory(path));
  }
  return files;
}

std::optional<std::string> KeptFiles::find(const Digest& digest) const {
  std::string path = directory_ + "/" + digest.hex();
  const timespec used[] = {{.tv_sec = 0, .tv_nsec = UTIME_NOW},
                           {.tv_sec = 0, .tv_nsec = UTIME_OMIT}};
  if (::utimensat(AT_FDCWD, path.c_str(), used, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  return path;
}

std::optional<NamedImage> KeptFiles::known(const std::string& text) const {
  auto named = read_named_image(AT_FDCWD, directory_ + "/names/" + file_of(text), ::geteuid());
  return named && named->name == file_of(text) && find(named->manifest) ? named : std::nullopt;
}

Result<void> KeptFiles::remember(const std::string& text, NamedImage named) const {
  named.name = file_of(text);
  auto file = SPC_TRY(NewFile::create(directory_ + "/names/" + named.name, Replace::yes));
  SPC_TRY(write_all(file.file(), named.str()));
  return file.publish();
}

Result<NewFile> KeptFiles::create() const {
  return NewFile::create(directory_ + "/" + kUnfinished, Replace::yes);
}

Result<std::string> KeptFiles::keep(NewFile& file, const Digest& digest) const {
  file.will_be(digest.hex());
  SPC_TRY(file.publish());
  return directory_ + "/" + digest.hex();
}

void KeptFiles::forget_old() const {
  const std::int64_t now = std::time(nullptr);
  for (const std::string& path : {directory_, directory_ + "/names"}) {
    for (DirectoryReader files(path); files.next();) {
      struct stat status {};
      if (::fstatat(files.descriptor(), files.c_name(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
          !S_ISREG(status.st_mode))
        continue;
      const std::int64_t age = now - std::max(status.st_atim.tv_sec, status.st_mtim.tv_sec);
      const bool is_unfinished = files.name().starts_with('.') && age > kDay;
      if (is_unfinished || age > kForgotten) ::unlinkat(files.descriptor(), files.c_name(), 0);
    }
  }
}

UniqueFd KeptFiles::lock_file(const std::string& text) const {
  const std::string path = directory_ + "/names/" + file_of(text) + ".lock";
  return UniqueFd(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
}

FetchLock FetchLock::wait_for(const KeptFiles& files, const std::string& text,
                              std::chrono::seconds patience) {
  FetchLock lock;
  lock.file_ = files.lock_file(text);
  struct timespec said {};
  auto heard = std::chrono::steady_clock::now();
  while (lock.file_ && ::flock(lock.file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    struct stat status {};
    const auto now = std::chrono::steady_clock::now();
    if (::fstat(lock.file_.get(), &status) != 0) break;
    if (status.st_mtim.tv_sec != said.tv_sec) heard = now;
    said = status.st_mtim;
    if (now - heard > patience) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  lock.goes_on();
  return lock;
}

void FetchLock::goes_on() const {
  const timespec now[] = {{.tv_sec = 0, .tv_nsec = UTIME_NOW}, {.tv_sec = 0, .tv_nsec = UTIME_NOW}};
  if (file_) ::futimens(file_.get(), now);
}

// --- remote file ---

namespace {

constexpr std::string_view kOras = "oras://";
constexpr std::string_view kHttps = FileUrl::kScheme;
constexpr char kManifestType[] = "application/vnd.oci.image.manifest.v1+json";
constexpr char kSifLayer[] = "application/vnd.sylabs.sif.layer.v1.sif";
constexpr std::size_t kMaxManifest = 4 << 20;
constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 42;

/// The only file of an artifact.
struct Artifact {
  Digest digest;
  std::uint64_t size = 0;
};

Result<Artifact> artifact_in(const std::string& manifest, const std::string& what) {
  const Json document = SPC_TRY(parse_json_object(manifest, what));
  const Json::Array& layers = *SPC_TRY_DURING(what, document.list("layers"));
  const auto type_of = [](const Json& value) {
    const Json* const type = value.is_object() ? value.find("mediaType") : nullptr;
    return type == nullptr ? std::string() : type->as_text();
  };
  const Json* found = nullptr;
  for (const Json& layer : layers) {
    if (type_of(layer) == kSifLayer || layers.size() == 1) found = &layer;
  }
  const Json* config = document.find("config");
  const bool is_image = config != nullptr && config->is_object() &&
                        type_of(*config).find("container.image") != std::string::npos;
  if (found == nullptr || !found->is_object() || (is_image && type_of(*found) != kSifLayer)) {
    return Error(ErrorKind::invalid, what + ": is not an artifact of one file")
        .hint("for a container image use docker://");
  }
  Artifact artifact;
  const auto digest = SPC_TRY_DURING(what, found->text("digest"));
  artifact.digest = SPC_TRY_DURING(what, Digest::parse(digest.value_or("")));
  artifact.size = SPC_TRY_DURING(what, found->number("size")).value_or(0);
  return artifact;
}

Result<Artifact> ask_artifact(RegistrySession& session, const ImageReference& image) {
  const std::string what = "manifest " + in_quotes(image.canonical());
  const UniqueFd document(::memfd_create("spank-container manifest", MFD_CLOEXEC));
  const auto manifest = SPC_TRY(fetch_file(session,
                                           {.path = "manifests/" + image.tag_or_digest(),
                                            .what = what,
                                            .accept = kManifestType,
                                            .max_size = kMaxManifest,
                                            .upload = {}},
                                           document.get()));
  if (image.digest && manifest.digest != *image.digest)
    return Error(ErrorKind::corrupt, what + ": does not match its digest");
  return artifact_in(SPC_TRY(read_file(document.get(), kMaxManifest)), what);
}

Result<void> check_size(std::uint64_t size, std::uint64_t limit) {
  if (limit == 0 || size <= limit) return {};
  return Error(ErrorKind::refused,
               formatted("the file has {} bytes; this site allows {}", size, limit))
      .hint("ask the administrator about max_image_bytes in config.toml");
}

Result<FetchedFile> fetch_artifact(RegistrySession& session, const RemoteAccess& access,
                                   const ImageReference& image, int file) {
  const Artifact artifact = SPC_TRY(ask_artifact(session, image));
  SPC_TRY(check_size(artifact.size, access.config.max_image_bytes));
  const std::string name = "file " + artifact.digest.str();
  const auto fetched =
      SPC_TRY(fetch_file(session,
                         {.path = "blobs/" + artifact.digest.str(),
                          .what = name,
                          .accept = {},
                          .exact_size = artifact.size,
                          .upload = {}},
                         file, [&](std::uint64_t done) { access.meter(done, artifact.size); }));
  if (fetched.digest != artifact.digest) {
    return Error(ErrorKind::corrupt, name + ": does not match its digest")
        .hint("the registry or a proxy changed it");
  }
  return fetched;
}

RegistrySession session_for(const RemoteAccess& access, const RemoteFile& wanted) {
  RegistrySession session{
      .http = access.http, .log = access.log, .registry = {}, .repository = {}, .endpoints = {}};
  if (wanted.image) {
    session.registry = wanted.image->registry;
    session.repository = wanted.image->repository;
    session.endpoints = endpoints_of(*wanted.image, access.config);
    session.config = &access.config;
    session.ask_user = access.ask_user;
    session.user_first = !wanted.image->user.empty();
    return session;
  }
  const RegistryConfig& server = access.config.registry(wanted.host);
  session.registry = wanted.host;
  session.repository = "file";
  session.is_web_server = true;
  session.asked = true;
  RegistryEndpoint endpoint;
  endpoint.name = wanted.host;
  endpoint.base_url = (server.insecure ? "http://" : "https://") + wanted.host;
  endpoint.tls = tls_of(server);
  session.endpoints.push_back(std::move(endpoint));
  return session;
}

/// Returns the file's name for messages, without the query, which may contain a key.
std::string shown(const RemoteFile& wanted) {
  const std::string bare = wanted.url.substr(0, wanted.url.find('?'));
  return "file " + in_quotes(bare.ends_with('/') ? bare : bare.substr(bare.rfind('/') + 1));
}

FetchRequest request_for(const RegistrySession& session, const RemoteFile& wanted) {
  const std::string url =
      session.endpoints.back().base_url + wanted.url.substr(kHttps.size() + wanted.host.size());
  return {.path = {},
          .what = shown(wanted),
          .accept = {},
          .max_size = kMaxFile,
          .upload = {},
          .url = url};
}

}  // namespace

bool RemoteFile::is_meant(std::string_view text) {
  return text.starts_with(kOras) || text.starts_with(kHttps);
}

Result<RemoteFile> RemoteFile::parse(std::string_view text, std::string_view default_registry) {
  RemoteFile file{.text = std::string(text), .image = {}, .url = {}, .host = {}, .digest = {}};
  if (text.starts_with(kOras)) {
    file.image = SPC_TRY(ImageReference::parse(text.substr(kOras.size()), default_registry));
    return file;
  }
  auto at_server = SPC_TRY(FileUrl::parse(text));
  if (origin_of(at_server.url).empty())
    return Error(ErrorKind::invalid, "image: is not a URL of a file").hint("https://HOST/PATH");
  file.url = std::move(at_server.url);
  file.host = std::move(at_server.host);
  file.digest = at_server.digest;
  return file;
}

Result<FetchedFile> fetch_remote_file(const RemoteAccess& access, const RemoteFile& wanted,
                                      int file) {
  RegistrySession session = session_for(access, wanted);
  if (wanted.image) return fetch_artifact(session, access, *wanted.image, file);
  FetchRequest request = request_for(session, wanted);
  if (access.config.max_image_bytes != 0) request.max_size = access.config.max_image_bytes;
  const auto fetched = SPC_TRY(
      fetch_file(session, request, file, [&](std::uint64_t done) { access.meter(done, 0); }));
  if (wanted.digest && fetched.digest != *wanted.digest) {
    return Error(ErrorKind::corrupt, formatted("{}: has digest {}, not the one in the URL",
                                               request.what, fetched.digest.str()));
  }
  return fetched;
}

Result<RemoteVersion> ask_version(const RemoteAccess& access, const RemoteFile& wanted) {
  RegistrySession session = session_for(access, wanted);
  RemoteVersion version{.digest = wanted.digest, .validator = {}};
  if (wanted.image) {
    version.digest = SPC_TRY(ask_artifact(session, *wanted.image)).digest;
    return version;
  }
  FetchRequest request = request_for(session, wanted);
  request.head = true;
  request.once = true;  // without a response the file is fetched
  const UniqueFd nothing(::memfd_create("spank-container file", MFD_CLOEXEC));
  version.validator = SPC_TRY(fetch_file(session, request, nothing.get())).validator;
  return version;
}

// --- cached fetch ---

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kBetweenLines{10};
// delay until a node sees another node's write on a shared file system
constexpr std::chrono::seconds kUnseen{90};

std::int64_t now() { return std::time(nullptr); }

/// Checks the site's rules for servers.
Result<void> check_rules(const ImageLocation& image, const Config& config) {
  const std::string& host = image.name.registry;
  SPC_TRY(config.check_registry(host));
  if (!config.registry(host).require_digest || image.name.digest) return {};
  return Error(ErrorKind::refused,
               formatted("this site allows images from {} by digest only", in_quotes(host)))
      .hint("oras://NAME@sha256:HEX, https://HOST/FILE#sha256=HEX");
}

bool is_same(const NamedImage& known, const RemoteVersion& version) {
  return version.digest ? *version.digest == known.manifest
                        : version.validator && known.is(*version.validator);
}

/// One bring_file(): cache look-up, query and fetch.
class Bringer {
 public:
  /// `name`: key in the cache, the same for all spellings of the image; contains the whole URL.
  Bringer(const BroughtFile& wanted, std::string name, const Config& config,
          const RemoteFile& remote, RemoteAccess& access, const KeptFiles& files)
      : wanted_(wanted),
        name_(std::move(name)),
        config_(config),
        remote_(remote),
        access_(access),
        files_(files) {}

  Result<std::string> bring(bool by_digest) {
    if (wanted_.stored) {
      if (auto path = files_.find(*wanted_.stored)) return *std::move(path);
    }
    if (remote_.digest) {
      if (auto path = files_.find(*remote_.digest)) return *std::move(path);
    }
    const PullPolicy pull = wanted_.pull.value_or(config_.pull);
    auto known = files_.known(name_);
    if (known &&
        (by_digest || !asks_anyway(pull) || (pull != PullPolicy::always && is_fresh(*known))))
      return path_of(*known);
    if (pull == PullPolicy::never) {
      return Error(ErrorKind::not_found, "it is not among the fetched files")
          .hint("drop --container-pull=never");
    }
    return known ? look_again(*std::move(known)) : fetch({});
  }

 private:
  [[nodiscard]] bool is_fresh(const NamedImage& known) const {
    return TagAge{.asked_at = known.asked_at, .now = now()}.is_fresh(
        config_.tag_ttl, config_.job_tag_ttl, wanted_.since);
  }

  [[nodiscard]] Result<std::string> path_of(const NamedImage& known) const {
    if (auto path = files_.find(known.manifest)) return *std::move(path);
    return Error(ErrorKind::not_found, "the fetched file was removed meanwhile");
  }

  Result<std::string> look_again(NamedImage known) {
    const auto version = ask_version(access_, remote_);
    if (version && is_same(known, *version)) {
      known.asked_at = now();
      SPC_TRY(files_.remember(name_, known));
      return path_of(known);
    }
    // Some web servers do not answer HEAD: fetch the file.
    auto fetched =
        version || !remote_.image ? fetch(known.manifest) : Result<std::string>(version.error());
    if (fetched || fetched.error().kind() != ErrorKind::unavailable ||
        wanted_.pull == PullPolicy::always)
      return fetched;
    access_.log.write(LogLevel::warning,
                      fetched.error().message() + "; using the file that was fetched before");
    return path_of(known);
  }

  /// Fetches the file. `before`: digest of the outdated version.
  Result<std::string> fetch(const std::optional<Digest>& before) {
    const std::int64_t begin = now();
    const auto lock =
        FetchLock::wait_for(files_, name_, std::chrono::seconds(config_.stall_timeout) + kUnseen);
    const auto known = files_.known(name_);
    // another step or node has fetched it meanwhile
    if (known && known->asked_at >= begin && known->manifest != before) return path_of(*known);
    files_.forget_old();
    auto file = SPC_TRY(files_.create());
    const std::string shown = without_secrets(wanted_.image);
    const auto began = Clock::now();
    auto said = began;
    std::uint64_t received = 0;
    access_.meter = [&](std::uint64_t done, std::uint64_t total) {
      received = done;
      if (Clock::now() - said < kBetweenLines) return;
      said = Clock::now();
      lock.goes_on();
      access_.log.write(LogLevel::info,
                        formatted("pulling {}: {}", shown,
                                  total == 0 ? human_bytes(done) : part_of_bytes(done, total)));
    };
    const auto fetched = fetch_remote_file(access_, remote_, file.file());
    if (!fetched) return file.about(fetched.error());
    if (said != began) {
      const auto seconds = std::chrono::ceil<std::chrono::seconds>(Clock::now() - began).count();
      access_.log.write(LogLevel::info,
                        formatted("pulled {}: {} in {} s", shown, human_bytes(received), seconds));
    }
    auto path = SPC_TRY(files_.keep(file, fetched->digest));
    NamedImage named{.name = {}, .manifest = fetched->digest, .asked_at = now()};
    if (fetched->validator) named.indexes.push_back(*fetched->validator);
    SPC_TRY(files_.remember(name_, std::move(named)));
    return path;
  }

  const BroughtFile& wanted_;
  const std::string name_;
  const Config& config_;
  const RemoteFile& remote_;
  RemoteAccess& access_;
  const KeptFiles& files_;
};

}  // namespace

Result<std::string> bring_file(
    const BroughtFile& wanted, const Config& config, Log& log,
    const std::function<Result<std::optional<RegistrySecret>>(const ImageReference&)>& ask_user) {
  const auto image = SPC_TRY(ImageLocation::parse(wanted.image, config.default_registry));
  SPC_TRY(check_rules(image, config));
  const auto remote = SPC_TRY(RemoteFile::parse(wanted.image, config.default_registry));
  const auto files = SPC_TRY(KeptFiles::open(wanted.cache));
  const auto http = SPC_TRY(HttpClient::create(
      {.stall = std::chrono::seconds(config.stall_timeout), .proxies = proxies_of_user(config)}));
  RemoteAccess access{.http = *http, .log = log, .config = config, .ask_user = {}, .meter = {}};
  if (remote.image) access.ask_user = [&] { return ask_user(*remote.image); };
  return Bringer(wanted, image.reference, config, remote, access, files)
      .bring(image.name.digest.has_value());
}

}  // namespace spc
