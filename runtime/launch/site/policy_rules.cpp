#include "launch/site/policy_rules.hpp"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/format.hpp"
#include "base/unique_fd.hpp"
#include "launch/policy/image_rule.hpp"
#include "task/user_identity.hpp"

namespace spc {
namespace {

std::string listed(const std::vector<std::string>& directories) {
  std::string text;
  for (const std::string& directory : directories)
    text += (text.empty() ? "" : ", ") + in_quotes(directory);
  return text;
}

Error outside(const std::string& typed, const std::string& where,
              const std::vector<std::string>& allowed) {
  return Error(ErrorKind::refused,
               formatted("--container-image: {}{}: this site allows image files only in {}",
                         in_quotes(typed), where, listed(allowed)))
      .hint("use a registry image, or ask the administrator about allowed_paths in config.toml");
}

Result<void> check_real_path(const std::string& path, const std::string& typed,
                             const std::vector<std::string>& allowed) {
  const auto fits = [&](const std::string& directory) { return lies_below(path, directory); };
  if (std::any_of(allowed.begin(), allowed.end(), fits)) return {};
  return outside(typed, path == typed ? "" : ", which is " + in_quotes(path), allowed);
}

/// Whether one of them is in the list, or there is no list.
bool is_meant(const std::vector<std::string>& listed, const std::vector<std::string>& names) {
  return listed.empty() || std::find_first_of(listed.begin(), listed.end(), names.begin(),
                                              names.end()) != listed.end();
}

/// Names and numbers, from lines of a group file.
std::vector<std::string> names_of(const std::vector<std::string>& group_entries) {
  std::vector<std::string> names;
  for (const std::string& entry : group_entries) {  // NAME:x:GID:
    const auto first = entry.find(':');
    const auto second = entry.find(':', first + 1);
    names.push_back(entry.substr(0, first));
    names.push_back(entry.substr(second + 1, entry.find(':', second + 1) - second - 1));
  }
  return names;
}

}  // namespace

Result<void> check_image(const ImageLocation& image, const SitePolicy& site,
                         const std::map<std::string, std::string>& job) {
  const bool is_named =
      image.kind == ImageLocation::Kind::registry || image.kind == ImageLocation::Kind::remote_file;
  if (site.allowed_images.empty() || !is_named) return {};
  const auto user = UserIdentity::of_this_process();
  const auto groups = names_of(user.group_entries);
  const auto partition = job.find("SLURM_JOB_PARTITION");
  const std::string repository = image.name.registry + "/" + image.name.repository;
  for (const std::string& text : site.allowed_images) {
    const auto rule = SPC_TRY_DURING("allowed_images in config.toml", ImageRule::parse(text));
    if (rule.fits(repository) && is_meant(rule.users, {user.name, std::to_string(user.uid)}) &&
        is_meant(rule.groups, groups) &&
        is_meant(rule.partitions, {partition == job.end() ? "" : partition->second})) {
      return {};
    }
  }
  return Error(ErrorKind::refused,
               formatted(
                   "--container-image: {}: this site does not allow it to you{}",
                   in_quotes(image.canonical()),
                   partition == job.end() ? "" : " in partition " + in_quotes(partition->second)))
      .hint("ask the administrator about allowed_images in config.toml");
}

Result<std::string> real_path(int file, const std::string& typed) {
  char path[PATH_MAX];
  const ssize_t size =
      ::readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), path, sizeof path);
  if (size <= 0 || size == sizeof path)
    return Error::from_errno(size <= 0 ? errno : ENAMETOOLONG, "look for " + in_quotes(typed));
  return std::string(path, static_cast<std::size_t>(size));
}

bool lies_below(std::string_view path, std::string_view directory) {
  while (directory.ends_with('/')) directory.remove_suffix(1);
  return path.starts_with(directory) &&
         (path.size() == directory.size() || path[directory.size()] == '/');
}

Result<void> check_place(ImageLocation& image, const SitePolicy& site) {
  using Kind = ImageLocation::Kind;
  const auto& allowed = site.allowed_paths;
  if (image.kind == Kind::registry || (allowed.empty() && site.signature_policy.empty())) return {};
  if (image.kind == Kind::docker_daemon || image.kind == Kind::podman ||
      image.kind == Kind::remote_file) {
    return allowed.empty() ? Result<void>() : outside(image.canonical(), "", allowed);
  }
  const std::string path = image.path.starts_with("~/")
                               ? UserIdentity::of_this_process().home + image.path.substr(1)
                               : image.path;
  const UniqueFd place(::open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!place) {
    return Error::from_errno(errno, "--container-image: open image " + in_quotes(image.path))
        .hint("it must exist on every node of the step and is opened with the user's permissions");
  }
  const std::string real = SPC_TRY(real_path(place.get(), image.path));
  if (!allowed.empty()) SPC_TRY(check_real_path(real, image.path, allowed));
  if (image.kind != Kind::path && real.find(':') != std::string::npos) {
    return Error(ErrorKind::invalid,
                 formatted("--container-image: {} is {}: a path must not contain a colon",
                           in_quotes(image.path), in_quotes(real)));
  }
  image.path = real;
  return {};
}

Result<void> check_opened_place(int file, const std::string& typed, const SitePolicy& site) {
  const auto& allowed = site.allowed_paths;
  if (allowed.empty()) return {};
  return check_real_path(SPC_TRY(real_path(file, typed)), typed, allowed);
}

Result<void> check_mount_source(int source, const std::string& typed,
                                const std::vector<std::string>& mounts_off) {
  if (mounts_off.empty()) return {};
  const std::string real = SPC_TRY(real_path(source, typed));
  for (const std::string& kept : mounts_off) {
    if (!lies_below(real, kept) && !lies_below(kept, real)) continue;
    return Error(ErrorKind::refused, formatted("mount {}: this site does not allow mounts of {}",
                                               in_quotes(typed), in_quotes(kept)))
        .hint("ask the administrator about mounts_off in config.toml");
  }
  return {};
}

}  // namespace spc
