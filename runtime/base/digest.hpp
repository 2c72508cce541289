#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc {

/// A SHA-256 digest, the only supported algorithm: 32 bytes, so that it fits into fixed-size
/// messages and can never be a path.
struct Digest {
  std::array<std::uint8_t, 32> bytes{};

  /// Accepts exactly `sha256:` and 64 lower-case hexadecimal digits (OCI image spec,
  /// descriptor.md).
  static Result<Digest> parse(std::string_view text);
  /// Returns 64 lower-case hexadecimal digits, the name of the object in the store.
  [[nodiscard]] std::string hex() const;
  /// Returns `sha256:` and hex().
  [[nodiscard]] std::string str() const { return "sha256:" + hex(); }

  auto operator<=>(const Digest&) const = default;
};

}  // namespace spc
