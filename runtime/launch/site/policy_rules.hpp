#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "image/reference/location.hpp"
#include "launch/policy/site.hpp"

namespace spc {

/// What config.toml forbids, enforced in the leading task: a user can avoid srun, but not the task.

/// `features_off`: none of the options that are used may be in it.
Result<void> check_features(const std::vector<std::string>& used, const Site& site);

/// Whether `path` lies in `directory` or is it, by whole components; both without . and .. .
bool lies_below(std::string_view path, std::string_view directory);

/// `allowed_paths`: an image that is no registry's must be a file or directory below one of them. What counts is where it
/// really is, so from here on it goes by that path: nobody but who may write there can put another one in its place.
Result<void> check_place(ImageLocation& image, const Site& site);

/// The same once the file is open, by the descriptor. `typed` is shown.
Result<void> check_opened_place(int file, const std::string& typed, const Site& site);

}  // namespace spc
