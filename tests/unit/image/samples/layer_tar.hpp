#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spc::test {

/// The fields of one tar header. `sum` makes it valid.
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

  [[nodiscard]] std::string bytes() const;
  static std::string sum(std::string block);
};

/// Appends the next bytes of a pseudorandom sequence that continues from `seed`. They do not
/// compress unless `shift` leaves few bits.
void fill_with_noise(std::string& data, std::uint32_t& seed, unsigned shift = 24);
std::string noise(std::size_t size);

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
  Tar& entry(const Header& header, std::string_view data = {}) {
    return raw(header.bytes()).raw(padded(std::string(data)));
  }
  Tar& file(std::string name, std::string_view data = "data", unsigned mode = 0644) {
    return entry({.name = std::move(name), .size = data.size(), .mode = mode}, data);
  }
  Tar& directory(std::string name, unsigned mode = 0755) {
    return entry({.name = std::move(name), .type = '5', .mode = mode});
  }
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
