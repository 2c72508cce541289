#define OPENSSL_SUPPRESS_DEPRECATED  // the functions that need no provider

#include "base/hash.hpp"

#include <openssl/evp.h>
#include <openssl/sha.h>
#include <string.h>

namespace spc {

// --- sha256 ---

void Sha256::Free::operator()(SHA256state_st* state) const { delete state; }

Sha256::Sha256() : state_(new SHA256state_st) { ::SHA256_Init(state_.get()); }

void Sha256::update(std::span<const std::byte> bytes) {
  ::SHA256_Update(state_.get(), bytes.data(), bytes.size());
}

Digest Sha256::finish() {
  Digest digest;
  static_assert(sizeof digest.bytes == SHA256_DIGEST_LENGTH);
  ::SHA256_Final(digest.bytes.data(), state_.get());
  return digest;
}

Digest Sha256::of(std::string_view bytes) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(bytes)));
  return hash.finish();
}

// --- base64 ---

namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}
unsigned char* bytes_of(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }

}  // namespace

std::string base64(std::string_view bytes) {
  std::string out((bytes.size() + 2) / 3 * 4, '\0');  // plus the NUL that OpenSSL appends
  EVP_EncodeBlock(bytes_of(out), bytes_of(bytes), static_cast<int>(bytes.size()));
  return out;
}

std::optional<std::string> from_base64(std::string_view text) {
  for (int i = 0; i < 2 && text.ends_with('='); ++i) text.remove_suffix(1);
  // OpenSSL ignores blanks around the text.
  if (text.size() % 4 == 1 || text.find_first_not_of(kDigits) != std::string_view::npos)
    return std::nullopt;
  std::string padded(text);
  padded.append((4 - text.size() % 4) % 4, '=');
  std::string out(padded.size() / 4 * 3, '\0');
  const int size =
      EVP_DecodeBlock(bytes_of(out), bytes_of(padded), static_cast<int>(padded.size()));
  explicit_bzero(padded.data(), padded.size());
  if (size < 0) return std::nullopt;
  out.resize(text.size() * 3 / 4);
  return out;
}

}  // namespace spc
