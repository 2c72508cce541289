#include "fuse_server.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <stdexcept>

#include "base/file.hpp"
#include "base/hash.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "files.hpp"
#include "protocol/fuse.hpp"

namespace fs = std::filesystem;

namespace spc {
namespace {

constexpr int kFree = 100;  // above the descriptors of the protocol

[[noreturn]] void run_server(int device, int image, int status, const std::string& offset,
                             unsigned uid) {
  static char* const kNoEnvironment[] = {nullptr};
  const std::string path = own_program("fuse");
  std::string program = "fuse";
  std::string argument = offset;
  char* const arguments[] = {program.data(), argument.data(), nullptr};
  if (::dup2(device, kFuseDevice) >= 0 && ::dup2(image, kFuseImage) >= 0 &&
      ::dup2(status, kFuseStatus) >= 0 && ::setresgid(uid, uid, uid) == 0 &&
      ::setresuid(uid, uid, uid) == 0) {
    ::execve(path.c_str(), arguments, kNoEnvironment);
  }
  ::_exit(127);
}

Result<UniqueFd> mount_fuse(int device, unsigned uid) {
  UniqueFd context(static_cast<int>(::syscall(SYS_fsopen, "fuse", FSOPEN_CLOEXEC)));
  const auto set = [&](const char* key, const std::string& value) {
    return ::syscall(SYS_fsconfig, context.get(), FSCONFIG_SET_STRING, key, value.c_str(), 0) == 0;
  };
  const auto flag = [&](const char* key) {
    return ::syscall(SYS_fsconfig, context.get(), FSCONFIG_SET_FLAG, key, nullptr, 0) == 0;
  };
  if (!set("source", "image") || !set("fd", std::to_string(device)) || !set("rootmode", "40000") ||
      !set("user_id", std::to_string(uid)) || !set("group_id", std::to_string(uid)) ||
      !flag("allow_other") || !flag("default_permissions") || !flag("ro") ||
      ::syscall(SYS_fsconfig, context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    return Error::from_errno(errno, "mount fuse");
  }
  UniqueFd mount(
      static_cast<int>(::syscall(SYS_fsmount, context.get(), FSMOUNT_CLOEXEC,
                                 MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID | MOUNT_ATTR_RDONLY)));
  if (!mount) return Error::from_errno(errno, "fsmount fuse");
  return mount;
}

std::string new_directory() {
  std::string name = (fs::temp_directory_path() / "spc-fuse-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
  return name;
}

}  // namespace

ImageScene::ImageScene() : at(new_directory()), tree(at / "tree"), image(at / "image.sqsh") {
  fs::create_directory(tree);
}

ImageScene::~ImageScene() { fs::remove_all(at); }

/// Starts the program and waits for its first message.
Result<void> FuseServer::launch(int image, std::uint64_t offset, unsigned uid) {
  const UniqueFd low_device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  device_.reset(::fcntl(low_device.get(), F_DUPFD_CLOEXEC, kFree));
  const UniqueFd file(::fcntl(image, F_DUPFD_CLOEXEC, kFree));
  if (!device_ || !file) return Error::from_errno(errno, "open device and image");
  auto [ours, low_theirs] = SPC_TRY(socket_pair());
  UniqueFd theirs(::fcntl(low_theirs.get(), F_DUPFD_CLOEXEC, kFree));
  low_theirs.reset();
  pid_ = ::fork();
  if (pid_ == 0) run_server(device_.get(), file.get(), theirs.get(), std::to_string(offset), uid);
  theirs.reset();  // the connection then ends if the server dies
  orders_ = std::move(ours);
  FuseStatus status;
  SPC_TRY(receive_struct(orders_.get(), status));
  return status.error.is_set() ? Result<void>(status.error.error()) : Result<void>();
}

Result<void> FuseServer::mount(unsigned uid, Mount how) {
  const UniqueFd mount =
      how == Mount::claimed ? UniqueFd() : SPC_TRY(mount_fuse(device_.get(), uid));
  device_.reset();
  if (how == Mount::held) hold();
  SPC_TRY(send_struct(orders_.get(), FuseOrder::begin));
  if (how == Mount::claimed) return {};

  root_ = new_directory();
  if (::syscall(SYS_move_mount, mount.get(), "", AT_FDCWD, root_.c_str(),
                MOVE_MOUNT_F_EMPTY_PATH) != 0) {
    return Error::from_errno(errno, "attach the mount");
  }
  return {};
}

Result<FuseServer> FuseServer::start(const fs::path& image, std::uint64_t offset, unsigned uid,
                                     Mount how) {
  const UniqueFd file(::open(image.c_str(), O_RDONLY | O_CLOEXEC));
  FuseServer server;
  SPC_TRY(server.launch(file.get(), offset, uid));
  if (how == Mount::no) {
    server.orders_.reset();
    return server;
  }
  SPC_TRY(server.mount(uid, how));
  return server;
}

Result<FuseServer> FuseServer::start_in_place(const fs::path& image, const Digest& layer) {
  const std::string bytes = contents(image);
  std::string hashes;
  for (std::size_t at = 0; at < bytes.size(); at += kVerifiedChunk) {
    const auto hash = Sha256::of(std::string_view(bytes).substr(at, kVerifiedChunk));
    hashes.append(reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size());
  }
  const UniqueFd file(::open(image.c_str(), O_RDONLY | O_CLOEXEC));
  const auto list = SPC_TRY(sealed_memory_file("hashes", hashes));
  const auto [ours, theirs] = SPC_TRY(socket_pair());
  const int passed[] = {file.get(), list.get()};
  SPC_TRY(send_struct(
      ours.get(),
      FuseLoan{.verified_bytes = bytes.size(), .layer = layer, .hashes = Sha256::of(hashes)},
      passed));
  FuseServer server;
  SPC_TRY(server.launch(theirs.get(), 0, 4242));
  SPC_TRY(server.mount(4242, Mount::yes));
  return server;
}

/// Stops all threads but the first: it takes orders, the others answer requests.
void FuseServer::hold() {
  for (const auto& thread :
       fs::directory_iterator(fs::path("/proc") / std::to_string(pid_) / "task")) {
    const pid_t number = std::stoi(thread.path().filename());
    if (number == pid_) continue;
    if (::ptrace(PTRACE_SEIZE, number, nullptr, nullptr) != 0)
      throw std::runtime_error("trace a thread");
    held_.push_back(number);
    ::ptrace(PTRACE_INTERRUPT, number, nullptr, nullptr);
    ::waitpid(number, nullptr, __WALL);
  }
}

void FuseServer::let_go() {
  for (const pid_t thread : std::exchange(held_, {}))
    ::ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
}

Result<FuseServer> FuseServer::join(unsigned uid) const {
  const auto [theirs, ours] = SPC_TRY(socket_pair());
  const int passed[] = {ours.get()};
  SPC_TRY(send_struct(orders_.get(), FuseOrder::lend, passed));
  FuseServer server;
  SPC_TRY(server.launch(theirs.get(), 0, uid));
  server.device_.reset();
  return server;
}

void FuseServer::unmount() const {
  if (!root_.empty()) ::umount2(root_.c_str(), MNT_DETACH);
}

std::optional<int> FuseServer::await_end() {
  for (int attempt = 0; attempt < 200; ++attempt, ::usleep(10'000)) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) != pid_) continue;
    pid_ = -1;
    return status;
  }
  return std::nullopt;
}

std::optional<int> FuseServer::end() {
  unmount();
  return await_end();
}

std::optional<int> FuseServer::finish() {
  [[maybe_unused]] const auto sent = send_struct(orders_.get(), FuseOrder::finish);
  return await_end();
}

FuseServer::~FuseServer() {
  unmount();
  if (pid_ > 0 && !await_end()) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  if (!root_.empty()) fs::remove(root_, ignored);
}

void make_squashfs(const fs::path& tree, const fs::path& image, const std::string& options) {
  fs::remove(image);
  const std::string command = "mksquashfs '" + tree.string() + "' '" + image.string() +
                              "' -quiet -no-progress -noappend " + options + " >/dev/null 2>&1";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
}

}  // namespace spc
