#include "launch/site/site_request.hpp"

#include <algorithm>
#include <iterator>

#include "launch/site/policy_rules.hpp"
#include "launch/site/site_mounts.hpp"
#include "protocol/task.hpp"

namespace spc {
namespace {

std::uint32_t site_namespaces(const SitePolicy& site) {
  constexpr std::pair<std::string_view, std::uint32_t> kNames[] = {
      {"net", own_net}, {"ipc", own_ipc}, {"uts", own_uts}, {"pid", own_pid}};
  std::uint32_t bits = 0;
  for (const std::string& name : site.unshare) {
    for (const auto& [known, bit] : kNames) bits |= name == known ? bit : 0U;
  }
  return bits;
}

}  // namespace

Result<LaunchRequest> fit_to_site(LaunchRequest request, const PolicyRecord& policy, const SitePolicy& site) {
  SPC_TRY(check_features(request.features, site));
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
  return request;
}

}  // namespace spc
