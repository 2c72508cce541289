// Images accepted by the verifier are readable and have the converter's form. The input is a list
// of changes to the tables of a small image, five bytes each. So mutations reach the fields behind
// compression and offsets.

#include <sys/stat.h>

#include <array>
#include <span>

#include "lib/property.hpp"
#include "unit/image/samples/verify_parts.hpp"
#include "unit/image/samples/verify_sample.hpp"
#include "verify/verify.hpp"

using namespace spc;
using namespace spc::fuzz;

namespace {

constexpr std::size_t kMaxChanges = 64;

/// Returns an uncompressed metadata block, which the verifier accepts as well.
std::string as_is(std::string_view content) {
  std::string block(2, '\0');
  test::put(block, 0, static_cast<std::uint16_t>(content.size() | 0x8000U));
  return block.append(content);
}

/// Applies a change: table, offset (two bytes), operation, value.
void apply(test::Parts& parts, const std::uint8_t* change) {
  constexpr std::array kTables{&test::Parts::inodes,    &test::Parts::directories,
                               &test::Parts::inodes,    &test::Parts::directories,
                               &test::Parts::fragments, &test::Parts::pairs,
                               &test::Parts::sets,      &test::Parts::super};
  std::string& table = parts.*kTables[change[0] % kTables.size()];
  const std::size_t at = (std::size_t{change[1]} << 8U | change[2]) % table.size();
  const std::uint8_t value = change[4];
  switch (change[3] % 4) {
    case 0: table[at] = static_cast<char>(value); break;
    case 1: table[at] = static_cast<char>(table[at] + value); break;
    case 2: table[at] = static_cast<char>(table[at] ^ value); break;
    default:
      table.replace(at, 4, std::string(table, (at + value) % table.size(), 4));
      break;  // a number copied from another offset
  }
}

void check(const test::Found& found) {
  must(found.uid == 0 && found.gid == 0, "everything belongs to 0:0");
  must((found.mode & (S_ISUID | S_ISGID)) == 0, "nothing is setuid or setgid");
  must(!S_ISBLK(found.mode) && !S_ISSOCK(found.mode), "there are no devices and sockets");
  must(!S_ISCHR(found.mode) || found.device == 0, "whiteouts are the only character devices");
  for (const auto& [name, value] : found.xattrs) {
    const bool mark = name == "user.overlay.opaque" || name == "trusted.overlay.opaque";
    must(mark ? value == "y" && S_ISDIR(found.mode)
              : name.starts_with("user.") && !name.starts_with("user.overlay."),
         "attributes are the user's own");
  }
}

}  // namespace

FUZZ_TARGET(verify) {
  static const test::Parts original(test::sample_image());
  test::Parts parts = original;
  for (std::size_t at = 0; at + 5 <= size && at < kMaxChanges * 5; at += 5) apply(parts, data + at);
  std::string image = parts.image(as_is);
  if (size % 5 == 1) image.resize(image.size() - data[size - 1]);
  const auto accepted = verify_layer(std::as_bytes(std::span(image)));
  if (!accepted) {
    must_be_readable(accepted.error());
    must(accepted.error().kind() == ErrorKind::refused, "nothing but a refusal");
    return 0;
  }
  const auto file = test::memory_file(image);
  for (const auto& [path, found] : test::read_image(file.get())) check(found);
  return 0;
}
