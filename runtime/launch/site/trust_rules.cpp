#include "launch/site/trust_rules.hpp"

#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "launch/site/policy_rules.hpp"
#include "protocol/import.hpp"
#include "protocol/policy.hpp"
#include "task/entering/enter.hpp"

namespace spc {
namespace {

constexpr char kStep[] = "--container-image";

Result<void> ask(const char* transports, const std::string& path, const SitePolicy& site,
                 const std::string& reference) {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const std::string import = own_program("import");
  Program program{
      .path = import,
      .arguments = {import, "trust", site.signature_policy, path, reference, transports},
      .environment = std::vector<std::string>(),
      .descriptors = {{theirs.get(), kImportSocket}}};
  program.prepare = [] { return give_up_privilege().has_value(); };
  auto child = SPC_TRY_DURING(kStep, Child::start(program));
  theirs.reset();
  TrustAnswer answer;
  if (!receive_struct(ours.get(), answer)) {
    return Error(ErrorKind::unavailable,
                 "--container-image: read the signature policy: import exited unexpectedly");
  }
  return answer.error.is_set() ? Result<void>(answer.error.error().during(kStep)) : Result<void>();
}

}  // namespace

Result<void> check_trust(const ImageLocation& image, const SitePolicy& site) {
  using Kind = ImageLocation::Kind;
  if (site.signature_policy.empty()) return {};
  switch (image.kind) {
    case Kind::oci_layout: return ask("oci", image.path, site, image.reference);
    case Kind::oci_archive: return ask("oci-archive", image.path, site, image.reference);
    case Kind::docker_archive: return ask("docker-archive", image.path, site, image.reference);
    case Kind::docker_daemon: return ask("docker-daemon", "", site, "");
    case Kind::podman: return ask("containers-storage", "", site, "");
    case Kind::registry:
    case Kind::remote_file:
    case Kind::path: break;
  }
  return {};
}

Result<void> check_opened_trust(int file, const std::string& typed, const char* transports,
                                const SitePolicy& site) {
  if (site.signature_policy.empty()) return {};
  return ask(transports, SPC_TRY(real_path(file, typed)), site, "");
}

Result<void> check_stored_trust(const ImageLocation& image, const SitePolicy& site) {
  if (site.signature_policy.empty() || image.kind != ImageLocation::Kind::path)
    return check_trust(image, site);
  return ask(kArchiveTransports, image.path, site, "");  // other files are opened again
}

Result<void> check_importer(const SitePolicy& site) {
  if (site.signature_policy.empty()) return {};
  return Error(ErrorKind::refused,
               "this site's signature policy cannot be kept with an external importer")
      .hint("the administrator has to remove importer or signature_policy from config.toml");
}

}  // namespace spc
