#include "image/fuse/loan.hpp"

#include <linux/fuse.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/socket.hpp"

namespace spc::fuse {

Result<bool> borrow(FuseLoan& served) {
  FuseLoan loan;
  const auto lent =
      SPC_TRY_DURING("wait for the file to serve", receive_struct(kFuseImage, loan, 2));
  if (lent.empty()) return Error(ErrorKind::internal, "wait for the file to serve: none has come");
  served.offset = loan.offset;
  const bool joins = lent.size() == 2;
  const auto device = static_cast<std::uint32_t>(lent[0].get());
  if (joins && ::ioctl(kFuseDevice, FUSE_DEV_IOC_CLONE, &device) != 0)
    return Error::from_errno(errno, "clone a FUSE device");
  if (joins) served.for_root = loan.for_root;
  if (::dup2(lent.back().get(), kFuseImage) < 0) return Error::from_errno(errno, "take the image");
  return joins;
}

void lend(int socket, const FuseLoan& what) {
  const int passed[] = {kFuseDevice, kFuseImage};
  [[maybe_unused]] const auto sent = send_struct(socket, what, passed, WhenFull::fail);
}

std::vector<std::byte> first_request() {
  fuse_in_header header{};
  fuse_init_in init{};
  header.len = sizeof header + sizeof init;
  header.opcode = FUSE_INIT;
  header.unique = ~std::uint64_t{1};  // the kernel's numbers are even, and rise from 2
  init.major = FUSE_KERNEL_VERSION;
  init.minor = FUSE_KERNEL_MINOR_VERSION;
  init.flags = FUSE_MAX_PAGES;  // the kernels that we know all say so, and libfuse makes its buffer
                                // as large as their requests
  std::vector<std::byte> request(header.len);
  std::memcpy(request.data(), &header, sizeof header);
  std::memcpy(request.data() + sizeof header, &init, sizeof init);
  return request;
}

}  // namespace spc::fuse
