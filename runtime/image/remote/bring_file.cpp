#include "image/remote/bring_file.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "base/format.hpp"
#include "image/reference/file_url.hpp"
#include "image/registry/registry_session.hpp"
#include "image/remote/kept_files.hpp"
#include "image/remote/remote_file.hpp"

namespace spc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kBetweenLines{10};
constexpr std::chrono::seconds kUnseen{
    90};  // so late a node may see what another one wrote on a shared file system

std::int64_t now() { return std::time(nullptr); }

/// What the site says of servers.
Result<void> check_rules(const ImageLocation& image, const Config& config) {
  const std::string& host = image.name.registry;
  SPC_TRY(config.submit_rules().registries.check(host));
  if (!config.registry(host).require_digest || image.name.digest) return {};
  return Error(ErrorKind::refused,
               formatted("this site allows images from {} by digest only", in_quotes(host)))
      .hint("oras://NAME@sha256:HEX, https://HOST/FILE#sha256=HEX");
}

bool is_same(const NamedImage& known, const RemoteVersion& version) {
  return version.digest ? *version.digest == known.manifest
                        : version.validator && known.is(*version.validator);
}

class Bringer {
 public:
  /// `name`: the same however the image is typed; the whole URL.
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
    // Some web servers only give the file.
    auto fetched =
        version || !remote_.image ? fetch(known.manifest) : Result<std::string>(version.error());
    if (fetched || fetched.error().kind() != ErrorKind::unavailable ||
        wanted_.pull == PullPolicy::always)
      return fetched;
    access_.log.write(LogLevel::warning,
                      fetched.error().message() + "; using the file that was fetched before");
    return path_of(known);
  }

  /// `before`: what it was, and is no longer.
  Result<std::string> fetch(const std::optional<Digest>& before) {
    const std::int64_t begin = now();
    const auto lock =
        FetchLock::wait_for(files_, name_, std::chrono::seconds(config_.stall_timeout) + kUnseen);
    const auto known = files_.known(name_);
    if (known && known->asked_at >= begin && known->manifest != before)
      return path_of(*known);  // another step or node was faster
    files_.forget_old();
    auto file = SPC_TRY(files_.create());
    auto said = Clock::now();
    access_.meter = [&](std::uint64_t done, std::uint64_t total) {
      if (Clock::now() - said < kBetweenLines) return;
      said = Clock::now();
      lock.goes_on();
      const std::string of_all = total == 0 ? "" : formatted(" of {}", total / 1'000'000);
      access_.log.write(LogLevel::info, formatted("pull image {}: {}{} MB",
                                                  in_quotes(without_secrets(wanted_.image)),
                                                  done / 1'000'000, of_all));
    };
    const auto fetched = fetch_remote_file(access_, remote_, file.file());
    if (!fetched) return file.about(fetched.error());
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
