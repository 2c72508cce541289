#pragma once

#define FUSE_USE_VERSION 35
#include <fuse3/fuse_lowlevel.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <latch>
#include <thread>
#include <vector>

namespace spc::fuse {

/// The threads that answer the kernel's requests. The last one to end ends the process: when the
/// file system is unmounted, or after finish().
class Workers {
 public:
  /// They are there when it returns, since a thread's own start needs calls that the sandbox
  /// forbids, and wait for begin(). Throws std::system_error if there can be none.
  explicit Workers(fuse_session* session);
  void begin() { may_begin_.count_down(); }
  /// Each answers what it has taken on, and takes no more. What the kernel has given to nobody yet
  /// is left to other servers.
  [[noreturn]] void finish();
  /// Until the end.
  [[noreturn]] void await();

 private:
  void work(std::size_t number);

  static constexpr unsigned kMost = 16;
  fuse_session* session_;
  std::array<pid_t, kMost> ids_{};
  std::atomic<unsigned> working_;
  std::atomic<bool> finishing_ = false;
  std::latch started_;
  std::latch may_begin_{1};
  std::vector<std::jthread> threads_;
};

}  // namespace spc::fuse
