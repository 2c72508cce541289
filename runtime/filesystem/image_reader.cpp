// Common parts of the image readers: file access, checks, and the choice of the reader.

#include "filesystem/image_reader.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

namespace spc::fuse {

// --- image file ---

Result<void> ImageFile::read(std::uint64_t position, std::span<std::byte> into) const {
  if (position > size_ || into.size() > size_ - position)
    return damaged("a position beyond the end of the image");
  if (verified_ != nullptr) return verified_->read(position, into);
  std::uint64_t at = offset_ + position;
  while (!into.empty()) {
    const ssize_t got = ::pread(file_, into.data(), into.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, "read the image");
    if (got == 0) return Error(ErrorKind::corrupt, "the image was truncated");
    into = into.subspan(static_cast<std::size_t>(got));
    at += static_cast<std::uint64_t>(got);
  }
  return {};
}

// --- image reader ---

const Directory::Entry* Directory::find(std::string_view wanted) const {
  const auto found = std::lower_bound(
      entries.begin(), entries.end(), wanted,
      [&](const Entry& entry, std::string_view other) { return name(entry) < other; });
  return found != entries.end() && name(*found) == wanted ? &*found : nullptr;
}

Result<void> Directory::sort() {
  const auto by_name = [&](const Entry& a, const Entry& b) { return name(a) < name(b); };
  if (!std::is_sorted(entries.begin(), entries.end(), by_name))
    std::sort(entries.begin(), entries.end(), by_name);
  const auto same = [&](const Entry& a, const Entry& b) { return name(a) == name(b); };
  if (std::adjacent_find(entries.begin(), entries.end(), same) != entries.end())
    return damaged("a duplicate name in a directory");
  return {};
}

Result<void> Directory::add(std::string_view name, std::uint64_t reference, std::uint64_t number,
                            mode_t type) {
  constexpr std::string_view kNotInNames{"/\0", 2};
  if (name.empty() || name.size() > kMaxName || name == "." || name == ".." ||
      name.find_first_of(kNotInNames) != std::string_view::npos) {
    return damaged("an invalid name");
  }
  entries.push_back({.reference = reference,
                     .number = number,
                     .name_at = static_cast<std::uint32_t>(names.size()),
                     .type = static_cast<std::uint16_t>(type),
                     .name_bytes = static_cast<std::uint8_t>(name.size())});
  names.append(name);
  return {};
}

Result<std::optional<Inode>> ImageReader::inode(std::uint64_t reference) {
  Inode inode = SPC_TRY(load_inode(reference));
  if (inode.size > kMaxFileBytes) return damaged("an invalid file size");
  if (S_ISLNK(inode.mode) && (inode.size == 0 || inode.size > kMaxTarget))
    return damaged("an invalid link target size");
  if (S_ISBLK(inode.mode) || (S_ISCHR(inode.mode) && inode.device != 0))
    return std::optional<Inode>();
  return std::optional(inode);
}

Result<std::shared_ptr<const Directory>> ImageReader::directory(const Inode& inode) {
  return directories_.get(inode.reference, [&]() -> Result<Directory> {
    if (!S_ISDIR(inode.mode)) return damaged("entries of a non-directory");
    Directory directory;
    SPC_TRY(load_directory(inode, directory));
    SPC_TRY(directory.sort());
    return directory;
  });
}

Result<std::string> ImageReader::link_target(const Inode& inode) {
  if (!S_ISLNK(inode.mode)) return damaged("target of a non-link");
  std::string target = SPC_TRY(load_target(inode));
  if (target.find('\0') != std::string::npos) return damaged("a link's target with a NUL");
  return target;
}

Result<std::vector<Piece>> ImageReader::read(const Inode& file, std::uint64_t start,
                                             std::size_t size) {
  if (!S_ISREG(file.mode)) return damaged("content of a non-file");
  if (start >= file.size || size == 0) return std::vector<Piece>();
  const std::uint64_t end = start + std::min<std::uint64_t>(size, file.size - start);
  auto pieces = SPC_TRY(load_content(file, start, end));
  for (const Piece& piece : pieces) {
    // Another file may have cached the same blocks with a shorter size.
    if (piece.block &&
        (piece.offset > piece.block->size || piece.size > piece.block->size - piece.offset)) {
      return damaged("a block that is too short for its file");
    }
  }
  return pieces;
}

Result<std::unique_ptr<ImageReader>> open_image(const ImageFile& image, Unpacker unpacker,
                                                const CacheLimits& limits, ErofsForm form) {
  std::array<std::byte, kErofsHeadBytes> head{};
  const auto there = std::span(head).first(
      static_cast<std::size_t>(std::min<std::uint64_t>(image.size(), head.size())));
  SPC_TRY(image.read(0, there));
  if (!looks_like_squashfs(there) && looks_like_erofs(there))
    return open_erofs(image, there, unpacker, limits, form);
  return open_squashfs(image, there, unpacker, limits);
}

}  // namespace spc::fuse
