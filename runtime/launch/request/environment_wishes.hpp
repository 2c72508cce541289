#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "launch/policy/site_policy.hpp"

namespace spc {

/// Variables requested by --container-env or the site.
struct EnvironmentWishes {
  std::vector<std::string> keep;  ///< names and patterns (with * and ?) that keep the job's value
  std::map<std::string, std::string> values;  ///< set to these values in any case

  /// Adds `ITEM[,ITEM...]`, an item being NAME, PATTERN or NAME=VALUE; quoting as in
  /// launch/request/quoted_text.hpp.
  Result<void> add(std::string_view list);
  [[nodiscard]] bool keeps(std::string_view name) const;

  /// The keys `keep_env` and `env` of config.toml.
  static EnvironmentWishes of_site(const SitePolicy& site);
};

/// Whether `pattern` matches `text`: * any characters, ? one.
bool matches_pattern(std::string_view pattern, std::string_view text);

}  // namespace spc
