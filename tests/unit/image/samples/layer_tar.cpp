#include "unit/image/samples/layer_tar.hpp"

#include <cstdio>

// Per-byte work is compiled here with optimization, unlike the tests.
namespace spc::test {

std::string Header::bytes() const {
  std::string block(512, '\0');
  const auto put = [&](std::size_t at, std::string_view text) {
    block.replace(at, text.size(), text);
  };
  const auto octal = [](std::uint64_t value, int digits) {
    char text[32];
    std::snprintf(text, sizeof text, "%0*llo", digits, static_cast<unsigned long long>(value));
    return std::string(text);
  };
  put(0, std::string_view(name).substr(0, 100));
  put(100, octal(mode, 7));
  put(108, "37777777776");  // an ignored owner
  put(124, size_field.empty() ? octal(size, 11) : size_field);
  put(136, mtime);
  put(156, std::string_view(&type, 1));
  put(157, std::string_view(link).substr(0, 100));
  put(257, gnu ? std::string_view("ustar  \0", 8) : std::string_view("ustar\00000", 8));
  put(345, prefix);
  return sum(block);
}

std::string Header::sum(std::string block) {
  block.replace(148, 8, "        ");
  unsigned total = 0;
  for (const char c : block) total += static_cast<unsigned char>(c);
  char text[8];
  std::snprintf(text, sizeof text, "%06o", total);
  block.replace(148, 7, text, 7);
  return block;
}

void fill_with_noise(std::string& data, std::uint32_t& seed, unsigned shift) {
  for (char& c : data) c = static_cast<char>((seed = seed * 1664525 + 1013904223) >> shift);
}

std::string noise(std::size_t size) {
  std::string data(size, '\0');
  std::uint32_t seed = 1;
  fill_with_noise(data, seed);
  return data;
}

}  // namespace spc::test
