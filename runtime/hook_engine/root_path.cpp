#include "hook_engine/root_path.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <string_view>

#include "base/file.hpp"
#include "base/format.hpp"

namespace spc {
namespace {

UniqueFd open_below(int root, const std::string& path, int flags) {
  return open_resolved(root, path.empty() ? "." : path.c_str(), flags | O_PATH,
                       RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
}

/// As it is written: links may go up as they like, and stay inside.
bool climbs_out(std::string_view path) {
  int depth = 0;
  while (!path.empty()) {
    const auto part = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(part.size() + 1, path.size()));
    if (part.empty() || part == ".") continue;
    depth += part == ".." ? -1 : 1;
    if (depth < 0) return true;
  }
  return false;
}

Error error_at(const std::string& path, int err) {
  return Error::from_errno(err, formatted("open {} in the container", in_quotes(path)));
}

}  // namespace

Result<UniqueFd> open_in_root(int root, const std::string& path, MakeTarget make) {
  if (climbs_out(path)) return error_at(path, EXDEV);
  std::string left = path;
  std::string done;  // exists; a directory
  for (int links = 0; links < 40;) {
    while (!left.empty() && left.front() == '/') left.erase(0, 1);
    const std::string part = left.substr(0, left.find('/'));
    const std::string rest = left.substr(std::min(part.size() + 1, left.size()));
    const bool last = rest.find_first_not_of('/') == std::string::npos;
    const std::string here = done + "/" + part;
    UniqueFd found = open_below(root, here, 0);
    if (found && last) return found;
    if (!found) {
      if (errno != ENOENT) return error_at(path, errno);
      const UniqueFd parent = open_below(root, done, O_DIRECTORY);
      if (!parent) return error_at(path, errno);
      char link[PATH_MAX];
      const ssize_t size = ::readlinkat(parent.get(), part.c_str(), link, sizeof link);
      if (size > 0) {
        ++links;
        const std::string next(link, static_cast<std::size_t>(size));
        left = next + "/" + rest;
        if (next[0] == '/') done.clear();
        continue;
      }
      if (make == MakeTarget::no) return error_at(path, ENOENT);
      bool made = false;
      if (last && make == MakeTarget::file) {
        made = bool(UniqueFd(::openat(parent.get(), part.c_str(),
                                      O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644)));
      } else {
        made = ::mkdirat(parent.get(), part.c_str(), 0755) == 0;
      }
      if (!made && errno != EEXIST)
        return Error::from_errno(errno, formatted("make {} in the container", in_quotes(path)));
      if (!made) ++links;
      continue;
    }
    done = here;
    left = rest;
  }
  return error_at(path, ELOOP);
}

}  // namespace spc
