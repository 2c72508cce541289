#include <cstdio>
#include <memory>
#include <optional>

#include "base/format.hpp"
#include "base/sha256.hpp"
#include "image/credentials/credentials.hpp"
#include "image/push/push_image.hpp"
#include "image/reference/file_url.hpp"
#include "image/reference/location.hpp"
#include "image/registry/fetch.hpp"
#include "image/user_source/temporary_file.hpp"
#include "launch/host/local_image.hpp"
#include "tool/command.hpp"
#include "tool/images/image_archive.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

/// What a push is about, and whom it talks to.
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
                            .login_servers = config_.registry(image.registry).login_servers,
                            .ask_user = {}};
    session.ask_user = [this, image] {
      return find_credentials(CredentialPlaces::of_user(), image, image.user, *log_);
    };
    return session;
  }

  Result<Source> open_source(const ImageReference& target) {
    const auto location = SPC_TRY(ImageLocation::parse(image_, config_.default_registry));
    using Kind = ImageLocation::Kind;
    if (location.kind == Kind::registry) return open_stored(target);
    if (location.kind == Kind::path) {
      const auto local = SPC_TRY(open_local_image(location.path, places_.home));
      if (local.kind != LocalImage::Kind::archive) return flattened();
    }
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

  /// The store has layers in a form of its own: what a registry wants comes from where the image is
  /// from.
  Result<Source> open_stored(const ImageReference& target) {
    auto found = find_stored();
    if (!found) return std::move(found).error();
    if (arguments_.has("flatten")) return flattened();
    std::optional<ImageReference> from;
    for (const ImageOrigin& origin : found->origins.all()) {
      if (origin.registry.empty()) continue;
      if (!from || (origin.registry == target.registry && from->registry != target.registry))
        from = reference_to(origin.name);
    }
    if (!found->record && !found->names.empty()) from = reference_to(found->names.front().name);
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

  /// In the caller's own store, or among the public images of the node's.
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
    SPC_TRY(write_archive_apart(places_, std::move(files), file.get()));
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
  const auto config = SPC_TRY(read_config(places.config));
  return Push(arguments, places, config).run();
}

}  // namespace spc::tool
