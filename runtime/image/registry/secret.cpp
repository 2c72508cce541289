#include "image/registry/secret.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/file.hpp"
#include "base/records.hpp"

namespace spc {
namespace {

constexpr std::size_t kMaxFile = 64 << 10;

/// Anything else could not be sent in a header line. Spaces are allowed: some passwords have them.
bool is_one_line(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

Result<RegistrySecret> parse_records(std::string_view bytes) {
  const auto wrong = [](const char* what) {
    return Error(ErrorKind::invalid, std::string("credentials: ") + what);
  };
  RegistrySecret secret;
  Records records(bytes);
  while (records.next()) {
    const std::string_view key = records.key();
    const std::string_view value = records.value();
    if (!is_one_line(value)) return wrong("contain a control character");
    if (key == "username") {
      secret.username = value;
    } else if (key == "password") {
      secret.password = SecretText(std::string(value));
    } else if (key == "identity_token") {
      secret.identity_token = SecretText(std::string(value));
    } else if (key == "registry_token") {
      secret.registry_token = SecretText(std::string(value));
    } else if (key == "source") {
      secret.source = value;
    } else {
      return wrong("unknown key in a record");
    }
  }
  if (records.damaged()) return wrong("damaged record");
  if (secret.empty()) return wrong("contain neither password nor token");
  return secret;
}

}  // namespace

void SecretText::wipe() noexcept {
  // Up to the capacity: a string that was moved from is empty, but a short one leaves its bytes
  // behind.
  ::explicit_bzero(text_.data(), text_.capacity());
}

Result<UniqueFd> RegistrySecret::to_file() const {
  std::string records;
  records.reserve(kMaxFile);  // growing would leave copies behind
  const auto add = [&](std::string_view key, std::string_view value) {
    if (!value.empty()) add_record(records, key, value);
  };
  add("username", username);
  add("password", password.text());
  add("identity_token", identity_token.text());
  add("registry_token", registry_token.text());
  add("source", source);
  if (records.size() > kMaxFile)
    return Error(ErrorKind::invalid, "credentials: are longer than 64 KiB");
  const SecretText wiped(std::move(records));
  return sealed_memory_file("credentials", wiped.text());
}

Result<RegistrySecret> RegistrySecret::from_file(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & (F_SEAL_WRITE | F_SEAL_SHRINK)) != (F_SEAL_WRITE | F_SEAL_SHRINK)) {
    return Error(ErrorKind::invalid, "credentials: not in a sealed memory file");
  }
  const SecretText bytes(SPC_TRY_DURING("credentials", read_file(fd, kMaxFile)));
  return parse_records(bytes.text());
}

}  // namespace spc
