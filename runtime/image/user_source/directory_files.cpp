#include "image/user_source/directory_files.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.hpp"

namespace spc::user_source {

Result<std::unique_ptr<DirectoryFiles>> DirectoryFiles::open(const std::string& path) {
  UniqueFd directory(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory) {
    const int err = errno;
    auto error = Error::from_errno(err, "open " + in_quotes(path));
    if (err == ENOTDIR) return std::move(error).hint("for an archive write oci-archive:FILE");
    if (err == ENOENT) return std::move(error).hint("it must exist on every node of the step");
    return error;
  }
  return std::unique_ptr<DirectoryFiles>(new DirectoryFiles(std::move(directory), path));
}

Result<std::optional<FilePart>> DirectoryFiles::find(const std::string& name) const {
  UniqueFd file = open_resolved(directory_.get(), name.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY,
                                RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS);
  if (!file) {
    const int err = errno;
    if (err == ENOENT) return std::optional<FilePart>();
    auto error = Error::from_errno(err, "open " + in_quotes(path_ + "/" + name));
    if (err == EXDEV) return std::move(error).hint("a link leads out of the directory");
    return error;
  }
  return std::optional(SPC_TRY(ordinary_file(std::move(file), in_quotes(path_ + "/" + name))));
}

}  // namespace spc::user_source
