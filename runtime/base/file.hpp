#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

// --- file ---

/// Writes everything or fails; handles short writes and EINTR.
Result<void> write_all(int fd, std::span<const std::byte> bytes);
inline Result<void> write_all(int fd, std::string_view text) {
  return write_all(fd, std::as_bytes(std::span(text)));
}

/// Fills `into` from offset `at` on. Error, during `step`: fewer bytes are there (EIO).
Result<void> read_exactly(int fd, std::uint64_t at, std::span<std::byte> into, const char* step);

/// Reads from offset 0 to the end, at most `limit` bytes; a longer file is ErrorKind::invalid.
Result<std::string> read_file(int fd, std::size_t limit);

/// Returns an anonymous, sealed memory file holding `bytes`, which is immutable and readable
/// through its descriptor.
Result<UniqueFd> sealed_memory_file(const char* name, std::string_view bytes);

/// Calls openat2(2) with O_CLOEXEC; `resolve`: RESOLVE_*. Retries on EAGAIN, which the kernel
/// returns for a path with `..` if any file of the machine was renamed, or any file system mounted,
/// meanwhile. Empty with errno on failure.
UniqueFd open_resolved(int directory, const char* path, int flags, std::uint64_t resolve);

// --- trusted file ---

/// Opens a regular file of the site, a configuration or a program, for reading. The file, each
/// directory above it up to / and each link in its path must be owned by root (or `owner`) and
/// writable by the owner only. Only a directory with the sticky bit may be writable by others.
/// `what` precedes the path in messages: `configuration`. A missing file is ErrorKind::not_found.
Result<UniqueFd> open_trusted_file(const std::string& path, const std::string& what,
                                   uid_t owner = 0);

/// Does the same for a directory.
Result<UniqueFd> open_trusted_directory(const std::string& path, const std::string& what,
                                        uid_t owner = 0);

}  // namespace spc
