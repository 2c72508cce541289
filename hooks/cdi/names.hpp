#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc {

/// VENDOR/CLASS=NAME, as in the Container Device Interface: `nvidia.com/gpu=0`.
struct CdiName {
  std::string kind;  ///< VENDOR/CLASS
  std::string name;

  static Result<CdiName> parse(std::string_view text);
  [[nodiscard]] std::string str() const { return kind + "=" + name; }
  bool operator==(const CdiName&) const = default;
};

/// Returns whether `kind` is valid in a CDI file: VENDOR/CLASS, each of letters, digits, `.`, `_`
/// and `-`, starting with a letter and ending with a letter or digit.
bool is_cdi_kind(std::string_view kind);
/// Returns whether the name has only letters, digits, `.`, `_`, `:` and `-`, and starts and ends
/// with a letter or digit.
bool is_cdi_device_name(std::string_view name);

}  // namespace spc
