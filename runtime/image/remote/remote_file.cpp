#include "image/remote/remote_file.hpp"

#include <sys/mman.h>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/json/json.hpp"
#include "image/reference/file_url.hpp"
#include "image/registry/json.hpp"
#include "image/registry/registry_session.hpp"

namespace spc {
namespace {

constexpr std::string_view kOras = "oras://";
constexpr std::string_view kHttps = FileUrl::kScheme;
constexpr char kManifestType[] = "application/vnd.oci.image.manifest.v1+json";
constexpr char kSifLayer[] = "application/vnd.sylabs.sif.layer.v1.sif";
constexpr std::size_t kMaxManifest = 4 << 20;
constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 42;

/// The one file of an artifact.
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
      .hint("max_image_bytes in config.toml");
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
    session.login_servers = access.config.registry(session.registry).login_servers;
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
  endpoint.ca = server.ca;
  session.endpoints.push_back(std::move(endpoint));
  return session;
}

/// Without its query, in which there may be a key.
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
  request.once = true;  // who gets no answer fetches it
  const UniqueFd nothing(::memfd_create("spank-container file", MFD_CLOEXEC));
  version.validator = SPC_TRY(fetch_file(session, request, nothing.get())).validator;
  return version;
}

}  // namespace spc
