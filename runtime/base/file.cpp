#include "base/file.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace spc {

Result<void> write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return Error::from_errno(errno, "write");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Result<std::string> read_file(int fd, std::size_t limit) {
  std::string text;
  char buffer[16384];
  for (;;) {
    const ssize_t got = ::pread(fd, buffer, sizeof buffer, static_cast<off_t>(text.size()));
    if (got < 0) {
      if (errno == EINTR) continue;
      return Error::from_errno(errno, "read");
    }
    if (got == 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
    if (text.size() > limit)
      return Error(ErrorKind::invalid, "file is larger than " + std::to_string(limit) + " bytes");
  }
}

Result<UniqueFd> sealed_memory_file(const char* name, std::string_view bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return Error::from_errno(errno, "create a memory file");
  SPC_TRY(write_all(fd.get(), bytes));
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) !=
      0) {
    return Error::from_errno(errno, "seal a memory file");
  }
  return fd;
}

UniqueFd open_resolved(int directory, const char* path, int flags, std::uint64_t resolve) {
  constexpr int kMostTimes = 100;
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = resolve;
  long file = -1;
  for (int times = 0; file < 0 && times < kMostTimes && (times == 0 || errno == EAGAIN); ++times)
    file = ::syscall(SYS_openat2, directory, path, &how, sizeof how);
  return UniqueFd(static_cast<int>(file));
}

}  // namespace spc
