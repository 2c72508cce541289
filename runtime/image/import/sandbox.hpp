#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// Places that a process of the program `import` may still write to, and whether it may start
/// programs.
struct ImportSandbox {
  int store = -1;                  ///< directory below which it writes; -1: none
  std::vector<std::string> paths;  ///< the same by path; missing ones are skipped
  bool may_start = false;          ///< programs: `import resolve` starts `user-source`
};

/// From here on this thread, later ones and their children cannot make or enter namespaces, mount,
/// trace or read other processes, use io_uring, userfaultfd, BPF or keys, or, with Landlock
/// (Linux 5.19), write files elsewhere, /dev/fuse included; nor, unless they may, start anything.
/// Called before there are other threads. Kernels without Landlock have the rest.
Result<void> enter_import_sandbox(const ImportSandbox& sandbox);

}  // namespace spc
