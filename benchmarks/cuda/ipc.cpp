// bench-ipc: one process's GPU memory read by another, each in its own namespaces or in shared
// ones. Prints lines of JSON.
//
//     bench-ipc [user] [pid] [ipc] [mnt] [net]
//
// The words name the namespaces that each of the two processes creates for itself. Without words
// they share all. The memory is passed in two ways: as cudaIpcMemHandle_t (used by MPI and older
// NCCL), and as a memory pool's file descriptor through a socket (like cuMem of newer NCCL). The
// exit status is 0 whether they work or not, 77 without a GPU.
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kSkipped = 77;
constexpr std::size_t kBytes = std::size_t{64} << 20;
constexpr int kRepeats = 20;
constexpr unsigned char kPattern = 0x5a;

struct Message {
  cudaIpcMemHandle_t legacy;
  cudaMemPoolPtrExportData pointer;
  bool has_legacy, has_pool;
  char why[2][120];  ///< reasons of failed exports
};

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "bench-ipc: %s: %s\n", what, std::strerror(errno));
  ::_exit(1);
}

bool works(cudaError_t error, char (&why)[120], const char* what) {
  if (error == cudaSuccess) return true;
  std::snprintf(why, sizeof why, "%s: %s (%d)", what, cudaGetErrorString(error),
                static_cast<int>(error));
  static_cast<void>(cudaGetLastError());
  return false;
}

void write_file(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || ::write(fd, text.data(), text.size()) < 0) die(path);
  ::close(fd);
}

/// Creates the namespaces. With a pid namespace, the caller continues as its first process.
void enter(int flags) {
  if (flags == 0) return;
  const std::string uid = std::to_string(::geteuid());
  const std::string gid = std::to_string(::getegid());
  if (::unshare(flags) != 0) die("make namespaces");
  if ((flags & CLONE_NEWNS) != 0 && ::mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    die("make mounts private");
  if ((flags & CLONE_NEWUSER) != 0) {
    write_file("/proc/self/setgroups", "deny");
    write_file("/proc/self/uid_map", uid + " " + uid + " 1");
    write_file("/proc/self/gid_map", gid + " " + gid + " 1");
  }
  if ((flags & CLONE_NEWPID) == 0) return;
  const pid_t child = ::fork();
  if (child < 0) die("fork");
  if (child == 0) {
    // CUDA reads /proc/self, which the outer /proc does not have. If /proc cannot be mounted, that
    // is the result.
    if ((flags & CLONE_NEWNS) != 0 && ::mount("proc", "/proc", "proc", 0, nullptr) != 0)
      std::perror("bench-ipc: mount /proc");
    return;
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

void send(int socket, const Message& message, int fd) {
  iovec data{const_cast<Message*>(&message), sizeof message};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
  }
  if (::sendmsg(socket, &header, 0) != static_cast<ssize_t>(sizeof message)) die("send");
}

int receive(int socket, Message& message) {
  iovec data{&message, sizeof message};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  if (::recvmsg(socket, &header, MSG_WAITALL) != static_cast<ssize_t>(sizeof message))
    ::_exit(1);  // the owner has reported the reason
  const cmsghdr* part = CMSG_FIRSTHDR(&header);
  int fd = -1;
  if (part != nullptr && part->cmsg_type == SCM_RIGHTS)
    std::memcpy(&fd, CMSG_DATA(part), sizeof fd);
  return fd;
}

/// Allocates memory and lets the other process read it until that closes the socket.
[[noreturn]] void own(int socket) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    std::fprintf(stderr, "bench-ipc: skipped: no GPU: %s\n",
                 error == cudaSuccess ? "CUDA sees none" : cudaGetErrorString(error));
    ::_exit(kSkipped);
  }
  Message message{};
  void* memory = nullptr;
  message.has_legacy =
      works(cudaMalloc(&memory, kBytes), message.why[0], "cudaMalloc") &&
      works(cudaMemset(memory, kPattern, kBytes), message.why[0], "cudaMemset") &&
      works(cudaDeviceSynchronize(), message.why[0], "wait") &&
      works(cudaIpcGetMemHandle(&message.legacy, memory), message.why[0], "cudaIpcGetMemHandle");
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.handleTypes = cudaMemHandleTypePosixFileDescriptor;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool = nullptr;
  void* pooled = nullptr;
  int fd = -1;
  message.has_pool =
      works(cudaMemPoolCreate(&pool, &properties), message.why[1], "cudaMemPoolCreate") &&
      works(cudaMallocFromPoolAsync(&pooled, kBytes, pool, nullptr), message.why[1],
            "cudaMallocFromPoolAsync") &&
      works(cudaMemset(pooled, kPattern, kBytes), message.why[1], "cudaMemset") &&
      works(cudaDeviceSynchronize(), message.why[1], "wait") &&
      works(cudaMemPoolExportToShareableHandle(&fd, pool, cudaMemHandleTypePosixFileDescriptor, 0),
            message.why[1], "export a pool") &&
      works(cudaMemPoolExportPointer(&message.pointer, pooled), message.why[1], "export a pointer");
  send(socket, message, message.has_pool ? fd : -1);
  char end = 0;
  while (::read(socket, &end, 1) > 0) {
  }
  ::_exit(0);
}

/// Measures the GB/s of copies from `from`, and checks that it contains the owner's data.
bool read_memory(const void* from, double& rate, char (&why)[120]) {
  std::vector<unsigned char> host(1 << 20);
  void* own = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  if (!works(cudaMemcpy(host.data(), from, host.size(), cudaMemcpyDeviceToHost), why, "read") ||
      !works(cudaMalloc(&own, kBytes), why, "cudaMalloc") ||
      !works(cudaEventCreate(&begin), why, "event") ||
      !works(cudaEventCreate(&end), why, "event") || !works(cudaEventRecord(begin), why, "event")) {
    return false;
  }
  for (int i = 0; i < kRepeats; ++i) {
    if (!works(cudaMemcpyAsync(own, from, kBytes, cudaMemcpyDeviceToDevice), why, "copy"))
      return false;
  }
  float milliseconds = 0;
  if (!works(cudaEventRecord(end), why, "event") ||
      !works(cudaEventSynchronize(end), why, "wait") ||
      !works(cudaEventElapsedTime(&milliseconds, begin, end), why, "time")) {
    return false;
  }
  rate = static_cast<double>(kBytes) * kRepeats * 2 / (milliseconds / 1e3) / 1e9;
  for (const unsigned char one : host) {
    if (one == kPattern) continue;
    std::snprintf(why, sizeof why, "other bytes than were written");
    return false;
  }
  return true;
}

void print(const char* way, const std::string& namespaces, bool good, double rate,
           const char* why) {
  std::printf(
      "{\"name\": \"cuda.ipc.%s\", \"namespaces\": \"%s\", \"works\": %s, \"value\": %.6g, "
      "\"unit\": \"GB/s\", \"why\": "
      "\"%s\"}\n",
      way, namespaces.empty() ? "shared" : namespaces.c_str(), good ? "true" : "false", rate,
      good ? "" : why);
  std::fflush(stdout);
}

[[noreturn]] void use(int socket, const std::string& namespaces) {
  Message message{};
  const int fd = receive(socket, message);
  void* memory = nullptr;
  double rate = 0;
  bool good = message.has_legacy &&
              works(cudaIpcOpenMemHandle(&memory, message.legacy, cudaIpcMemLazyEnablePeerAccess),
                    message.why[0], "cudaIpcOpenMemHandle") &&
              read_memory(memory, rate, message.why[0]);
  print("handle", namespaces, good, rate, message.why[0]);
  cudaMemPool_t pool = nullptr;
  rate = 0;
  auto* handle = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
  cudaMemAccessDesc access{};
  access.location = {cudaMemLocationTypeDevice, 0};
  access.flags = cudaMemAccessFlagsProtReadWrite;
  good = message.has_pool &&
         works(cudaMemPoolImportFromShareableHandle(&pool, handle,
                                                    cudaMemHandleTypePosixFileDescriptor, 0),
               message.why[1], "import a pool") &&
         works(cudaMemPoolSetAccess(pool, &access, 1), message.why[1], "allow access") &&
         works(cudaMemPoolImportPointer(&memory, pool, &message.pointer), message.why[1],
               "import a pointer") &&
         read_memory(memory, rate, message.why[1]);
  print("descriptor", namespaces, good, rate, message.why[1]);
  ::_exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  int flags = 0;
  std::string namespaces;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const int flag = word == "user"  ? CLONE_NEWUSER
                     : word == "pid" ? CLONE_NEWPID
                     : word == "ipc" ? CLONE_NEWIPC
                     : word == "mnt" ? CLONE_NEWNS
                     : word == "net" ? CLONE_NEWNET
                                     : 0;
    if (flag == 0) {
      std::fputs("usage: bench-ipc [user] [pid] [ipc] [mnt] [net]\n", stderr);
      return 2;
    }
    flags |= flag;
    namespaces += (namespaces.empty() ? "" : "+") + word;
  }
  std::array<int, 2> sockets{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0)
    die("make a socket");
  // CUDA does not survive a fork: each side initializes it.
  const pid_t owner = ::fork();
  if (owner == 0) {
    ::close(sockets[1]);
    enter(flags);
    own(sockets[0]);
  }
  const pid_t user = ::fork();
  if (user == 0) {
    ::close(sockets[0]);
    enter(flags);
    use(sockets[1], namespaces);
  }
  ::close(sockets[0]);
  ::close(sockets[1]);
  int owners = 0;
  int users = 0;
  ::waitpid(owner, &owners, 0);
  ::waitpid(user, &users, 0);
  if (WIFEXITED(owners) && WEXITSTATUS(owners) == kSkipped) return kSkipped;
  return WIFEXITED(owners) && WEXITSTATUS(owners) == 0 && WIFEXITED(users) &&
                 WEXITSTATUS(users) == 0
             ? 0
             : 1;
}
