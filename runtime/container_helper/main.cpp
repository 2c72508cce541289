#include <fcntl.h>
#include <limits.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/result.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "hook_engine/enroot_fstab.hpp"
#include "launch/sources/slurm_client.hpp"
#include "protocol/hook_mount.hpp"
#include "protocol/task.hpp"

namespace spc {

// --- modes ---

/// The modes of `container-helper`. Each function gets the arguments of main and returns the exit
/// status.

/// Mode `/proc/self/fd/N FD`, which an image's entrypoint executes in place of the user's command.
/// Writes its work directory and its environment, each text ended by NUL, into the memory file FD
/// and seals it. Only a sealed file is complete.
int probe_entrypoint(int argc, char** argv);

/// Mode `NAME MODE SCRIPT [ARGUMENT]...`: in a container, the program that Slurm executes between
/// itself and a task prolog. From 23.11 on Slurm starts scripts through slurmstepd itself, whose
/// libraries containers lack; the plugin substitutes this program.
int launch_script(int argc, char** argv);

/// Mounted in a container at the path of each of Slurm's commands: executes the host's command
/// `name` with the host's loader and libraries, so that the image needs neither
/// (launch/sources/slurm_client.hpp).
int run_slurm_command(const std::string& name, char** argv);

/// Mounted in a container as "@run": executes the image's own program (kOwnProgram).
int run_own_program(int argc, char** argv);

/// Runs `enroot-mount [--root DIR] [--pass N] FSTAB...|-`: mounts the entries of the files below
/// DIR, as enroot's tool of that name does for its hooks. In a step the start of the container
/// makes the mounts (protocol/hook_mount.hpp), elsewhere this process does, in its user namespace.
/// Returns the exit status.
int enroot_mount(int argc, char** argv);

// --- entrypoint probe ---

namespace {

bool write_text(int fd, const char* text) {
  for (size_t left = std::strlen(text) + 1; left > 0;) {
    const ssize_t written = ::write(fd, text, left);
    if (written <= 0) return false;
    text += written;
    left -= static_cast<size_t>(written);
  }
  return true;
}

}  // namespace

int probe_entrypoint(int argc, char** argv) {
  if (argc < 2) return 2;
  const int fd = std::atoi(argv[1]);
  char directory[PATH_MAX];
  bool written = write_text(fd, ::getcwd(directory, sizeof directory) != nullptr ? directory : "");
  for (char** variable = environ; written && *variable != nullptr; ++variable)
    written = write_text(fd, *variable);
  return written && ::fcntl(fd, F_ADD_SEALS,
                            F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0
             ? 0
             : 1;
}

// --- script launcher ---

int launch_script(int argc, char** argv) {
  if (argc < 3) return 127;
  ::setpgid(0, 0);
  ::close_range(3, ~0U, 0);
  ::execve(argv[2], argc > 3 ? argv + 3 : argv + 2, environ);
  return 127;
}

// --- slurm command ---

namespace {

int refuse(const std::string& name, const char* why) {
  std::fprintf(stderr, "spank-container: %s: %s (hint: start the step with --container-slurm)\n",
               name.c_str(), why);
  return 127;
}

/// Prefixes each directory with the host's part.
std::string under_root(const std::string& directories) {
  std::string moved;
  for (std::size_t at = 0; at < directories.size();) {
    const std::size_t end = std::min(directories.find(':', at), directories.size());
    moved +=
        (moved.empty() ? "" : ":") + std::string(kSlurmRoot) + directories.substr(at, end - at);
    at = end + 1;
  }
  return moved;
}

/// Moves a new step out of the image's directories. A step starts in srun's work directory. A
/// directory of the image does not exist on the host, and Slurm would report that twice for each
/// node. So srun changes to the directory in which the job was submitted. --chdir and the user's
/// own settings take precedence.
void start_steps_outside_the_image() {
  struct stat root {};
  struct stat here {};
  const char* submitted = std::getenv("SLURM_SUBMIT_DIR");
  if (submitted == nullptr || ::stat("/", &root) != 0 || ::stat(".", &here) != 0 ||
      root.st_dev != here.st_dev)
    return;
  ::setenv("SLURM_WORKING_DIR", submitted, 0);
}

}  // namespace

int run_slurm_command(const std::string& name, char** argv) {
  std::map<std::string, std::string> table;
  std::ifstream file(kSlurmTable);
  std::string key;
  std::string value;
  while (file >> key && std::getline(file >> std::ws, value)) table[key] = value;
  if (!table.contains(name)) return refuse(name, "no such Slurm command in this container");

  // Variables of the image or the user are for programs of the image: the host's loader would load
  // such libraries into Slurm's command.
  for (const char* variable : {"LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH"}) ::unsetenv(variable);
  if (name == "srun") start_steps_outside_the_image();
  const std::string loader = kSlurmRoot + table["loader"];
  const std::string program = kSlurmRoot + table[name];
  const std::string libraries = under_root(table["libraries"]);
  std::vector<const char*> arguments{loader.c_str(), "--inhibit-cache", "--library-path",
                                     libraries.c_str(), program.c_str()};
  for (char** argument = argv + 1; *argument != nullptr; ++argument) arguments.push_back(*argument);
  arguments.push_back(nullptr);
  ::execve(loader.c_str(), const_cast<char* const*>(arguments.data()), ::environ);
  return refuse(name, "the host's program cannot be executed");
}

// --- own program ---

int run_own_program(int argc, char** argv) {
  std::vector<std::string> words;
  const char* text = std::getenv(kOwnProgramVariable);
  for (std::string_view rest = text != nullptr ? text : ""; !rest.empty();) {
    const auto colon = rest.find(':');
    std::size_t size = 0;
    if (colon != rest.npos) std::from_chars(rest.data(), rest.data() + colon, size);
    if (colon == rest.npos || size > rest.size() - colon - 1) break;
    words.emplace_back(rest.substr(colon + 1, size));
    rest.remove_prefix(colon + 1 + size);
  }
  words.insert(words.end(), argv + std::min(argc, 1), argv + argc);
  ::unsetenv(kOwnProgramVariable);
  const std::string ours = ":" + std::string(kSlurmStubs);
  if (const char* path = std::getenv("PATH");
      path != nullptr && std::string_view(path).ends_with(ours))
    ::setenv("PATH", std::string(path, std::strlen(path) - ours.size()).c_str(), 1);
  if (words.empty()) return 127;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const char* path = std::getenv("PATH");
  const bool is_path = words[0].find('/') != std::string::npos;
  for (const std::string_view directory : split(is_path || path == nullptr ? "." : path, ':')) {
    const std::string program = is_path ? words[0] : std::string(directory) + "/" + words[0];
    ::execve(program.c_str(), arguments.data(), environ);
    if (errno != ENOENT && errno != ENOTDIR) break;
  }
  std::fprintf(stderr,
               "spank-container: execute \"%s\": %s (hint: it is the image's own program)\n",
               printable(words[0]).c_str(), std::strerror(errno));
  return errno == ENOENT ? 127 : 126;
}

// --- mount alone ---

namespace {

/// A parsed line with opened source and target. `source` is empty if it is not a path.
struct OpenedMount {
  const EnrootFstabLine& line;
  UniqueFd source;
  UniqueFd target;
};

/// Returns a path to an opened file. mount(2) and umount2(2) take paths only, and this one leads to
/// exactly that file.
std::string path_of(const UniqueFd& opened) {
  return "/proc/self/fd/" + std::to_string(opened.get());
}

/// Returns the attributes that a mount of another user namespace must keep; the kernel refuses to
/// change them.
std::uint64_t locked_attributes(int mount) {
  struct statvfs status {};
  if (::fstatvfs(mount, &status) != 0) return 0;
  std::uint64_t attributes = 0;
  for (const auto& [flag, attribute] :
       {std::pair<unsigned long, std::uint64_t>{ST_RDONLY, MOUNT_ATTR_RDONLY},
        {ST_NOSUID, MOUNT_ATTR_NOSUID},
        {ST_NODEV, MOUNT_ATTR_NODEV},
        {ST_NOEXEC, MOUNT_ATTR_NOEXEC},
        {ST_NODIRATIME, MOUNT_ATTR_NODIRATIME}}) {
    if ((status.f_flag & flag) != 0) attributes |= attribute;
  }
  return attributes;
}

std::uint64_t attributes_of(unsigned long flags) {
  std::uint64_t attributes = 0;
  if ((flags & MS_RDONLY) != 0) attributes |= MOUNT_ATTR_RDONLY;
  if ((flags & MS_NOSUID) != 0) attributes |= MOUNT_ATTR_NOSUID;
  if ((flags & MS_NODEV) != 0) attributes |= MOUNT_ATTR_NODEV;
  if ((flags & MS_NOEXEC) != 0) attributes |= MOUNT_ATTR_NOEXEC;
  if ((flags & MS_NODIRATIME) != 0) attributes |= MOUNT_ATTR_NODIRATIME;
  return attributes;
}

Result<void> set_attributes(int mount, std::uint64_t attributes, bool recursive) {
  if (attributes == 0) return {};
  mount_attr change{};
  change.attr_set = attributes;
  if (::mount_setattr(mount, "", AT_EMPTY_PATH | (recursive ? AT_RECURSIVE : 0U), &change,
                      sizeof change) == 0)
    return {};
  return Error::from_errno(errno, "set the flags");
}

Result<void> attach(int tree, const UniqueFd& target) {
  if (::move_mount(tree, "", target.get(), "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) ==
      0)
    return {};
  return Error::from_errno(errno, "attach");
}

Result<UniqueFd> bind(const OpenedMount& mount) {
  const unsigned long flags = mount.line.flags;
  const unsigned recursive = (flags & MS_REC) != 0 ? AT_RECURSIVE : 0U;
  UniqueFd tree(::open_tree(mount.source.get(), "",
                            OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | recursive));
  if (!tree) return Error::from_errno(errno, "copy the mount");
  SPC_TRY(set_attributes(tree.get(), locked_attributes(tree.get()) | attributes_of(flags), false));
  SPC_TRY(attach(tree.get(), mount.target));
  return tree;
}

/// Mounts a new file system. Accepts types unknown to this tool as well, such as overlay: the
/// kernel decides.
Result<UniqueFd> mount_new(const OpenedMount& mount) {
  const EnrootFstabLine& line = mount.line;

  if (::mount(line.source.c_str(), path_of(mount.target).c_str(), line.type.c_str(),
              line.flags & ~static_cast<unsigned long>(MS_REC),
              line.data.empty() ? nullptr : line.data.c_str()) != 0) {
    return Error::from_errno(errno, "mount");
  }
  return UniqueFd();
}

/// Sets the propagation of an attached mount, or of the top mount at the target.
Result<void> set_propagation(const UniqueFd& mount, unsigned long propagation) {
  if (propagation == 0) return {};
  if (::mount(nullptr, path_of(mount).c_str(), nullptr, propagation, nullptr) == 0) return {};
  return Error::from_errno(errno, "set the propagation");
}

}  // namespace

/// Mounts as the calling process, which needs CAP_SYS_ADMIN in its user namespace.
Result<void> mount_alone(const OpenedMount& mount) {
  const EnrootFstabLine& line = mount.line;
  if (line.detach) {
    if (::umount2(path_of(mount.target).c_str(), MNT_DETACH) != 0)
      return Error::from_errno(errno, "unmount");
    return {};
  }
  if (!line.mounts()) return set_propagation(mount.target, line.propagation);
  if ((line.flags & MS_MOVE) != 0) return attach(mount.source.get(), mount.target);
  if ((line.flags & MS_REMOUNT) != 0) {
    return set_attributes(mount.target.get(),
                          locked_attributes(mount.target.get()) | attributes_of(line.flags), false);
  }
  const auto made = SPC_TRY((line.flags & MS_BIND) != 0 ? bind(mount) : mount_new(mount));
  return set_propagation(made ? made : mount.target, line.propagation);
}

// --- mount by step ---

namespace {

/// Returns the value of NAME=VALUE in a list of options.
std::optional<std::string_view> value_of(std::string_view options, std::string_view name) {
  while (!options.empty()) {
    const auto option = options.substr(0, options.find(','));
    options.remove_prefix(std::min(option.size() + 1, options.size()));
    if (option.size() > name.size() && option.starts_with(name) && option[name.size()] == '=') {
      return option.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

/// Parses a size like the kernel: bytes, with k, m or g, or a percentage of the machine's memory.
Result<std::uint64_t> size_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  const auto memory = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                      static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  constexpr std::uint64_t kMost = std::uint64_t{1} << 50;
  if (error == std::errc() && number < kMost) {
    if (unit.empty()) return number;
    if (unit == "%") return memory / 100 * std::min<std::uint64_t>(number, 100);
    const auto power = std::string_view("kmg").find(static_cast<char>(unit[0] | 0x20));
    if (unit.size() == 1 && power != std::string_view::npos && number < kMost >> 30)
      return number << 10 * (power + 1);
  }
  return Error::from_errno(EINVAL, "size=" + std::string(text));
}

Result<void> ask(int socket, const HookMountRequest& request,
                 std::initializer_list<int> descriptors) {
  SPC_TRY(send_struct(socket, request, std::span(descriptors.begin(), descriptors.size())));
  HookMountAnswer answer;
  SPC_TRY(receive_struct(socket, answer));
  if (answer.error != 0) return Error::from_errno(answer.error, "mount");
  return {};
}

/// Sets the mode of the file system that now covers `target`, which still refers to the covered
/// directory.
Result<void> set_mode(const UniqueFd& target, std::string_view text) {
  unsigned mode = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
  if (error != std::errc() || end != text.data() + text.size() || mode > 07777)
    return Error::from_errno(EINVAL, "mode=");
  // Use its path, which leads to the top mount.
  char path[4096];
  const auto size =
      ::readlink(("/proc/self/fd/" + std::to_string(target.get())).c_str(), path, sizeof path - 1);
  if (size <= 0) return Error::from_errno(errno, "find the new file system");
  path[size] = '\0';
  if (::chmod(path, mode & 01777U) != 0)
    return Error::from_errno(errno, "set the mode of the new file system");
  return {};
}

}  // namespace

/// Lets the start of the step make the mount, through `socket`: binds and tmpfs, with flags that
/// can be added but not removed. `remount` mounts the target on itself. Unmounting and moving is
/// refused: EPERM.
Result<void> mount_by_step(const OpenedMount& mount, int socket) {
  const EnrootFstabLine& line = mount.line;
  if (line.detach || (line.flags & MS_MOVE) != 0) return Error::from_errno(EPERM, "remove a mount");
  if (!line.mounts()) return {};  // no mount propagates from here
  HookMountRequest request;
  request.flags = source_flags_of(line);
  if ((line.flags & MS_REMOUNT) != 0)
    return ask(socket, request, {mount.target.get(), mount.target.get()});
  if ((line.flags & MS_BIND) != 0)
    return ask(socket, request, {mount.target.get(), mount.source.get()});
  if (line.type != "tmpfs")
    return Error::from_errno(EPERM, "mount a file system of type " + in_quotes(line.type));
  request.flags |= TaskMessage::source_tmpfs;
  if (const auto size = value_of(line.data, "size")) request.size = SPC_TRY(size_of(*size));
  SPC_TRY(ask(socket, request, {mount.target.get()}));
  const auto mode = value_of(line.data, "mode");
  // A read-only mount keeps 0755.
  return mode && (line.flags & MS_RDONLY) == 0 ? set_mode(mount.target, *mode) : Result<void>();
}

// --- enroot mount ---

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

/// Reads a pipe or a file, up to 16 MiB.
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

/// Returns whether the target is the root: a mount there would replace the image.
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
        mounted.error().sys_errno();  // worded as in the C library, which scripts search for
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

// --- main ---

// /usr/libexec/spank-container/container-helper: one static program that containers and hooks
// execute, independent of the libraries there. It runs with the user's rights only.
//   mounted at the path of a Slurm command   that command
//   mounted as @run                          the image's own program
//   enroot/enroot-mount, a link to it        mounts for enroot's hooks
//   /proc/self/fd/N                          the probe behind an image's entrypoint
//   any other name                           in slurmstepd's place, the launcher of a task prolog

namespace {

std::string last_part(std::string_view path) {
  return std::string(path.substr(path.find_last_of('/') + 1));
}

}  // namespace

int main(int argc, char** argv) {
  char self[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", self, sizeof self);
  const std::string lies_at = last_part({self, size > 0 ? static_cast<std::size_t>(size) : 0});
  const std::string_view called = argc > 0 ? argv[0] : "";
  if (lies_at == spc::kOwnProgram) return spc::run_own_program(argc, argv);
  if (!lies_at.empty() && !lies_at.starts_with("container-helper"))
    return spc::run_slurm_command(lies_at, argv);
  if (last_part(called) == "enroot-mount") return spc::enroot_mount(argc, argv);
  if (called.starts_with("/proc/self/fd/")) return spc::probe_entrypoint(argc, argv);
  return spc::launch_script(argc, argv);
}
