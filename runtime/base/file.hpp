#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// Writes everything or fails; handles short writes and EINTR.
Result<void> write_all(int fd, std::span<const std::byte> bytes);
inline Result<void> write_all(int fd, std::string_view text) {
  return write_all(fd, std::as_bytes(std::span(text)));
}

/// Reads from offset 0 to the end, at most `limit` bytes; a longer file is ErrorKind::invalid.
Result<std::string> read_file(int fd, std::size_t limit);

/// An anonymous, sealed memory file holding `bytes`: readable with its descriptor, and immutable.
Result<UniqueFd> sealed_memory_file(const char* name, std::string_view bytes);

/// openat2(2) with O_CLOEXEC; `resolve`: RESOLVE_*. Where a path goes up the kernel says EAGAIN if
/// anything on the machine was renamed or mounted meanwhile, and is asked again. Empty: errno says
/// why.
UniqueFd open_resolved(int directory, const char* path, int flags, std::uint64_t resolve);

}  // namespace spc
