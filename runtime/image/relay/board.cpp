#include "image/relay/board.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <new>
#include <utility>

namespace spc {

Result<SharedBoard> SharedBoard::create() {
  UniqueFd file(::memfd_create("relay", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ::ftruncate(file.get(), sizeof(RelayBoard)) != 0)
    return Error::from_errno(errno, "make the relay's board");
  void* const memory =
      ::mmap(nullptr, sizeof(RelayBoard), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return Error::from_errno(errno, "map the relay's board");
  SharedBoard board(new (memory) RelayBoard, std::move(file));
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (::fcntl(board.file(), F_ADD_SEALS, kSeals) != 0)
    return Error::from_errno(errno, "seal the relay's board");
  return board;
}

Result<SharedBoard> SharedBoard::open(int file) {
  struct stat status {};
  if (::fstat(file, &status) != 0 || status.st_size != sizeof(RelayBoard))
    return Error(ErrorKind::invalid, "not a relay's board");
  void* const memory = ::mmap(nullptr, sizeof(RelayBoard), PROT_READ, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return Error::from_errno(errno, "map the relay's board");
  return SharedBoard(static_cast<RelayBoard*>(memory));
}

SharedBoard::SharedBoard(SharedBoard&& other) noexcept
    : board_(std::exchange(other.board_, nullptr)), file_(std::move(other.file_)) {}

SharedBoard::~SharedBoard() {
  if (board_ != nullptr) ::munmap(board_, sizeof(RelayBoard));
}

}  // namespace spc
