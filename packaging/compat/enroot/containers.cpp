#include "containers.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "base/directory.hpp"
#include "base/file.hpp"
#include "base/unique_fd.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::enroot {

using namespace tool;

namespace {

Error invalid_argument(const std::string& text) {
  return Error(ErrorKind::invalid,
               "Invalid argument" + (text.empty() ? "" : ": " + printable(text)));
}

Error no_such_file(const std::string& path) {
  return Error(ErrorKind::not_found, "No such file or directory: " + printable(path));
}

Result<void> check_name(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..")
    return invalid_argument(name);
  return {};
}

Result<void> remove_tree(int parent, const char* name) {
  struct stat status {};
  if (::fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
    return Error::from_errno(errno, "look at " + in_quotes(name));
  if (S_ISDIR(status.st_mode)) {
    // Overlayfs leaves directories without any permission.
    if ((status.st_mode & 0700) != 0700 && ::fchmodat(parent, name, 0700, 0) != 0) {
      return Error::from_errno(errno, "enter " + in_quotes(name));
    }
    DirectoryReader entries(
        UniqueFd(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)));
    while (entries.next()) SPC_TRY(remove_tree(entries.descriptor(), entries.c_name()));
    if (entries.error() != 0)
      return Error::from_errno(entries.error(), "read directory " + in_quotes(name));
  }
  if (::unlinkat(parent, name, S_ISDIR(status.st_mode) ? AT_REMOVEDIR : 0) != 0) {
    return Error::from_errno(errno, "remove " + in_quotes(name));
  }
  return {};
}

/// By hand: copy_file_range() does not lead from one file system to another.
Result<void> copy_file(int from, int to) {
  std::vector<std::byte> buffer(1 << 20);
  for (;;) {
    const ssize_t got = ::read(from, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, "read the image");
    if (got == 0) return {};
    SPC_TRY_DURING("copy the image",
                   write_all(to, std::span(buffer).first(static_cast<std::size_t>(got))));
  }
}

}  // namespace

Result<EnrootContainer> find_container(const std::string& data_path, const std::string& name) {
  SPC_TRY(check_name(name));
  EnrootContainer container{.path = data_path + "/" + name, .image = {}, .changes = {}};
  struct stat status {};
  if (::stat(container.path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode))
    return no_such_file(container.path);
  container.image = container.path + "/image.sqsh";
  if (is_squashfs(container.image)) {
    container.changes = container.path + "/changes";
  } else {
    container.image = container.path;
  }
  return container;
}

Result<std::string> real_path(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> found(::realpath(path.c_str(), nullptr), std::free);
  if (!found) return no_such_file(path);
  return std::string(found.get());
}

bool is_squashfs(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  char magic[4];
  return file && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
         ::pread(file.get(), magic, sizeof magic, 0) == sizeof magic &&
         std::memcmp(magic, "hsqs", sizeof magic) == 0;
}

Result<void> create_container(const std::string& data_path, const std::string& name, bool replace,
                              const std::function<Result<void>(const std::string&)>& put_image) {
  SPC_TRY(check_name(name));
  const std::string path = data_path + "/" + name;
  const bool there = ::access(path.c_str(), F_OK) == 0;
  if (there && !replace)
    return Error(ErrorKind::invalid, "File already exists: " + printable(path));
  SPC_TRY(make_directories(data_path));
  std::string unfinished = data_path + "/." + name + ".XXXXXX";
  if (::mkdtemp(unfinished.data()) == nullptr)
    return Error::from_errno(errno, "make a directory in " + in_quotes(data_path));
  auto put = put_image(unfinished + "/image.sqsh");
  if (put && there) put = remove_container(path);
  if (put && ::rename(unfinished.c_str(), path.c_str()) != 0)
    put = Error::from_errno(errno, "create " + in_quotes(path));
  if (!put) (void)remove_container(unfinished);
  return put;
}

Result<void> put_image_file(const std::string& image, const std::string& path) {
  const UniqueFd from(::open(image.c_str(), O_RDONLY | O_CLOEXEC));
  if (!from) return Error::from_errno(errno, "open " + in_quotes(image));
  UniqueFd to(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!to) return Error::from_errno(errno, "create " + in_quotes(path));
  if (::ioctl(to.get(), FICLONE, from.get()) == 0) return {};
  const std::string other = path + ".link";
  if (::link(image.c_str(), other.c_str()) == 0) {
    if (::rename(other.c_str(), path.c_str()) == 0) return {};
    return Error::from_errno(errno, "create " + in_quotes(path));
  }
  return copy_file(from.get(), to.get());
}

Result<void> remove_container(const std::string& path) {
  auto removed = remove_tree(AT_FDCWD, path.c_str());
  if (!removed) return std::move(removed).error().during("remove " + in_quotes(path));
  return {};
}

Result<std::vector<std::string>> list_containers(const std::string& data_path) {
  std::vector<std::string> names;
  DirectoryReader entries(data_path);
  while (entries.next()) {
    if (!entries.name().starts_with('.')) names.emplace_back(entries.name());
  }
  if (entries.error() != 0 && entries.error() != ENOENT) {
    return Error::from_errno(entries.error(), "read " + in_quotes(data_path));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace spc::enroot
