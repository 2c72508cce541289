#include "base/digest.hpp"

namespace spc {
namespace {

int nibble(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

Result<Digest> Digest::parse(std::string_view text) {
  constexpr std::string_view kPrefix = "sha256:";
  const auto refuse = [&](const char* why) {
    return Error(ErrorKind::invalid, "digest " + in_quotes(text) + ": " + why);
  };
  if (!text.starts_with(kPrefix)) return refuse("only sha256 digests are supported");
  text.remove_prefix(kPrefix.size());
  Digest digest;
  if (text.size() != 2 * digest.bytes.size()) return refuse("expected 64 hexadecimal digits");
  for (std::size_t i = 0; i < digest.bytes.size(); ++i) {
    const int high = nibble(text[2 * i]);
    const int low = nibble(text[2 * i + 1]);
    if (high < 0 || low < 0) return refuse("expected 64 lower-case hexadecimal digits");
    digest.bytes[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return digest;
}

std::string Digest::hex() const {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const auto byte : bytes) {
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

}  // namespace spc
