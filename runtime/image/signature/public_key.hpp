#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.hpp"

struct evp_pkey_st;

namespace spc {

/// A key that signs images: ECDSA or RSA (PKCS #1 v1.5), both over SHA-256, or Ed25519, as cosign
/// makes them.
class PublicKey {
 public:
  /// From PEM (`BEGIN PUBLIC KEY`). `name` stands for it in messages: its file, or a fingerprint.
  static Result<PublicKey> parse(std::string_view pem, std::string name);

  [[nodiscard]] const std::string& name() const { return name_; }
  /// Whether `signature` (of ECDSA: in DER) is that of `message` by the owner of this key.
  [[nodiscard]] bool has_signed(std::string_view message, std::string_view signature) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const;
  };
  using Handle = std::unique_ptr<evp_pkey_st, Free>;

  PublicKey(Handle key, std::string name) : key_(std::move(key)), name_(std::move(name)) {}

  Handle key_;
  std::string name_;
};

}  // namespace spc
