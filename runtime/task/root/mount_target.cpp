#include "task/root/mount_target.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <deque>
#include <memory>

#include "base/file.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "protocol/task.hpp"

namespace spc {
namespace {

constexpr char kWhatFits[] = "source and target must both be directories or both be files";

const char* hint_for_target(int err) {
  return err == EACCES ? "the directory above it belongs to another user in the image: choose a "
                         "target that exists there"
                       : "choose another target";
}

std::string parent_of(const std::string& path) {
  const auto slash = path.find_last_of('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

Result<void> make_directories(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (::mkdir(part.c_str(), 0755) != 0 && errno != EEXIST && errno != EROFS) {
      const int err = errno;
      return Error::from_errno(err, "make directory " + in_quotes(part) + " in the container")
          .hint(hint_for_target(err));
    }
    if (slash == std::string::npos) return {};
  }
}

Result<UniqueFd> open_target_through(const std::string& path, bool directory, int links_left) {
  const int flags = O_PATH | (directory ? O_DIRECTORY : 0);
  UniqueFd target = open_inside(path.c_str(), flags);
  if (target) return target;
  if (errno != ENOENT)
    return Error::from_errno(errno, "open mount target " + in_quotes(path)).hint(kWhatFits);

  char link[PATH_MAX];
  const ssize_t size = ::readlink(path.c_str(), link, sizeof link);
  if (size > 0 && links_left > 0) {
    const std::string next(link, static_cast<std::size_t>(size));
    return open_target_through(next[0] == '/' ? next : parent_of(path) + "/" + next, directory,
                               links_left - 1);
  }
  if (directory) {
    SPC_TRY(make_directories(path));
  } else {
    SPC_TRY(make_directories_above(path));
    const UniqueFd made(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!made) {
      const int err = errno;
      return Error::from_errno(err, "make file " + in_quotes(path) + " in the container")
          .hint(hint_for_target(err));
    }
  }
  target = open_inside(path.c_str(), flags);
  const int err = errno;
  if (!target)
    return Error::from_errno(err, "open mount target " + in_quotes(path))
        .hint(hint_for_target(err));
  return target;
}

/// The builder at the other end, and the mounts that it has not confirmed: it does so in order.
class MountsOfBuilder {
 public:
  explicit MountsOfBuilder(int builder) : builder_(builder) {}

  Result<void> begin(std::uint32_t index, const UniqueFd& target, const std::string& shown_as) {
    constexpr std::size_t kMost = 16;  // that surely fit into the socket's buffers, theirs and ours
    while (waiting_.size() >= kMost) SPC_TRY(await());
    TaskMessage message;
    message.kind = TaskMessageKind::target;
    message.index = index;
    const int passed[] = {target.get()};
    SPC_TRY(send_struct(builder_, message, passed));
    waiting_.push_back(shown_as);
    return {};
  }

  Result<void> settle() {
    while (!waiting_.empty()) SPC_TRY(await());
    return {};
  }

 private:
  Result<void> await() {
    TaskMessage message;
    SPC_TRY(receive_struct(builder_, message));
    const std::string shown_as = std::move(waiting_.front());
    waiting_.pop_front();
    if (message.error == 0) return {};
    return Error::from_errno(message.error, "mount " + in_quotes(shown_as)).hint(kWhatFits);
  }

  int builder_;
  std::deque<std::string> waiting_;
};

/// Whether it says where it lies: no link was followed on the way.
bool says_where(const std::string& path) { return path[0] == '/' && normal_path(path) == path; }

/// Refuses the container's root as a target: a mount there would hide the whole image.
Result<UniqueFd> refuse_root(UniqueFd target, const std::string& path) {
  struct stat there {};
  struct stat root {};
  const bool known = ::fstat(target.get(), &there) == 0 && ::stat("/", &root) == 0;
  if (known && (there.st_dev != root.st_dev || there.st_ino != root.st_ino)) return target;
  return Error(ErrorKind::invalid, "mount target " + in_quotes(path) + " is the container's root")
      .hint("if it is a link of the image, choose another target");
}

bool lies_in(const std::string& path, const std::string& directory) {
  return path == directory || (path.starts_with(directory) && path[directory.size()] == '/');
}

}  // namespace

Result<void> make_directories_above(const std::string& path) {
  return make_directories(parent_of(path));
}

UniqueFd open_inside(const char* path, int flags) {
  return open_resolved(AT_FDCWD, path, flags, RESOLVE_NO_MAGICLINKS);
}

Result<UniqueFd> open_target(const std::string& path, bool directory) {
  return open_target_through(path, directory, 40);
}

AttachSource attach_by(int builder) {
  const auto mounts = std::make_shared<MountsOfBuilder>(builder);
  return {.begin =
              [mounts](std::uint32_t index, const UniqueFd& target, const std::string& shown_as) {
                return mounts->begin(index, target, shown_as);
              },
          .settle = [mounts] { return mounts->settle(); }};
}

Result<UniqueFd> MountTargets::open(const std::string& path, bool directory) {
  const bool apart =
      std::ranges::none_of(begun_, [&](const std::string& other) { return lies_in(path, other); });
  if (apart && says_where(path) && path != "/") {
    UniqueFd target = open_resolved(AT_FDCWD, path.c_str(), O_PATH | (directory ? O_DIRECTORY : 0),
                                    RESOLVE_NO_SYMLINKS);
    if (target) {
      begun_.push_back(path);
      return target;
    }
  }
  SPC_TRY(settle());
  begun_.emplace_back();  // wherever it lies: everything is below it
  return refuse_root(SPC_TRY(open_target(path, directory)), path);
}

Result<void> MountTargets::settle() {
  begun_.clear();
  return attach_.settle ? attach_.settle() : Result<void>();
}

}  // namespace spc
