#include "image/user_source/temporary_file.hpp"

#include <fcntl.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "base/format.hpp"

namespace spc::user_source {

Result<UniqueFd> temporary_file(std::uint64_t size) {
  const char* own = std::getenv("TMPDIR");
  std::string tried;
  for (const std::string& directory :
       {std::string(own != nullptr ? own : ""), std::string("/tmp"), std::string("/var/tmp")}) {
    if (!directory.starts_with('/')) continue;
    UniqueFd file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    struct statvfs space {};
    const bool has_room = file && ::fstatvfs(file.get(), &space) == 0 &&
                          std::uint64_t{space.f_bavail} * space.f_frsize >= size;
    if (has_room) return file;
    tried += (tried.empty() ? "" : ", ") + directory;
  }
  return Error(ErrorKind::no_space,
               formatted("no space for {} MB in {}", size / 1'000'000 + 1, tried))
      .hint("set TMPDIR to a directory with enough space");
}

}  // namespace spc::user_source
