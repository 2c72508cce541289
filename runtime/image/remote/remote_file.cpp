#include "image/remote/remote_file.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/json/json.hpp"
#include "image/registry/json.hpp"
#include "image/registry/registry_session.hpp"

namespace spc {
namespace {

constexpr std::string_view kOras = "oras://";
constexpr std::string_view kHttps = "https://";
constexpr std::string_view kDigestMark = "#sha256=";
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
  const bool is_image = config != nullptr && config->is_object() && type_of(*config).find("container.image") != std::string::npos;
  if (found == nullptr || !found->is_object() || (is_image && type_of(*found) != kSifLayer)) {
    return Error(ErrorKind::invalid, what + ": is not an artifact of one file").hint("for a container image use docker://");
  }
  Artifact artifact;
  const auto digest = SPC_TRY_DURING(what, found->text("digest"));
  artifact.digest = SPC_TRY_DURING(what, Digest::parse(digest.value_or("")));
  artifact.size = SPC_TRY_DURING(what, found->number("size")).value_or(0);
  return artifact;
}

Result<FetchedFile> fetch_artifact(RegistrySession& session, const RemoteAccess& access, const ImageReference& image, int file) {
  const std::string what = "manifest " + in_quotes(image.canonical());
  const UniqueFd document(::memfd_create("spank-container manifest", MFD_CLOEXEC));
  const auto manifest = SPC_TRY(fetch_file(session,
                                           {.path = "manifests/" + image.tag_or_digest(),
                                            .what = what,
                                            .accept = kManifestType,
                                            .max_size = kMaxManifest,
                                            .upload = {}},
                                           document.get()));
  if (image.digest && manifest.digest != *image.digest) return Error(ErrorKind::corrupt, what + ": does not match its digest");
  const std::string text = SPC_TRY(read_file(document.get(), kMaxManifest));
  const Artifact artifact = SPC_TRY(artifact_in(text, what));
  const std::string name = "file " + artifact.digest.str();
  const auto fetched = SPC_TRY(fetch_file(
      session, {.path = "blobs/" + artifact.digest.str(), .what = name, .accept = {}, .exact_size = artifact.size, .upload = {}},
      file, [&](std::uint64_t done) { access.meter(done, artifact.size); }));
  if (fetched.digest != artifact.digest) {
    return Error(ErrorKind::corrupt, name + ": does not match its digest").hint("the registry or a proxy changed it");
  }
  return fetched;
}

}  // namespace

bool RemoteFile::is_meant(std::string_view text) { return text.starts_with(kOras) || text.starts_with(kHttps); }

Result<RemoteFile> RemoteFile::parse(std::string_view text, std::string_view default_registry) {
  RemoteFile file{.text = std::string(text), .image = {}, .url = {}, .digest = {}};
  if (text.starts_with(kOras)) {
    file.image = SPC_TRY(ImageReference::parse(text.substr(kOras.size()), default_registry));
    return file;
  }
  const auto mark = text.find('#');
  file.url = std::string(text.substr(0, mark));
  const auto is_plain = [](char c) { return c > 0x20 && c < 0x7f && c != '"' && c != '\\'; };
  const std::string_view rest = std::string_view(file.url).substr(kHttps.size());
  const auto slash = rest.find('/');
  if (origin_of(file.url).empty() || !std::all_of(rest.begin(), rest.end(), is_plain) || slash == std::string_view::npos ||
      rest.substr(0, slash).find('@') != std::string_view::npos) {
    return Error(ErrorKind::invalid, "image: is not a URL of a file").hint("https://HOST/PATH");
  }
  if (mark == std::string_view::npos) return file;
  if (!text.substr(mark).starts_with(kDigestMark))
    return Error(ErrorKind::invalid, "image: a URL ends in #sha256=HEX, or has no #");
  file.digest = SPC_TRY_DURING("image", Digest::parse("sha256:" + std::string(text.substr(mark + kDigestMark.size()))));
  return file;
}

Result<FetchedFile> fetch_remote_file(const RemoteAccess& access, const RemoteFile& wanted, int file) {
  RegistrySession session{.http = access.http, .log = access.log, .registry = {}, .repository = {}, .endpoints = {}};
  if (wanted.image) {
    session.registry = wanted.image->registry;
    session.repository = wanted.image->repository;
    session.endpoints = endpoints_of(*wanted.image, access.config);
    session.login_servers = access.config.registry(session.registry).login_servers;
    session.ask_user = access.ask_user;
    session.user_first = !wanted.image->user.empty();
    return fetch_artifact(session, access, *wanted.image, file);
  }
  const std::string host = wanted.url.substr(kHttps.size(), wanted.url.find('/', kHttps.size()) - kHttps.size());
  const RegistryConfig& server = access.config.registry(host);
  session.registry = host;
  session.repository = "file";
  session.asked = true;
  RegistryEndpoint endpoint;
  endpoint.name = host;
  endpoint.base_url = (server.insecure ? "http://" : "https://") + host;
  endpoint.ca = server.ca;
  session.endpoints.push_back(std::move(endpoint));
  const std::string url = session.endpoints.back().base_url + wanted.url.substr(kHttps.size() + host.size());
  const std::string name = "file " + in_quotes(wanted.url.substr(wanted.url.rfind('/') + 1));
  const auto fetched =
      SPC_TRY(fetch_file(session, {.path = {}, .what = name, .accept = {}, .max_size = kMaxFile, .upload = {}, .url = url}, file,
                         [&](std::uint64_t done) { access.meter(done, 0); }));
  if (wanted.digest && fetched.digest != *wanted.digest) {
    return Error(ErrorKind::corrupt, formatted("{}: has digest {}, not the one in the URL", name, fetched.digest.str()));
  }
  return fetched;
}

}  // namespace spc
