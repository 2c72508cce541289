#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "image/reference/location.hpp"
#include "launch/policy/site_policy.hpp"

namespace spc {

/// The restrictions of config.toml, enforced in the leader: a user can bypass srun, but not the
/// task.

/// Whether `path` is `directory` or below it, by whole components; both without . and .. .
bool lies_below(std::string_view path, std::string_view directory);

/// `allowed_paths`: an image outside a registry must be a file or directory below one of them. The
/// real path is compared and used from here on: only those who may write there can replace it.
Result<void> check_place(ImageLocation& image, const SitePolicy& site);

/// The same for an open file, by descriptor. `typed` is for the message.
Result<void> check_opened_place(int file, const std::string& typed, const SitePolicy& site);

/// `allowed_images`: refuses an image of a registry, or a file of a server, that no rule allows to
/// the calling process's user in this job.
Result<void> check_image(const ImageLocation& image, const SitePolicy& site,
                         const std::map<std::string, std::string>& job);

/// Of what the descriptor stands for, as the kernel knows it. `typed` is for messages.
Result<std::string> real_path(int file, const std::string& typed);

/// `mounts_off`: refuses the opened source of a mount, or an image directory, as it lies on the
/// node, if it is one of these paths, lies in one, or has one in it.
Result<void> check_mount_source(int source, const std::string& typed,
                                const std::vector<std::string>& mounts_off);

}  // namespace spc
