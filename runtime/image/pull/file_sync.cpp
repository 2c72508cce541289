#include "image/pull/file_sync.hpp"

#include <sys/eventfd.h>

#include <cerrno>

namespace spc {

FileSync::FileSync(int file) : done_(::eventfd(0, EFD_CLOEXEC)) {
  thread_ = std::thread([this, file] {
    error_ = ::fdatasync(file) == 0 ? 0 : errno;
    ::eventfd_write(done_.get(), 1);
  });
}

FileSync::~FileSync() {
  if (thread_.joinable()) thread_.join();
}

Result<void> FileSync::finish() {
  thread_.join();
  if (error_ != 0) return Error::from_errno(error_, "write the layer to disk");
  return {};
}

}  // namespace spc
