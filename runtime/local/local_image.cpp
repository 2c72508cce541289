// The user's own images in all formats: exports of docker and podman, `docker save` archives, OCI
// layouts, and archives of root file systems.

#include "local/local_image.hpp"

#include <curl/curl.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/json.hpp"
#include "base/process/child.hpp"
#include "local/image_files.hpp"
#include "reference/reference.hpp"
#include "registry/manifest.hpp"

namespace spc::user_source {

// --- docker export ---

namespace {

constexpr std::uint64_t kUsualImage = std::uint64_t{1} << 30;
constexpr char kUsualSocket[] = "/var/run/docker.sock";
constexpr std::size_t kMaxComplaint = 300;
constexpr long kPatienceToConnect = 10;  // seconds
constexpr std::chrono::seconds kBetweenDockerLines{15};

struct FreeCurl {
  void operator()(CURL* handle) const { ::curl_easy_cleanup(handle); }
};
struct FreeText {
  void operator()(char* text) const { ::curl_free(text); }
};

/// Response being received: into the file if it is the image, else into the complaint.
struct Answer {
  CURL* handle = nullptr;
  int file = -1;
  std::string what;
  Log* log = nullptr;
  std::uint64_t written = 0;
  std::string complaint;
  std::optional<Error> failed;
  std::chrono::steady_clock::time_point next_line =
      std::chrono::steady_clock::now() + kBetweenDockerLines;
};

std::size_t take(char* bytes, std::size_t, std::size_t count, void* argument) {
  auto& answer = *static_cast<Answer*>(argument);
  long status = 0;
  ::curl_easy_getinfo(answer.handle, CURLINFO_RESPONSE_CODE, &status);
  if (status != 200) {
    answer.complaint.append(
        bytes, std::min(count, kMaxComplaint - std::min(kMaxComplaint, answer.complaint.size())));
    return count;
  }
  auto done = write_all(answer.file, std::string_view(bytes, count));
  if (!done) {
    answer.failed = std::move(done).error();
    return 0;
  }
  answer.written += count;
  return count;
}

/// Reports progress. libcurl calls it about once a second, even while no data arrives.
int tell(void* argument, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  auto& answer = *static_cast<Answer*>(argument);
  if (const auto now = std::chrono::steady_clock::now(); now >= answer.next_line) {
    answer.next_line = now + kBetweenDockerLines;
    answer.log->write(LogLevel::info, formatted("exporting from docker: {}: {} MB", answer.what,
                                                answer.written / 1'000'000));
  }
  return 0;
}

Result<std::string> socket_path() {
  const char* host = std::getenv("DOCKER_HOST");
  if (host == nullptr || *host == '\0') return std::string(kUsualSocket);
  constexpr std::string_view kUnix = "unix://";
  if (std::string_view(host).starts_with(kUnix)) return std::string(host + kUnix.size());
  return Error(ErrorKind::invalid,
               formatted("DOCKER_HOST is {}, but only a local daemon (unix://PATH) is supported",
                         in_quotes(host)));
}

}  // namespace

Result<FilePart> export_from_docker(const std::string& image, Log& log) {
  const std::string name = "dockerd://" + image;
  const std::string socket = SPC_TRY(socket_path());
  UniqueFd file = SPC_TRY(temporary_file(kUsualImage));
  const std::unique_ptr<CURL, FreeCurl> handle(::curl_easy_init());
  if (!handle)
    return Error(ErrorKind::no_space,
                 formatted("request from docker {}: out of memory", in_quotes(name)));
  const std::unique_ptr<char, FreeText> escaped(
      ::curl_easy_escape(handle.get(), image.c_str(), static_cast<int>(image.size())));
  const std::string url =
      "http://docker/images/" + std::string(escaped ? escaped.get() : "") + "/get";

  Answer answer{.handle = handle.get(), .file = file.get(), .what = name, .log = &log};
  ::curl_easy_setopt(handle.get(), CURLOPT_UNIX_SOCKET_PATH, socket.c_str());
  ::curl_easy_setopt(handle.get(), CURLOPT_URL, url.c_str());
  ::curl_easy_setopt(handle.get(), CURLOPT_PROXY, "");
  ::curl_easy_setopt(handle.get(), CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(handle.get(), CURLOPT_CONNECTTIMEOUT, kPatienceToConnect);
  ::curl_easy_setopt(handle.get(), CURLOPT_WRITEFUNCTION, take);
  ::curl_easy_setopt(handle.get(), CURLOPT_WRITEDATA, &answer);
  ::curl_easy_setopt(handle.get(), CURLOPT_NOPROGRESS, 0L);
  ::curl_easy_setopt(handle.get(), CURLOPT_XFERINFOFUNCTION, tell);
  ::curl_easy_setopt(handle.get(), CURLOPT_XFERINFODATA, &answer);
  log.write(LogLevel::info, "exporting from docker: " + name);
  const CURLcode code = ::curl_easy_perform(handle.get());

  // Explain a failure: of this process, of the connection, of the transfer or of the daemon.
  const std::string step =
      formatted("connect to docker at {} for {}", in_quotes(socket), in_quotes(image));
  if (answer.failed) return std::move(*answer.failed).during(step);
  if (code == CURLE_COULDNT_CONNECT) {
    return Error(ErrorKind::unavailable, step + ": cannot connect")
        .hint(
            "start a docker daemon on this node and allow access to its socket, or save the image "
            "to a file: docker save");
  }
  if (code != CURLE_OK)
    return Error(ErrorKind::unavailable, formatted("{}: {}", step, ::curl_easy_strerror(code)));
  long status = 0;
  ::curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &status);
  if (status == 404)
    return Error(ErrorKind::not_found, step + ": no such image").hint("docker images lists them");
  if (status != 200) {
    return Error(ErrorKind::unavailable,
                 formatted("{}: it answers {}: {}", step, status, printable(answer.complaint)));
  }
  return ordinary_file(std::move(file), name);
}

// --- podman export ---

namespace {

constexpr std::uint64_t kUsualPodmanImage = std::uint64_t{1} << 30;
constexpr std::size_t kMaxComplaints = 1000;
constexpr int kBetweenPodmanLines = 15'000;  // milliseconds

/// A running program of the user whose output goes into a file. It does not outlive this process.
class ExportProgram {
 public:
  /// Starts the program. Returns an empty optional if it is not in PATH.
  static Result<std::optional<ExportProgram>> start(const std::vector<std::string>& command,
                                                    int output) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "create a pipe");
    UniqueFd reading(ends[0]);
    const UniqueFd complaints(ends[1]);
    const char* path = std::getenv("PATH");
    const auto found = find_program(command.front(), path != nullptr ? path : "/bin:/usr/bin");
    if (!found) return std::optional<ExportProgram>();
    auto child = SPC_TRY(Child::start({.path = *found,
                                       .arguments = command,
                                       .descriptors = {{output, 1}, {complaints.get(), 2}},
                                       .death_signal = 0}));
    return std::optional(ExportProgram(std::move(child), std::move(reading)));
  }

  enum class Heard { nothing, words, the_end };
  /// Waits a limited time for output on standard error. `the_end`: the program has closed it and is
  /// ending.
  Heard listen() {
    pollfd one{complaints_.get(), POLLIN, 0};
    if (::poll(&one, 1, kBetweenPodmanLines) <= 0) return Heard::nothing;
    std::array<char, 1024> buffer{};
    const ssize_t got = ::read(complaints_.get(), buffer.data(), buffer.size());
    if (got <= 0) return Heard::the_end;
    text_.append(buffer.data(), static_cast<std::size_t>(got));
    if (text_.size() > kMaxComplaints) text_.erase(0, text_.size() - kMaxComplaints);
    return Heard::words;
  }
  /// Waits for the program. Returns its exit status, or 128 + the signal that killed it.
  int wait() { return child_.wait().code(); }
  /// Returns the last line of standard error that has a cause, without the prefixes of logging
  /// libraries.
  [[nodiscard]] std::string complaints() const {
    std::string_view line = text_;
    // skopeo adds such a line if it cannot make a user namespace
    if (const auto at = line.rfind("(Unable to determine exit status)"); at != line.npos)
      line = line.substr(0, line.rfind('\n', at) + 1);
    while (line.ends_with('\n') || line.ends_with(' ') || line.ends_with('"'))
      line.remove_suffix(1);
    line.remove_prefix(line.rfind('\n') + 1);
    for (const std::string_view before : {"msg=\"", "Error: "}) {
      if (const auto at = line.find(before); at != std::string_view::npos)
        line.remove_prefix(at + before.size());
    }
    return line.empty() ? "it does not say why" : printable(line);
  }
  /// Returns whether the program reported that the image does not exist. No exit status says so.
  [[nodiscard]] bool says_there_is_none() const {
    constexpr std::string_view kWords[] = {"does not resolve to an image ID", "image not known",
                                           "unable to find", "no such image",
                                           "identifier is not an image"};
    return std::any_of(std::begin(kWords), std::end(kWords), [&](std::string_view words) {
      return text_.find(words) != std::string::npos;
    });
  }

 private:
  ExportProgram(Child child, UniqueFd complaints)
      : child_(std::move(child)), complaints_(std::move(complaints)) {}
  Child child_;
  UniqueFd complaints_;
  std::string text_;  // the end of its standard error
};

/// Runs a program and returns its output. Returns an empty optional if it is not in PATH.
Result<std::optional<FilePart>> output_of(const std::vector<std::string>& command,
                                          const std::string& what, Log& log) {
  UniqueFd file = SPC_TRY(temporary_file(kUsualPodmanImage));
  auto started = SPC_TRY(ExportProgram::start(command, file.get()));
  if (!started) return std::optional<FilePart>();
  ExportProgram& program = *started;
  log.write(LogLevel::info, formatted("{} writes out {}", command.front(), what));
  for (auto heard = program.listen(); heard != ExportProgram::Heard::the_end;
       heard = program.listen()) {
    if (heard == ExportProgram::Heard::words) continue;
    const off_t size = ::lseek(file.get(), 0, SEEK_END);
    log.write(LogLevel::info,
              formatted("{} writes out {}: {} MB", command.front(), what, size / 1'000'000));
  }
  if (const int status = program.wait(); status != 0) {
    if (program.says_there_is_none()) {
      return Error(ErrorKind::not_found, "your storage of podman on this node has no such image")
          .hint(
              "podman images lists them; on another node it has others: podman save --format "
              "oci-archive -o FILE");
    }
    return Error(ErrorKind::not_found,
                 formatted("run {}: it failed with status {}: {}", in_quotes(command.front()),
                           status, program.complaints()));
  }
  return std::optional(SPC_TRY(ordinary_file(std::move(file), what)));
}

}  // namespace

Result<FilePart> export_from_podman(const std::string& image, Log& log) {
  const std::string name = "podman://" + image;
  auto exported = SPC_TRY(
      output_of({"podman", "save", "--quiet", "--format", "docker-archive", image}, name, log));
  if (exported) return *std::move(exported);
  // skopeo reads the same storage. Not /dev/stdout: on failure skopeo removes its target.
  exported = SPC_TRY(output_of({"skopeo", "copy", "--quiet", "containers-storage:" + image,
                                "docker-archive:/proc/self/fd/1"},
                               name, log));
  if (exported) return *std::move(exported);
  return Error(ErrorKind::not_found,
               formatted("open {}: this node has neither podman nor skopeo", in_quotes(name)))
      .hint(
          "save the image to a file where podman is installed: podman save --format oci-archive -o "
          "FILE " +
          image);
}

// --- docker save archive ---

namespace {

constexpr std::size_t kMaxSavedDocument = 4 << 20;
constexpr std::size_t kMaxConfig = 8 << 20;

struct SavedImage {
  std::string config;
  std::vector<std::string> tags;
  std::vector<std::string> layers;
};

Result<std::vector<std::string>> texts_of(const Json& object, const char* key) {
  std::vector<std::string> texts;
  const auto* items = SPC_TRY(object.list(key));
  for (const Json& item : *items) {
    if (!item.is_text())
      return Error(ErrorKind::corrupt,
                   formatted("\"{}\" has an element that is not a string", key));
    texts.push_back(item.as_text());
  }
  return texts;
}

/// Parses manifest.json. It is a list, which the strict parser only reads inside an object.
Result<std::vector<SavedImage>> saved_images(const std::string& text) {
  const Json document = SPC_TRY(parse_json_object("{\"images\":" + text + "}", "manifest.json"));
  std::vector<SavedImage> images;
  const auto* items = SPC_TRY(document.list("images"));
  for (const Json& item : *items) {
    if (!item.is_object()) return Error(ErrorKind::corrupt, "an entry is not an object");
    SavedImage image;
    image.config = SPC_TRY(item.text("Config")).value_or("");
    image.tags = SPC_TRY(texts_of(item, "RepoTags"));
    image.layers = SPC_TRY(texts_of(item, "Layers"));
    images.push_back(std::move(image));
  }
  return images;
}

Result<const SavedImage*> choose_saved(const std::vector<SavedImage>& images,
                                       const std::string& reference, const std::string& name) {
  if (reference.empty() && images.size() == 1) return &images.front();
  std::vector<std::string> there;
  for (const SavedImage& image : images) {
    for (const auto& tag : image.tags) {
      if (!reference.empty() && is_same_name(tag, reference)) return &image;
      there.push_back(tag);
    }
    if (image.tags.empty()) there.push_back(image.config);
  }
  return no_such_image(name, reference, there);
}

Result<std::string> media_type_of(const FilePart& layer) {
  std::array<std::byte, 4> magic{};
  SPC_TRY(read_at(layer, 0, magic));
  if (std::memcmp(magic.data(), "\x1f\x8b", 2) == 0)
    return std::string("application/vnd.oci.image.layer.v1.tar+gzip");
  if (std::memcmp(magic.data(), "\x28\xb5\x2f\xfd", 4) == 0)
    return std::string("application/vnd.oci.image.layer.v1.tar+zstd");
  return std::string("application/vnd.oci.image.layer.v1.tar");
}

}  // namespace

Result<std::unique_ptr<LocalImage>> open_docker_save(std::unique_ptr<TarFiles> files,
                                                     const std::string& reference,
                                                     const std::string& name, Log& log) {
  const auto list = SPC_TRY(files->find("manifest.json"));
  if (!list) return Error(ErrorKind::invalid, in_quotes(name) + " has no file manifest.json");
  const auto text = SPC_TRY(read_part(*list, kMaxSavedDocument, "manifest.json"));
  const auto images = SPC_TRY_DURING("manifest.json", saved_images(text));
  const SavedImage* image = SPC_TRY(choose_saved(images, reference, name));

  const auto config_file = SPC_TRY(files->find(image->config));
  if (!config_file)
    return Error(ErrorKind::corrupt,
                 in_quotes(name) + ": the image's configuration is not in the archive");
  const auto config = SPC_TRY(read_part(*config_file, kMaxConfig, "the image's configuration"));
  const auto parsed = SPC_TRY(parse_image_config(config, "the image's configuration"));
  if (parsed.diff_ids.size() != image->layers.size()) {
    return Error(ErrorKind::corrupt,
                 formatted("{}: the image's configuration describes {} layers, manifest.json {}",
                           in_quotes(name), parsed.diff_ids.size(), image->layers.size()));
  }
  std::vector<DescribedImage::Layer> layers;
  for (std::size_t i = 0; i < image->layers.size(); ++i) {
    auto part = SPC_TRY(files->find(image->layers[i]));
    if (!part)
      return Error(ErrorKind::corrupt, formatted("{}: layer {} is not in the archive",
                                                 in_quotes(name), in_quotes(image->layers[i])));
    DescribedImage::Layer layer{.digest = parsed.diff_ids[i], .media_type = {}, .part = *part};
    layer.media_type = SPC_TRY(media_type_of(*part));
    if (!layer.media_type.ends_with(".tar")) {
      layer.digest = SPC_TRY(digest_of(*part, formatted("layer {} of {}", i + 1, name), log));
    }
    layers.push_back(std::move(layer));
  }
  return DescribedImage::create(config, std::move(layers));
}

Result<std::unique_ptr<LocalImage>> open_root_archive(const TarFiles& files,
                                                      const std::string& name, Log& log) {
  const FilePart& archive = files.archive();
  const Digest digest = SPC_TRY_DURING("read " + in_quotes(name), digest_of(archive, name, log));
  const Platform host = Platform::host();
  const Json config{{"architecture", host.architecture},
                    {"os", host.os},
                    {"config", Json::object()},
                    {"rootfs", {{"type", "layers"}, {"diff_ids", Json::array({digest.str()})}}}};
  std::vector<DescribedImage::Layer> layers;
  layers.push_back(
      {.digest = digest, .media_type = "application/vnd.oci.image.layer.v1.tar", .part = archive});
  return DescribedImage::create(config.str(), std::move(layers));
}

// --- OCI layout ---

namespace {

constexpr std::size_t kMaxDocument = 4 << 20;
constexpr std::size_t kMaxIndexEntries = 2000;

std::string blob_name(const Digest& digest) { return "blobs/sha256/" + digest.hex(); }

struct Entry {
  Digest digest;
  std::string media_type;
  std::vector<std::string> names;
  bool has_platform = false;
};

class LayoutImage final : public LocalImage {
 public:
  LayoutImage(std::unique_ptr<NamedFiles> files, FilePart document)
      : files_(std::move(files)), document_(std::move(document)) {}
  [[nodiscard]] const FilePart& document() const override { return document_; }
  Result<std::optional<FilePart>> blob(const Digest& digest) const override {
    return files_->find(blob_name(digest));
  }

 private:
  std::unique_ptr<NamedFiles> files_;
  FilePart document_;
};

Result<void> check_layout(const NamedFiles& files, const std::string& name) {
  const auto marker = SPC_TRY(files.find("oci-layout"));
  if (!marker)
    return Error(ErrorKind::invalid,
                 in_quotes(name) + " is not an OCI image layout: it has no file oci-layout");
  const auto text = SPC_TRY(read_part(*marker, 64 << 10, "oci-layout"));
  const Json document = SPC_TRY(parse_json_object(text, "oci-layout"));
  const auto version = SPC_TRY_DURING("oci-layout", document.text("imageLayoutVersion"));
  if (version && version->starts_with("1.")) return {};
  return Error(ErrorKind::invalid, in_quotes(name) + ": its image layout is not of version 1");
}

Result<std::vector<Entry>> entries_of(const Json& index) {
  std::vector<Entry> entries;
  const auto* items = SPC_TRY(index.list("manifests"));
  if (items->size() > kMaxIndexEntries)
    return Error(ErrorKind::invalid, formatted("lists more than {} images", kMaxIndexEntries));
  for (const Json& item : *items) {
    if (!item.is_object()) return Error(ErrorKind::corrupt, "an entry is not an object");
    Entry entry;
    const auto digest = SPC_TRY(item.text("digest"));
    entry.digest = SPC_TRY(Digest::parse(digest.value_or("")));
    entry.media_type = SPC_TRY(item.text("mediaType")).value_or("");
    entry.has_platform = item.find("platform") != nullptr;
    if (const Json* annotations = item.find("annotations");
        annotations != nullptr && annotations->is_object()) {
      for (const char* key : {"io.containerd.image.name", "org.opencontainers.image.ref.name"}) {
        if (auto name = SPC_TRY(annotations->text(key)); name && !name->empty())
          entry.names.push_back(*std::move(name));
      }
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

bool is_called(const Entry& entry, const std::string& reference) {
  if (entry.digest.str() == reference) return true;
  return std::any_of(entry.names.begin(), entry.names.end(),
                     [&](const auto& name) { return is_same_name(name, reference); });
}

std::vector<std::string> names_of(const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  for (const Entry& entry : entries)
    names.push_back(entry.names.empty() ? entry.digest.str() : entry.names.front());
  return names;
}

/// Returns the matching entry, or null for the whole index.
Result<const Entry*> choose(const std::vector<Entry>& entries, const std::string& reference,
                            const std::string& name) {
  std::vector<const Entry*> fitting;
  for (const Entry& entry : entries) {
    if (reference.empty() || is_called(entry, reference)) fitting.push_back(&entry);
  }
  const auto same = [&](const Entry* one) { return one->digest == fitting.front()->digest; };
  if (!fitting.empty() && std::all_of(fitting.begin(), fitting.end(), same)) return fitting.front();
  const auto one_of_a_list = [](const Entry& entry) {
    return entry.has_platform && entry.names.empty();
  };
  if (reference.empty() && !entries.empty() &&
      std::all_of(entries.begin(), entries.end(), one_of_a_list)) {
    return static_cast<const Entry*>(nullptr);
  }
  return no_such_image(name, reference, names_of(entries));
}

/// Returns the document with this digest. The digest is checked here, because the importer sees
/// only the bytes.
Result<FilePart> find_document(const NamedFiles& files, const Digest& digest,
                               const std::string& media_type) {
  const std::string what = "manifest " + in_quotes(digest.str());
  auto part = SPC_TRY(files.find(blob_name(digest)));
  if (!part)
    return Error(ErrorKind::corrupt, what + ": is listed but missing").hint("save the image again");
  const auto bytes = SPC_TRY(read_part(*part, kMaxDocument, what));
  if (Sha256::of(bytes) != digest) {
    return Error(ErrorKind::corrupt,
                 formatted("{}: has digest {} instead", what, Sha256::of(bytes).str()))
        .hint("save the image again");
  }
  part->media_type = media_type;
  return *std::move(part);
}

}  // namespace

Error no_such_image(const std::string& name, const std::string& reference,
                    const std::vector<std::string>& there) {
  constexpr std::size_t kShown = 12;
  std::string list;
  for (std::size_t i = 0; i < there.size() && i < kShown; ++i)
    list += (i == 0 ? "" : ", ") + in_quotes(there[i]);
  if (there.size() > kShown) list += formatted(" and {} more", there.size() - kShown);
  if (there.empty()) return {ErrorKind::not_found, in_quotes(name) + " contains no image"};
  if (reference.empty()) {
    return Error(ErrorKind::invalid,
                 formatted("{} contains several images: {}", in_quotes(name), list))
        .hint("append one of them after a ':'");
  }
  return Error(ErrorKind::not_found,
               formatted("{} has no image {}", in_quotes(name), in_quotes(reference)))
      .hint("it has " + list);
}

bool is_same_name(const std::string& one, const std::string& other) {
  if (one == other) return true;
  const auto first = ImageReference::parse(one);
  const auto second = ImageReference::parse(other);
  return first && second && first->canonical() == second->canonical();
}

Result<std::unique_ptr<LocalImage>> open_oci_layout(std::unique_ptr<NamedFiles> files,
                                                    const std::string& reference,
                                                    const std::string& name) {
  SPC_TRY(check_layout(*files, name));
  auto list = SPC_TRY(files->find("index.json"));
  if (!list)
    return Error(ErrorKind::invalid,
                 in_quotes(name) + " is not an OCI image layout: it has no file index.json");
  const auto text = SPC_TRY(read_part(*list, kMaxDocument, "index.json"));
  const Json index = SPC_TRY(parse_json_object(text, "index.json"));
  const auto entries = SPC_TRY_DURING("index.json", entries_of(index));

  // A digest may also denote an image that only a nested index lists.
  if (const auto digest = Digest::parse(reference);
      digest && SPC_TRY(files->find(blob_name(*digest)))) {
    auto document = SPC_TRY(find_document(*files, *digest, ""));
    return std::unique_ptr<LocalImage>(new LayoutImage(std::move(files), std::move(document)));
  }
  const Entry* entry = SPC_TRY(choose(entries, reference, name));
  auto document = entry == nullptr
                      ? *std::move(list)
                      : SPC_TRY(find_document(*files, entry->digest, entry->media_type));
  return std::unique_ptr<LocalImage>(new LayoutImage(std::move(files), std::move(document)));
}

// --- local image ---

namespace {

constexpr char kManifestType[] = "application/vnd.oci.image.manifest.v1+json";
constexpr char kConfigType[] = "application/vnd.oci.image.config.v1+json";

Json descriptor(const std::string& media_type, const Digest& digest, std::uint64_t size) {
  return {{"mediaType", media_type}, {"digest", digest.str()}, {"size", size}};
}

/// Opens an archive by its content, not its scheme: older and newer docker write different formats.
Result<std::unique_ptr<LocalImage>> open_archive(FilePart file, const std::string& reference,
                                                 const std::string& name, Log& log) {
  file = SPC_TRY(unpacked(std::move(file), name, log));
  auto files = SPC_TRY(TarFiles::index(std::move(file), name));
  if (files->has("oci-layout") || files->has("index.json"))
    return open_oci_layout(std::move(files), reference, name);
  if (files->has("manifest.json")) return open_docker_save(std::move(files), reference, name, log);
  for (const char* directory : {"usr", "bin", "etc", "lib"}) {
    if (!files->has(directory)) continue;
    if (reference.empty()) return open_root_archive(*files, name, log);
    return Error(ErrorKind::invalid, formatted("{} is an unnamed root file system: {} is not in it",
                                               in_quotes(name), in_quotes(reference)));
  }
  return Error(ErrorKind::invalid,
               in_quotes(name) +
                   " is not an image: it has no index.json or manifest.json and is not a root "
                   "file system");
}

}  // namespace

Result<std::unique_ptr<LocalImage>> LocalImage::open(const ImageLocation& location, Log& log) {
  using Kind = ImageLocation::Kind;
  const std::string& path = location.path;
  switch (location.kind) {
    case Kind::oci_layout: {
      auto files = SPC_TRY(DirectoryFiles::open(path));
      return open_oci_layout(std::move(files), location.reference, path);
    }
    case Kind::oci_archive:
    case Kind::docker_archive:
    case Kind::path: {
      auto file = SPC_TRY(open_ordinary_file(path));
      return open_archive(std::move(file), location.reference, path, log);
    }
    case Kind::podman: {
      auto file = SPC_TRY(export_from_podman(location.reference, log));
      return open_archive(std::move(file), "", location.canonical(), log);
    }
    case Kind::docker_daemon: {
      auto file = SPC_TRY(export_from_docker(location.reference, log));
      return open_archive(std::move(file), "", location.canonical(), log);
    }
    case Kind::registry:
    case Kind::remote_file: break;
  }
  return Error(ErrorKind::invalid, formatted("image {}: is not an image of the user's own",
                                             in_quotes(location.canonical())))
      .hint("fetch a file first: scontainer pull --output=FILE URL");
}

Result<std::unique_ptr<LocalImage>> DescribedImage::create(const std::string& config,
                                                           std::vector<Layer> layers) {
  auto image = std::make_unique<DescribedImage>();
  const Digest config_digest = Sha256::of(config);
  image->blobs_[config_digest] = SPC_TRY(file_with(config, kConfigType));
  Json listed = Json::array();
  for (Layer& layer : layers) {
    listed.push_back(descriptor(layer.media_type, layer.digest, layer.part.size));
    image->blobs_[layer.digest] = std::move(layer.part);
  }
  const Json manifest{{"schemaVersion", 2},
                      {"mediaType", kManifestType},
                      {"config", descriptor(kConfigType, config_digest, config.size())},
                      {"layers", std::move(listed)}};
  image->document_ = SPC_TRY(file_with(manifest.str(), kManifestType));
  return std::unique_ptr<LocalImage>(std::move(image));
}

Result<std::optional<FilePart>> DescribedImage::blob(const Digest& digest) const {
  const auto found = blobs_.find(digest);
  return found == blobs_.end() ? std::optional<FilePart>() : std::optional(found->second);
}

}  // namespace spc::user_source
