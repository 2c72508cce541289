#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/hook_mount.hpp"

namespace spc {

/// Runs programs that may hang, print without end, and leave processes behind. The calling process
/// becomes a subreaper and must have no other children. Meanwhile it serves their mount requests.
class HookRunner {
 public:
  /// The programs' environment, NAME=VALUE, and their time limit.
  HookRunner(std::vector<std::string> environment, unsigned seconds, Log& log);
  ~HookRunner();
  HookRunner(const HookRunner&) = delete;
  HookRunner& operator=(const HookRunner&) = delete;

  /// Mounts and returns an errno. The descriptors are the target and, if any, the source.
  using MountFor = std::function<int(const HookMountRequest&, const std::vector<UniqueFd>&)>;
  /// Serves the socket `path`, which is created. When `step` hangs up, all programs are killed.
  Result<void> answer_at(const std::string& path, MountFor mount, int step);
  /// The programs keep the capabilities of the calling process.
  void keep_capabilities() { keeps_capabilities_ = true; }

  /// Runs a program until it exits; an error has its name, its kind and its status. Lines of its
  /// standard error go to the log; its standard output is discarded.
  Result<void> run(const std::string& name, const std::vector<std::string>& arguments);

 private:
  struct Running;
  Result<void> start(Running& running, const std::vector<std::string>& arguments);
  Result<void> serve(Running& running);
  void read_lines(Running& running);
  void add_line(Running& running, std::string line);
  void answer(std::size_t connection);
  Error failure(const Running& running, const std::string& how);

  std::vector<std::string> environment_;
  unsigned seconds_;
  Log& log_;
  bool keeps_capabilities_ = false;
  UniqueFd listener_;
  std::vector<UniqueFd> connections_;
  MountFor mount_;
  int step_ = -1;
};

}  // namespace spc
