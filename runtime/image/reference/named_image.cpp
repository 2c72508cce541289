#include "image/reference/named_image.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <system_error>

#include "base/file.hpp"
#include "base/text.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostIndexes = 16;
constexpr std::size_t kMostText = 4096;

/// FNV-1a.
std::uint64_t hash_of(std::string_view text, std::uint64_t hash) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

bool NamedImage::is(const Digest& digest) const {
  return digest == manifest || std::ranges::find(indexes, digest) != indexes.end();
}

std::string NamedImage::str() const {
  std::string text = manifest.str() + " " + std::to_string(asked_at) + " " + name;
  for (const Digest& index : indexes) text += " " + index.str();
  return text + "\n";
}

std::optional<NamedImage> NamedImage::parse(std::string_view text) {
  if (!text.ends_with('\n')) return std::nullopt;
  text.remove_suffix(1);
  const auto words = split(text, ' ');
  const auto manifest = Digest::parse(words[0]);
  if (!manifest || words.size() < 3) return std::nullopt;
  NamedImage image{.name = std::string(words[2]), .manifest = *manifest};
  const char* const end = words[1].data() + words[1].size();
  const auto number = std::from_chars(words[1].data(), end, image.asked_at);
  if (number.ec != std::errc{} || number.ptr != end) return std::nullopt;
  for (std::size_t i = 3; i < words.size(); ++i) {
    const auto index = Digest::parse(words[i]);
    if (!index) return std::nullopt;
    image.indexes.push_back(*index);
  }
  return image;
}

void NamedImage::add_indexes(const std::vector<Digest>& more) {
  for (const Digest& index : more) {
    if (indexes.size() < kMostIndexes && std::ranges::find(indexes, index) == indexes.end())
      indexes.push_back(index);
  }
}

Digest name_key(std::string_view name) {
  Digest key;
  const std::uint64_t halves[] = {hash_of(name, 0xcbf29ce484222325),
                                  hash_of(name, 0x84222325cbf29ce4)};
  for (std::size_t i = 0; i < 16; ++i)
    key.bytes[i] = static_cast<std::uint8_t>(halves[i / 8] >> (8 * (i % 8)));
  return key;
}

std::optional<NamedImage> read_named_image(int directory, const std::string& file,
                                           std::optional<uid_t> owner) {
  const UniqueFd opened(
      ::openat(directory, file.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!opened || ::fstat(opened.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return std::nullopt;
  if (owner && status.st_uid != *owner) return std::nullopt;
  const auto text = read_file(opened.get(), kMostText);
  auto image = text ? NamedImage::parse(*text) : std::nullopt;
  if (image) image->written = status.st_mtim.tv_sec;
  return image;
}

}  // namespace spc
