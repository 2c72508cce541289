#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace spc::test {

/// One tar header as its fields are; `sum` makes it valid.
struct Header {
  std::string name;
  char type = '0';
  std::uint64_t size = 0;
  unsigned mode = 0644;
  std::string link;
  std::string mtime = "00000000017";
  std::string size_field;  ///< instead of size
  std::string prefix;
  bool gnu = false;

  [[nodiscard]] std::string bytes() const {
    std::string block(512, '\0');
    const auto put = [&](std::size_t at, std::string_view text) { block.replace(at, text.size(), text); };
    const auto octal = [](std::uint64_t value, int digits) {
      char text[32];
      std::snprintf(text, sizeof text, "%0*llo", digits, static_cast<unsigned long long>(value));
      return std::string(text);
    };
    put(0, std::string_view(name).substr(0, 100));
    put(100, octal(mode, 7));
    put(108, "37777777776");  // an owner that does not matter
    put(124, size_field.empty() ? octal(size, 11) : size_field);
    put(136, mtime);
    put(156, std::string_view(&type, 1));
    put(157, std::string_view(link).substr(0, 100));
    put(257, gnu ? std::string_view("ustar  \0", 8) : std::string_view("ustar\00000", 8));
    put(345, prefix);
    return sum(block);
  }
  static std::string sum(std::string block) {
    block.replace(148, 8, "        ");
    unsigned total = 0;
    for (const char c : block) total += static_cast<unsigned char>(c);
    char text[8];
    std::snprintf(text, sizeof text, "%06o", total);
    block.replace(148, 7, text, 7);
    return block;
  }
};

/// Bytes that do not compress.
inline std::string noise(std::size_t size) {
  std::string data(size, '\0');
  std::uint32_t seed = 1;
  for (char& c : data) c = static_cast<char>((seed = seed * 1664525 + 1013904223) >> 24U);
  return data;
}

inline std::string padded(std::string data) {
  data.resize((data.size() + 511) / 512 * 512);
  return data;
}

inline std::string record(std::string_view key, std::string_view value) {
  const std::size_t rest = key.size() + value.size() + 3;
  std::size_t length = rest + 1;
  while (rest + std::to_string(length).size() != length) ++length;
  return std::to_string(length) + ' ' + std::string(key) + '=' + std::string(value) + '\n';
}

/// A tar archive, entry by entry.
class Tar {
 public:
  Tar& raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  Tar& entry(const Header& header, std::string_view data = {}) { return raw(header.bytes()).raw(padded(std::string(data))); }
  Tar& file(std::string name, std::string_view data = "data", unsigned mode = 0644) {
    return entry({.name = std::move(name), .size = data.size(), .mode = mode}, data);
  }
  Tar& directory(std::string name, unsigned mode = 0755) { return entry({.name = std::move(name), .type = '5', .mode = mode}); }
  Tar& symlink(std::string name, std::string target) {
    return entry({.name = std::move(name), .type = '2', .link = std::move(target)});
  }
  Tar& hard_link(std::string name, std::string target) {
    return entry({.name = std::move(name), .type = '1', .link = std::move(target)});
  }
  Tar& pax(const std::string& records, char type = 'x') {
    return entry({.name = "PaxHeaders/x", .type = type, .size = records.size()}, records);
  }
  Tar& gnu_long(char type, std::string text) {
    text += '\0';
    return entry({.name = "././@LongLink", .type = type, .size = text.size(), .gnu = true}, text);
  }
  [[nodiscard]] std::string end() const { return bytes_ + std::string(1024, '\0'); }
  [[nodiscard]] std::string without_end() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace spc::test
