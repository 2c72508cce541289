#include "hook_engine/enroot_mount/enroot_mount.hpp"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "hook_engine/enroot_mount/mount.hpp"
#include "hook_engine/root_path.hpp"
#include "protocol/hook_mount.hpp"

namespace spc {
namespace {

struct Arguments {
  std::string root = "/";
  int pass = 0;
  std::vector<std::string> files;
};

Arguments arguments_of(int count, char** values) {
  Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string_view value = values[i];
    if (value == "--root" && i + 1 < count) {
      arguments.root = values[++i];
    } else if (value == "--pass" && i + 1 < count) {
      arguments.pass = std::atoi(values[++i]);
    } else {
      arguments.files.emplace_back(value);
    }
  }
  return arguments;
}

/// A pipe or a file, up to 16 MiB.
Result<std::string> text_of(const std::string& name) {
  const UniqueFd file(name == "-" ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                                  : ::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return Error::from_errno(errno, "failed to open: " + name);
  std::string text;
  char piece[4096];
  for (ssize_t size = 0; (size = ::read(file.get(), piece, sizeof piece)) != 0;) {
    if (size < 0 && errno != EINTR) return Error::from_errno(errno, "failed to read: " + name);
    if (size > 0) text.append(piece, static_cast<std::size_t>(size));
    if (text.size() > 16U << 20U)
      return Error(ErrorKind::invalid, formatted("failed to read: {}: file too large", name));
  }
  return text;
}

Result<UniqueFd> connect_to(const char* path) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (std::strlen(path) >= sizeof address.sun_path)
    return Error::from_errno(ENAMETOOLONG, "reach the start of the container");
  std::memcpy(address.sun_path, path, std::strlen(path));
  if (!socket ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return Error::from_errno(errno, "reach the start of the container");
  }
  return socket;
}

bool has_source(const EnrootFstabLine& line) {
  return !line.detach && line.mounts() && (line.flags & (MS_BIND | MS_MOVE)) != 0 &&
         (line.flags & MS_REMOUNT) == 0;
}

MakeTarget target_to_make(const EnrootFstabLine& line, const UniqueFd& source) {
  using Create = EnrootFstabLine::Create;
  if (line.create == Create::file) return MakeTarget::file;
  if (line.create == Create::directory) return MakeTarget::directory;
  if (line.create == Create::no) return MakeTarget::no;
  struct stat status {};
  if (source && ::fstat(source.get(), &status) == 0 && !S_ISDIR(status.st_mode))
    return MakeTarget::file;
  return MakeTarget::directory;
}

/// A mount there would be the container in place of the image.
bool is_root(const UniqueFd& target, int root) {
  struct stat there {};
  struct stat top {};
  return ::fstat(target.get(), &there) == 0 && ::fstat(root, &top) == 0 &&
         there.st_dev == top.st_dev && there.st_ino == top.st_ino;
}

Result<void> mount_line(const EnrootFstabLine& line, int root, const char* step) {
  OpenedMount mount{line, {}, {}};
  if (has_source(line)) {
    mount.source.reset(::open(line.source.c_str(), O_PATH | O_CLOEXEC));
    if (!mount.source) return Error::from_errno(errno, "open " + in_quotes(line.source));
  }
  mount.target = SPC_TRY(open_in_root(root, line.target, target_to_make(line, mount.source)));
  const bool covers = line.mounts() && !line.detach && (line.flags & MS_REMOUNT) == 0;
  if (covers && is_root(mount.target, root))
    return Error::from_errno(EBUSY, "mount at the container's root");
  if (step == nullptr) return mount_alone(mount);
  const auto socket = SPC_TRY(connect_to(step));
  return mount_by_step(mount, socket.get());
}

void complain(const std::string& text) { std::fprintf(stderr, "enroot-mount: %s\n", text.c_str()); }

Result<void> mount_file(const std::string& name, const Arguments& arguments, const char* step) {
  const UniqueFd root(::open(arguments.root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root) return Error::from_errno(errno, "failed to open: " + arguments.root);
  const auto text = SPC_TRY(text_of(name));
  const auto lines = SPC_TRY_DURING(name, parse_enroot_mounts(text));
  for (const EnrootFstabLine& line : lines) {
    if (line.pass != arguments.pass) continue;
    const auto mounted = mount_line(line, root.get(), step);
    if (mounted) continue;
    const char* action = line.detach ? "failed to unmount" : "failed to mount";
    const int failed =
        mounted.error().sys_errno();  // said as the C library does, which is what scripts look for
    const std::string why = failed != 0 ? std::strerror(failed) : mounted.error().message();
    Error error(ErrorKind::system, formatted("{}: {} at {}: {}", action, printable(line.source),
                                             printable(arguments.root + line.target), why));
    if (!line.no_fail) return error;
    if (!line.quiet) complain(error.message());
  }
  return {};
}

}  // namespace

int enroot_mount(int count, char** values) {
  const auto arguments = arguments_of(count, values);
  if (arguments.files.empty()) {
    std::printf("Usage: %s [--root DIR] [--pass N] FSTAB...|-\n", values[0]);
    return 0;
  }
  const char* step = std::getenv(kHookMountSocket);
  for (const std::string& file : arguments.files) {
    if (auto mounted = mount_file(file, arguments, step); !mounted) {
      complain(mounted.error().message());
      return 1;
    }
  }
  return 0;
}

}  // namespace spc
