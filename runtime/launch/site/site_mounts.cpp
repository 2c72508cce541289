#include "launch/site/site_mounts.hpp"

#include "base/format.hpp"

namespace spc {
namespace {

constexpr std::string_view kMountOption = "--container-mounts: ";

Result<void> add(std::vector<MountSpec>& mounts, std::string_view text, const std::string& origin,
                 bool by_site) {
  // The grammar is that of the option, and so is the message.
  const auto of_origin = [&](const Error& error) {
    std::string why = error.message();
    if (why.starts_with(kMountOption)) why.erase(0, kMountOption.size());
    return Error(ErrorKind::invalid, formatted("{}: {}", origin, why));
  };
  auto parsed = parse_mounts(text);
  if (!parsed) return of_origin(parsed.error());
  for (MountSpec& mount : *parsed) {
    const auto allowed = by_site ? Result<void>() : refuse_kernel_views(mount);
    if (!allowed) return of_origin(allowed.error());
    mount.origin = origin;
    mount.by_site = by_site;
    mounts.push_back(std::move(mount));
  }
  return {};
}

}  // namespace

Result<std::vector<MountSpec>> site_mounts(const SitePolicy& site, UsersMounts users) {
  std::vector<MountSpec> mounts;
  for (const auto* records : {&site.enroot_mounts, &site.enroot_mounts_of_user}) {
    if (users == UsersMounts::no && records == &site.enroot_mounts_of_user) continue;
    for (const std::string& record : *records) {
      const auto tab = record.find('\t');
      SPC_TRY(add(mounts, std::string_view(record).substr(tab + 1), record.substr(0, tab),
                  records == &site.enroot_mounts));
    }
  }
  for (const std::string& text : site.mounts)
    SPC_TRY(add(mounts, text, "config.toml: mounts", true));
  return mounts;
}

}  // namespace spc
