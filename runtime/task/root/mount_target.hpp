#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// Opens a path in the container of the calling process. Links in the image are followed; /proc
/// links to files of a process are not: they would lead out of it (CVE-2024-21626). Empty with
/// errno on failure.
UniqueFd open_inside(const char* path, int flags);

/// Those that exist stay as they are.
Result<void> make_directories_above(const std::string& path);

/// Creates (with parents) what is missing and returns an O_PATH descriptor of it. The target of a
/// dangling link is created.
Result<UniqueFd> open_target(const std::string& path, bool directory);

/// Who mounts.
struct AttachSource {
  /// Mounts source `index`, or HostTree `index` minus the number of mount targets, at `target`;
  /// `shown_as` is for errors. The mount may still be on its way when this returns.
  std::function<Result<void>(std::uint32_t index, const UniqueFd& target,
                             const std::string& shown_as)>
      begin;
  /// Waits for all that are on their way. Empty: none ever is.
  std::function<Result<void>()> settle;
};

/// The AttachSource of a step.
AttachSource attach_by(int builder);

/// Opens targets while mounts are on their way: one that may lie in such a mount only when that is
/// there.
class MountTargets {
 public:
  explicit MountTargets(const AttachSource& attach) : attach_(attach) {}

  /// As open_target(), for the mount that begins next. ErrorKind::invalid for the container's root:
  /// whatever wants a mount, its target comes this way.
  Result<UniqueFd> open(const std::string& path, bool directory);
  /// Waits for all that have begun.
  Result<void> settle();

 private:
  const AttachSource& attach_;
  std::vector<std::string> begun_;
};

}  // namespace spc
