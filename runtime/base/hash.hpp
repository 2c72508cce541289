#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/digest.hpp"

// --- sha256 ---

struct SHA256state_st;

namespace spc {

/// SHA-256 of streamed bytes (libcrypto: uses the CPU's SHA instructions, about 1.5 GB/s). Needs no
/// file and no other part of libcrypto, whose start would take longer than most layers.
class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  /// Returns the digest of all bytes so far. No bytes can be added afterwards.
  Digest finish();

  static Digest of(std::string_view bytes);

 private:
  struct Free {
    void operator()(SHA256state_st* state) const;
  };
  std::unique_ptr<SHA256state_st, Free> state_;
};

// --- base64 ---

/// Returns the base64 encoding with padding (RFC 4648, section 4).
std::string base64(std::string_view bytes);
/// Decodes base64; empty if the text is invalid. Padding is optional.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace spc
