#include "image/export/image_tree.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/directory.hpp"
#include "base/file.hpp"
#include "base/format.hpp"

namespace spc {
namespace {

constexpr int kMaxDepth = 200;

Result<void> walk(UniqueFd directory, const std::string& path, int depth,
                  const std::function<Result<void>(const TreeEntry&)>& visit) {
  if (depth > kMaxDepth)
    return Error(ErrorKind::corrupt, "the image's directories are nested too deeply");
  DirectoryReader entries(std::move(directory));
  const int here = entries.descriptor();
  std::vector<std::string> directories;
  std::vector<std::string> names;
  while (entries.next()) names.emplace_back(entries.name());
  if (entries.error() != 0) {
    return Error::from_errno(entries.error(),
                             formatted("read directory {} of the image", in_quotes("/" + path)));
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    TreeEntry found{.path = path + name, .directory = here, .name = name.c_str(), .status = {}};
    if (::fstatat(here, name.c_str(), &found.status, AT_SYMLINK_NOFOLLOW) != 0) {
      return Error::from_errno(errno,
                               formatted("look at {} in the image", in_quotes("/" + found.path)));
    }
    SPC_TRY(visit(found));
    if (S_ISDIR(found.status.st_mode)) directories.push_back(name);
  }
  for (const std::string& name : directories) {
    UniqueFd next(::openat(here, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next)
      return Error::from_errno(
          errno, formatted("open directory {} of the image", in_quotes("/" + path + name)));
    SPC_TRY(walk(std::move(next), path + name + "/", depth + 1, visit));
  }
  return {};
}

}  // namespace

Result<UniqueFd> open_in_image(int root, const std::string& path) {
  UniqueFd file = open_resolved(root, path.c_str(), O_RDONLY | O_NONBLOCK,
                                RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
  if (!file) return Error::from_errno(errno, formatted("open {} in the image", in_quotes(path)));
  return file;
}

std::string text_in_image(int root, const std::string& path, std::size_t limit) {
  const auto file = open_in_image(root, path);
  struct stat status {};
  if (!file || ::fstat(file->get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  std::string text(std::min(limit, static_cast<std::size_t>(status.st_size)), '\0');
  std::size_t got = 0;
  while (got < text.size()) {
    const ssize_t count = ::read(file->get(), text.data() + got, text.size() - got);
    if (count <= 0) break;
    got += static_cast<std::size_t>(count);
  }
  text.resize(got);
  return text;
}

Result<void> walk_image(int root, const std::function<Result<void>(const TreeEntry&)>& visit) {
  UniqueFd directory(::openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return Error::from_errno(errno, "open the image's root");
  return walk(std::move(directory), "", 0, visit);
}

}  // namespace spc
