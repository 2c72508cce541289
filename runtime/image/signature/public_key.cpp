#include "image/signature/public_key.hpp"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

namespace spc {
namespace {

constexpr int kLeastRsaBits = 2048;
constexpr int kMostRsaBits = 16384;

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

const unsigned char* octets(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

void PublicKey::Free::operator()(evp_pkey_st* key) const { EVP_PKEY_free(key); }

Result<PublicKey> PublicKey::parse(std::string_view pem, std::string name) {
  const auto wrong = [&](const char* why) {
    return Error(ErrorKind::invalid, "signature key " + in_quotes(name) + ": " + why);
  };
  const std::unique_ptr<BIO, FreeBio> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Handle key(bio ? PEM_read_bio_PUBKEY(bio.get(), nullptr, nullptr, nullptr) : nullptr);
  ERR_clear_error();
  if (!key) return wrong("is not a public key in PEM form (BEGIN PUBLIC KEY)");
  switch (EVP_PKEY_base_id(key.get())) {
    case EVP_PKEY_EC:
    case EVP_PKEY_ED25519: break;
    case EVP_PKEY_RSA:
      if (EVP_PKEY_bits(key.get()) < kLeastRsaBits)
        return wrong("is an RSA key of fewer than 2048 bits");
      if (EVP_PKEY_bits(key.get()) > kMostRsaBits)
        return wrong("is an RSA key of more than 16384 bits");
      break;
    default: return wrong("is of another kind than ECDSA, RSA and Ed25519");
  }
  return PublicKey(std::move(key), std::move(name));
}

bool PublicKey::has_signed(std::string_view message, std::string_view signature) const {
  const bool hashes_itself = EVP_PKEY_base_id(key_.get()) == EVP_PKEY_ED25519;
  const std::unique_ptr<EVP_MD_CTX, FreeContext> context(EVP_MD_CTX_new());
  const bool signed_by_it =
      context &&
      EVP_DigestVerifyInit(context.get(), nullptr, hashes_itself ? nullptr : EVP_sha256(), nullptr,
                           key_.get()) == 1 &&
      EVP_DigestVerify(context.get(), octets(signature), signature.size(), octets(message),
                       message.size()) == 1;
  ERR_clear_error();
  return signed_by_it;
}

}  // namespace spc
