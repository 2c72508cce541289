#include "launch/site/site_request.hpp"

#include <algorithm>
#include <iterator>

#include "launch/policy/submit_rules.hpp"
#include "launch/site/site_mounts.hpp"
#include "protocol/task.hpp"

namespace spc {
namespace {

std::uint32_t site_namespaces(const SitePolicy& site) {
  std::uint32_t bits = 0;
  for (const std::string& name : site.unshare) {
    for (const NamespaceKind& kind : kNamespaceKinds)
      bits |= name == kind.name ? std::uint32_t{kind.bit} : 0U;
  }
  return bits;
}

/// Whether an option of the job takes the place of what enroot's variables and files say.
bool is_overridden(const LaunchRequest& request, std::string_view option) {
  if (option == "container-writable" || option == "container-readonly")
    return request.writable.has_value();
  if (option == "container-remap-root") return request.remap_root.has_value();
  if (option == "container-mount-home") return request.contain || request.mount_home.has_value();
  return option == "container-mounts" && request.contain;
}

/// They count like options.
Result<void> check_options_of_user(const LaunchRequest& request, const SitePolicy& site) {
  for (const auto& [option, origin] : site.options_of_user) {
    if (!is_overridden(request, option))
      SPC_TRY_DURING(origin, check_features({option}, site.features_off));
  }
  return {};
}

}  // namespace

Result<LaunchRequest> fit_to_site(LaunchRequest request, const PolicyRecord& policy,
                                  const SitePolicy& site) {
  SPC_TRY(check_features(request.features, site.features_off));
  SPC_TRY(check_options_of_user(request, site));
  auto mounts = SPC_TRY(site_mounts(site, request.contain ? UsersMounts::no : UsersMounts::yes));
  std::move(request.mounts.begin(), request.mounts.end(), std::back_inserter(mounts));
  request.mounts = std::move(mounts);
  if (request.mounts.size() > kMaxMounts) return too_many_mounts();
  if (!request.writable) request.writable = site.writable.value_or(policy.writable != 0);
  if (!request.slurm) request.slurm = site.slurm;
  // Slurm's commands would take themselves for root's, which munge knows better.
  if (!request.remap_root) request.remap_root = !*request.slurm && site.remap_root;
  request.namespaces |= site_namespaces(site);
  request.max_tmpfs_size = site.max_tmpfs_size;
  request.mounts_off = site.mounts_off;
  return request;
}

}  // namespace spc
