#include "base/sha256.hpp"

#include <openssl/evp.h>

#include <cstdlib>

namespace spc {
namespace {

/// libcrypto fails here only without memory or with a broken installation. A wrong digest must
/// never come out.
void require(bool ok) {
  if (!ok) std::abort();
}

}  // namespace

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  require(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::update(std::span<const std::byte> bytes) {
  require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

Digest Sha256::finish() {
  Digest digest;
  unsigned size = 0;
  require(EVP_DigestFinal_ex(context_.get(), digest.bytes.data(), &size) == 1 &&
          size == digest.bytes.size());
  return digest;
}

Digest Sha256::of(std::string_view bytes) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(bytes)));
  return hash.finish();
}

}  // namespace spc
