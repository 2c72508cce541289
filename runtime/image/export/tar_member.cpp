#include "image/export/tar_member.hpp"

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <string_view>

namespace spc {
namespace {

struct Field {
  std::size_t offset, size;
};
constexpr Field kMode{100, 8}, kUid{108, 8}, kGid{116, 8}, kSize{124, 12}, kTime{136, 12},
    kSum{148, 8};
constexpr std::size_t kType = 156, kMagic = 257;
constexpr std::uint64_t kLargestOctal = (std::uint64_t{1} << 33) - 1;

void put_octal(std::string& block, Field field, std::uint64_t number) {
  char text[24];
  std::snprintf(text, sizeof text, "%0*llo", static_cast<int>(field.size - 1),
                static_cast<unsigned long long>(number));
  block.replace(field.offset, field.size - 1, text);
}

}  // namespace

std::string tar_header(const std::string& path, std::uint64_t size) {
  assert(path.size() < kMode.offset);
  std::string block(kTarHeaderBytes, '\0');
  block.replace(0, path.size(), path);
  put_octal(block, kMode, 0644);
  for (const Field field : {kUid, kGid, kTime}) put_octal(block, field, 0);
  if (size <= kLargestOctal) {
    put_octal(block, kSize, size);
  } else {
    block[kSize.offset] = '\x80';
    for (std::size_t i = 0; i < 8; ++i)
      block[kSize.offset + kSize.size - 1 - i] = static_cast<char>(size >> (8 * i));
  }
  block[kType] = '0';
  block.replace(kMagic, 8,
                std::string_view(size <= kLargestOctal ? "ustar\00000" : "ustar  \0", 8));
  block.replace(kSum.offset, kSum.size, "        ");
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  char text[8];
  std::snprintf(text, sizeof text, "%06o", sum);
  block.replace(kSum.offset, 7, std::string_view(text, 7));
  return block;
}

std::string tar_padding(std::uint64_t size) {
  const auto rest = static_cast<std::size_t>(size % kTarHeaderBytes);
  return std::string(rest == 0 ? 0 : kTarHeaderBytes - rest, '\0');
}

}  // namespace spc
