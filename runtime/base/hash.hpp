#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/digest.hpp"

// --- sha256 ---

struct evp_md_ctx_st;

namespace spc {

/// SHA-256 of streamed bytes (libcrypto: uses the CPU's SHA instructions, about 1.5 GB/s).
class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  /// Returns the digest of all bytes so far. No bytes can be added afterwards.
  Digest finish();

  static Digest of(std::string_view bytes);

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

// --- base64 ---

/// Returns the base64 encoding with padding (RFC 4648, section 4).
std::string base64(std::string_view bytes);
/// Decodes base64; empty if the text is invalid. Padding is optional.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace spc
