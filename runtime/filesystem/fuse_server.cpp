// The program `fuse`: its sandbox, its threads, the answers to the kernel's requests, and the
// orders of the agent.

#define FUSE_USE_VERSION 35
// The functions of libcrypto that compute SHA-256 and need no other part of it: the program is
// linked statically.
#define OPENSSL_SUPPRESS_DEPRECATED

#include <fuse3/fuse_lowlevel.h>
#include <linux/fuse.h>
#include <malloc.h>
#include <openssl/sha.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <latch>
#include <memory>
#include <new>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "base/file.hpp"
#include "base/process/kernel.hpp"
#include "base/process/sandbox.hpp"
#include "base/result.hpp"
#include "base/socket.hpp"
#include "filesystem/image_reader.hpp"
#include "protocol/fuse.hpp"

namespace spc::fuse {

/// The numbers of a file's descriptors, inherited or reserved; see protocol/fuse.hpp.
struct Numbers {
  int device, image, status;
  int hashes;  ///< of an image in place: its list of hashes
  int log;     ///< a datagram socket to the system's log, if there is one; the same for all files
};

// --- workers ---

/// The threads that answer the kernel's requests. The last one to end ends the process: when all
/// file systems are unmounted, or after finish().
class Workers {
 public:
  /// Starts the threads, because a thread's start needs calls that the sandbox forbids. With
  /// `polls`, each serves all sessions, whose devices are non-blocking. Throws std::system_error if
  /// no thread can be started.
  Workers(const std::vector<fuse_session*>& sessions, bool polls);
  /// Serves this session, whose mount exists.
  void begin(fuse_session* session) {
    epoll_event event{.events = EPOLLIN, .data = {.ptr = session}};
    if (events_) ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, ::fuse_session_fd(session), &event);
    if (!may_begin_.try_wait()) may_begin_.count_down();
  }
  /// Counts a session that cannot be served as ended.
  void leave_one() { --sessions_left_; }
  /// Lets each thread answer its current request and read no further one. Other servers answer the
  /// requests that are left.
  [[noreturn]] void finish();

 private:
  void work(std::size_t number);
  /// Returns the session to read a request from; null if there is none now.
  fuse_session* next_session() {
    epoll_event event{.events = 0, .data = {.ptr = first_}};
    const bool found = !events_ || ::epoll_wait(events_.get(), &event, 1, -1) == 1;
    return found ? static_cast<fuse_session*>(event.data.ptr) : nullptr;
  }
  /// Returns whether no session is left.
  bool end_session(fuse_session* session) {
    // Of several threads that notice the end, one removes the device.
    const bool removed = events_ && ::epoll_ctl(events_.get(), EPOLL_CTL_DEL,
                                                ::fuse_session_fd(session), nullptr) == 0;
    if (removed && --sessions_left_ == 0) ::_exit(0);
    return !events_;
  }

  static constexpr unsigned kMost = 16;
  fuse_session* const first_;
  UniqueFd events_;  ///< epoll of the devices; empty: the threads read from the only one
  std::atomic<std::size_t> sessions_left_;
  std::array<pid_t, kMost> ids_{};
  std::atomic<unsigned> working_;
  std::atomic<bool> finishing_ = false;
  std::latch started_;
  std::latch may_begin_{1};
  std::vector<std::jthread> threads_;
};

// --- file system ---

/// Answers the kernel's requests for one image, for a mount with `allow_other,default_permissions`:
/// everything is owned by one user and group, the content is constant, and read errors are EIO.
///
/// Exposes only the extended attributes user.* and overlayfs's mark of an opaque directory: labels,
/// ACLs and capabilities from an untrusted image must have no effect.
class FileSystem {
 public:
  /// Creates the object before the session. The image may be set later, but before the first
  /// request.
  static std::unique_ptr<FileSystem> create(uid_t uid, gid_t gid) {
    return std::unique_ptr<FileSystem>(new FileSystem(uid, gid));
  }
  void serve(std::unique_ptr<ImageReader> image) { reader_ = std::move(image); }

  /// Waits for the kernel's INIT request. No other server may join before it: the kernel sends INIT
  /// only once, and it must reach the first server.
  void await_init() const { is_initialized_.wait(false); }
  void initialize(fuse_conn_info& connection);

  /// Operations for fuse_session_new(), with this object as user data.
  static const fuse_lowlevel_ops& operations();

  // One function per kernel request. Each sends the reply, or returns an Error for EIO.
  Result<void> lookup(fuse_req_t request, fuse_ino_t parent, std::string_view name);
  Result<void> getattr(fuse_req_t request, fuse_ino_t node);
  Result<void> readlink(fuse_req_t request, fuse_ino_t node);
  Result<void> read(fuse_req_t request, fuse_ino_t node, std::size_t size, std::uint64_t offset);
  Result<void> readdir(fuse_req_t request, fuse_ino_t node, std::size_t size, std::uint64_t offset,
                       bool with_attributes);
  Result<void> getxattr(fuse_req_t request, fuse_ino_t node, std::string_view name,
                        std::size_t size);
  Result<void> listxattr(fuse_req_t request, fuse_ino_t node, std::size_t size);
  Result<void> statfs(fuse_req_t request);

 private:
  FileSystem(uid_t uid, gid_t gid) : uid_(uid), gid_(gid) {}
  [[nodiscard]] std::uint64_t reference_of(fuse_ino_t node) const;
  [[nodiscard]] fuse_ino_t node_of(std::uint64_t reference) const;
  Result<Inode> existing(fuse_ino_t node);
  [[nodiscard]] fuse_entry_param entry_of(const Inode& inode) const;
  [[nodiscard]] struct stat attributes_of(const Inode& inode) const;

  const uid_t uid_;
  const gid_t gid_;
  std::unique_ptr<ImageReader> reader_;
  std::atomic<bool> is_initialized_ = false;
};

// --- sandbox ---

namespace {

/// Confines all threads of this process to computing, using their open descriptors and exiting
/// (base/process/sandbox.hpp). `descriptors`: exclusive upper bound of their numbers.
Result<void> enter_fuse_sandbox(int descriptors) {
  return enter_sandbox(
      {// inherited descriptors
       SCMP_SYS(read),
       SCMP_SYS(write),
       SCMP_SYS(writev),
       SCMP_SYS(pread64),
       SCMP_SYS(fstat),
       SCMP_SYS(newfstatat),
       SCMP_SYS(close),
       SCMP_SYS(recvmsg),
       SCMP_SYS(sendmsg),
       SCMP_SYS(dup3),
       SCMP_SYS(epoll_ctl),
       SCMP_SYS(epoll_wait),
       SCMP_SYS(epoll_pwait),
       // memory and threads
       {SCMP_SYS(mmap), {SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)}},
       SCMP_SYS(futex),
       SCMP_SYS(sched_yield),
       SCMP_SYS(clock_gettime),
       SCMP_SYS(clock_nanosleep),
       SCMP_SYS(restart_syscall)},
      // Far more memory than the caches need: limits what a decompressor allocates for a damaged
      // image.
      {.descriptors = static_cast<rlim_t>(descriptors), .memory = std::uint64_t{4} << 30U});
}

// --- mount sharing ---

/// Receives the file to serve, into `served`. If another server of the mount sends it, attaches
/// this server's device to the mount.
Result<void> borrow(FuseLoan& served, const Numbers& numbers) {
  FuseLoan loan;
  const auto lent =
      SPC_TRY_DURING("wait for the file to serve", receive_struct(numbers.image, loan, 3));
  const std::size_t image = loan.joins ? 1 : 0, hashes = image + (loan.verified_bytes > 0 ? 1 : 0);
  if (lent.size() != hashes + 1)
    return Error(ErrorKind::internal, "wait for the file to serve: none has come");
  const auto device = static_cast<std::uint32_t>(lent[0].get());
  if (loan.joins && ::ioctl(numbers.device, FUSE_DEV_IOC_CLONE, &device) != 0)
    return Error::from_errno(errno, "clone a FUSE device");
  if (!loan.joins) loan.for_root = served.for_root;
  if (::dup2(lent[image].get(), numbers.image) < 0 ||
      (hashes > image && ::dup2(lent[hashes].get(), numbers.hashes) < 0))
    return Error::from_errno(errno, "take the image");
  served = loan;
  return {};
}

/// Sends file and device to a joining server at the other end of `socket`. Sends nothing to a
/// server that has exited or does not read.
void lend(int socket, FuseLoan what, const Numbers& numbers) {
  what.joins = true;
  const int passed[] = {numbers.device, numbers.image, numbers.hashes};
  [[maybe_unused]] const auto sent = send_struct(
      socket, what, std::span(passed).first(what.verified_bytes > 0 ? 3 : 2), WhenFull::fail);
}

// --- workers ---

/// Signal that only makes a thread return from waiting for a request.
constexpr int kWake = SIGUSR1;

/// Returns the number of usable processors, and at least two, so that one large block does not
/// block all requests.
unsigned thread_count(unsigned most) { return std::clamp(usable_processors(), 2U, most); }

}  // namespace

Workers::Workers(const std::vector<fuse_session*>& sessions, bool polls)
    : first_(sessions.front()),
      sessions_left_(sessions.size()),
      working_(thread_count(kMost)),
      started_(working_) {
  if (polls) events_.reset(::epoll_create1(EPOLL_CLOEXEC));
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};
  ::sigaction(kWake, &nothing, nullptr);
  const unsigned wanted = working_;
  try {
    for (std::size_t i = 0; i < wanted; ++i) threads_.emplace_back([this, i] { work(i); });
    // The user's process limit may be reached. One thread is enough.
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;
    const auto fewer = wanted - static_cast<unsigned>(threads_.size());
    working_ -= fewer;
    started_.count_down(fewer);
  }
  started_.wait();
}

void Workers::work(std::size_t number) {
  sigset_t wake;
  ::sigemptyset(&wake);
  ::sigaddset(&wake, kWake);
  ::pthread_sigmask(SIG_UNBLOCK, &wake, nullptr);
  ids_[number] = ::gettid();
  started_.count_down();
  may_begin_.wait();
  fuse_buf request{};
  while (!finishing_) {
    fuse_session* const session = next_session();
    const int got = session != nullptr ? ::fuse_session_receive_buf(session, &request) : -EAGAIN;
    // There is no request: interrupted, or another thread has read it.
    if (got == -EINTR || got == -EAGAIN) continue;
    if (got > 0) {
      ::fuse_session_process_buf(session, &request);
    } else if (end_session(session)) {
      break;
    }
  }
  // Skip exit handlers, which need calls that the sandbox forbids.
  if (--working_ == 0) ::_exit(0);
}

void Workers::finish() {
  constexpr unsigned kPause = 1000;  // microseconds
  finishing_ = true;
  // Repeat the signal: a thread may have been about to wait.
  for (;;) {
    for (const pid_t thread : ids_) {
      if (thread != 0) ::syscall(SYS_tgkill, ::getpid(), thread, kWake);
    }
    ::usleep(kPause);
  }
}

// --- file system ---

namespace {

constexpr double kForever = 365.0 * 24 * 3600;  // seconds: the image does not change
constexpr std::size_t kZeros = 64 << 10;
// The kernel's limit is 256 pages of 64 KiB. A larger request gets this much.
constexpr std::size_t kMostAsked = 16 << 20;
// References begin at 0, but the nodes 0 and 1 are reserved.
constexpr fuse_ino_t kNodesBefore = FUSE_ROOT_ID + 1;

FileSystem& file_system_of(fuse_req_t request) {
  return *static_cast<FileSystem*>(::fuse_req_userdata(request));
}

/// Calls `body` to answer one request, and turns every failure into an errno. If the kernel has
/// cancelled the request, a failed answer is no error.
template <typename Answer>
void answer(fuse_req_t request, const Answer& body) noexcept {
  int err = EIO;
  try {
    const Result<void> done = body(file_system_of(request));
    if (done) return;
  } catch (const std::bad_alloc&) {
    err = ENOMEM;
  } catch (...) {
    err = EIO;
  }
  ::fuse_reply_err(request, err);
}

bool is_shown(std::string_view xattr) {
  return xattr.starts_with("user.") || xattr == "trusted.overlay.opaque";
}

/// Replies with a value or a list of names, or only with its size if the caller requests that.
void reply_sized(fuse_req_t request, std::string_view bytes, std::size_t room) {
  if (room == 0) {
    ::fuse_reply_xattr(request, bytes.size());
  } else if (bytes.size() > room) {
    ::fuse_reply_err(request, ERANGE);
  } else {
    ::fuse_reply_buf(request, bytes.data(), bytes.size());
  }
}

void init(void* files, fuse_conn_info* connection) {
  static_cast<FileSystem*>(files)->initialize(*connection);
}

}  // namespace

void FileSystem::initialize(fuse_conn_info& connection) {
  constexpr unsigned kWanted = FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS |
                               FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO |
                               FUSE_CAP_CACHE_SYMLINKS | FUSE_CAP_NO_OPEN_SUPPORT |
                               FUSE_CAP_NO_OPENDIR_SUPPORT;
  connection.want = connection.capable & kWanted;
  is_initialized_ = true;
  is_initialized_.notify_all();
}

std::uint64_t FileSystem::reference_of(fuse_ino_t node) const {
  return node == FUSE_ROOT_ID ? reader_->summary().root : node - kNodesBefore;
}

fuse_ino_t FileSystem::node_of(std::uint64_t reference) const {
  return reference == reader_->summary().root ? FUSE_ROOT_ID : reference + kNodesBefore;
}

Result<Inode> FileSystem::existing(fuse_ino_t node) {
  auto inode = SPC_TRY(reader_->inode(reference_of(node)));
  if (!inode) return damaged("a device node");
  return *inode;
}

struct stat FileSystem::attributes_of(const Inode& inode) const {
  struct stat attributes {};
  attributes.st_ino = inode.number;
  attributes.st_mode = inode.mode;
  attributes.st_nlink = inode.links;
  attributes.st_uid = uid_;
  attributes.st_gid = gid_;
  attributes.st_size = static_cast<off_t>(inode.size);
  attributes.st_blocks = static_cast<blkcnt_t>((inode.size + 511) / 512);
  attributes.st_blksize = static_cast<blksize_t>(reader_->summary().block_size);
  attributes.st_atim.tv_sec = attributes.st_mtim.tv_sec = attributes.st_ctim.tv_sec = inode.mtime;
  return attributes;
}

fuse_entry_param FileSystem::entry_of(const Inode& inode) const {
  fuse_entry_param entry{};
  entry.ino = node_of(inode.reference);
  entry.attr = attributes_of(inode);
  entry.attr_timeout = entry.entry_timeout = kForever;
  return entry;
}

Result<void> FileSystem::lookup(fuse_req_t request, fuse_ino_t parent, std::string_view name) {
  const auto inode = SPC_TRY(existing(parent));
  const auto directory = SPC_TRY(reader_->directory(inode));
  fuse_entry_param entry{};
  entry.entry_timeout = kForever;  // also the time-out of a missing file
  if (const Directory::Entry* found = directory->find(name)) {
    if (const auto child = SPC_TRY(reader_->inode(found->reference))) entry = entry_of(*child);
  }
  ::fuse_reply_entry(request, &entry);
  return {};
}

Result<void> FileSystem::getattr(fuse_req_t request, fuse_ino_t node) {
  const auto inode = SPC_TRY(existing(node));
  const struct stat attributes = attributes_of(inode);
  ::fuse_reply_attr(request, &attributes, kForever);
  return {};
}

Result<void> FileSystem::readlink(fuse_req_t request, fuse_ino_t node) {
  const auto inode = SPC_TRY(existing(node));
  const auto target = SPC_TRY(reader_->link_target(inode));
  ::fuse_reply_readlink(request, target.c_str());
  return {};
}

Result<void> FileSystem::read(fuse_req_t request, fuse_ino_t node, std::size_t size,
                              std::uint64_t offset) {
  static std::array<std::byte, kZeros> zeros{};
  const auto inode = SPC_TRY(existing(node));
  const auto pieces = SPC_TRY(reader_->read(inode, offset, std::min(size, kMostAsked)));
  std::vector<iovec> parts;
  for (const Piece& piece : pieces) {
    if (piece.block) {
      parts.push_back({piece.block->bytes.get() + piece.offset, piece.size});
      continue;
    }
    for (std::size_t left = piece.size; left != 0; left -= parts.back().iov_len) {
      parts.push_back({zeros.data(), std::min(left, zeros.size())});
    }
  }
  ::fuse_reply_iov(request, parts.data(), static_cast<int>(parts.size()));
  return {};
}

Result<void> FileSystem::readdir(fuse_req_t request, fuse_ino_t node, std::size_t size,
                                 std::uint64_t offset, bool with_attributes) {
  const auto inode = SPC_TRY(existing(node));
  const auto directory = SPC_TRY(reader_->directory(inode));
  size = std::min(size, kMostAsked);
  std::vector<char> answer(size);
  std::size_t used = 0;
  // Offsets count entries. 0 and 1 are "." and "..", for which the kernel uses only the type.
  for (std::uint64_t at = offset; at < directory->entries.size() + 2; ++at) {
    fuse_entry_param entry{};
    entry.attr.st_mode = S_IFDIR;
    entry.attr.st_ino = inode.number;
    std::string name = at == 0 ? "." : "..";
    if (at >= 2) {
      const Directory::Entry& found = directory->entries[at - 2];
      name = directory->name(found);
      entry.attr.st_mode = found.type;
      entry.attr.st_ino = found.number;
      if (with_attributes) {
        // List an unreadable entry without attributes. A lookup of it then gets the error.
        if (const auto known = reader_->inode(found.reference); known && *known)
          entry = entry_of(**known);
      }
    }
    const std::size_t needed =
        with_attributes
            ? ::fuse_add_direntry_plus(request, answer.data() + used, size - used, name.c_str(),
                                       &entry, static_cast<off_t>(at + 1))
            : ::fuse_add_direntry(request, answer.data() + used, size - used, name.c_str(),
                                  &entry.attr, static_cast<off_t>(at + 1));
    if (needed > size - used) break;
    used += needed;
  }
  ::fuse_reply_buf(request, answer.data(), used);
  return {};
}

Result<void> FileSystem::getxattr(fuse_req_t request, fuse_ino_t node, std::string_view name,
                                  std::size_t size) {
  if (!reader_->summary().has_xattrs) {
    ::fuse_reply_err(request, ENOSYS);  // the kernel never asks again
    return {};
  }
  if (is_shown(name)) {
    const auto inode = SPC_TRY(existing(node));
    for (const auto& [known, value] : SPC_TRY(reader_->xattrs(inode))) {
      if (known != name) continue;
      reply_sized(request, value, size);
      return {};
    }
  }
  ::fuse_reply_err(request, ENODATA);
  return {};
}

Result<void> FileSystem::listxattr(fuse_req_t request, fuse_ino_t node, std::size_t size) {
  const auto inode = SPC_TRY(existing(node));
  std::string names;
  for (const auto& [name, value] : SPC_TRY(reader_->xattrs(inode))) {
    if (is_shown(name)) names.append(name).push_back('\0');
  }
  reply_sized(request, names, size);
  return {};
}

Result<void> FileSystem::statfs(fuse_req_t request) {
  const ImageSummary& summary = reader_->summary();
  struct statvfs numbers {};
  numbers.f_bsize = numbers.f_frsize = summary.block_size;
  numbers.f_blocks = (summary.bytes + summary.block_size - 1) / summary.block_size;
  numbers.f_files = summary.inodes;
  numbers.f_namemax = 255;
  ::fuse_reply_statfs(request, &numbers);
  return {};
}

const fuse_lowlevel_ops& FileSystem::operations() {
  static const fuse_lowlevel_ops kOperations = [] {
    fuse_lowlevel_ops ops{};
    ops.init = init;
    ops.lookup = [](fuse_req_t request, fuse_ino_t parent, const char* name) {
      answer(request, [&](FileSystem& files) { return files.lookup(request, parent, name); });
    };
    ops.getattr = [](fuse_req_t request, fuse_ino_t node, fuse_file_info*) {
      answer(request, [&](FileSystem& files) { return files.getattr(request, node); });
    };
    ops.readlink = [](fuse_req_t request, fuse_ino_t node) {
      answer(request, [&](FileSystem& files) { return files.readlink(request, node); });
    };
    // After ENOSYS the kernel opens files and directories without requests, and keeps its cache.
    ops.open = [](fuse_req_t request, fuse_ino_t, fuse_file_info*) {
      ::fuse_reply_err(request, ENOSYS);
    };
    ops.opendir = [](fuse_req_t request, fuse_ino_t, fuse_file_info*) {
      ::fuse_reply_err(request, ENOSYS);
    };
    ops.read = [](fuse_req_t request, fuse_ino_t node, std::size_t size, off_t offset,
                  fuse_file_info*) {
      answer(request, [&](FileSystem& files) {
        return files.read(request, node, size, static_cast<std::uint64_t>(offset));
      });
    };
    ops.readdir = [](fuse_req_t request, fuse_ino_t node, std::size_t size, off_t offset,
                     fuse_file_info*) {
      answer(request, [&](FileSystem& files) {
        return files.readdir(request, node, size, static_cast<std::uint64_t>(offset), false);
      });
    };
    ops.readdirplus = [](fuse_req_t request, fuse_ino_t node, std::size_t size, off_t offset,
                         fuse_file_info*) {
      answer(request, [&](FileSystem& files) {
        return files.readdir(request, node, size, static_cast<std::uint64_t>(offset), true);
      });
    };
    ops.getxattr = [](fuse_req_t request, fuse_ino_t node, const char* name, std::size_t size) {
      answer(request, [&](FileSystem& files) { return files.getxattr(request, node, name, size); });
    };
    ops.listxattr = [](fuse_req_t request, fuse_ino_t node, std::size_t size) {
      answer(request, [&](FileSystem& files) { return files.listxattr(request, node, size); });
    };
    ops.statfs = [](fuse_req_t request, fuse_ino_t) {
      answer(request, [&](FileSystem& files) { return files.statfs(request); });
    };
    return ops;
  }();
  return kOperations;
}

// --- image in place ---

namespace {

/// Opens a socket to the system's log with this number. Without it the errors stay in the programs
/// that read.
void open_log(int number) {
  const UniqueFd log(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = "/dev/log"};
  if (::connect(log.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    ::dup2(log.get(), number);
}

Digest sha256_of(std::span<const std::byte> bytes) {
  Digest digest;
  SHA256_CTX hash;
  ::SHA256_Init(&hash);
  ::SHA256_Update(&hash, bytes.data(), bytes.size());
  ::SHA256_Final(digest.bytes.data(), &hash);
  return digest;
}

/// A layer in the shared store. Bytes are verified each time they are read from the file, because
/// the file server may deliver other bytes the next time.
class LayerInPlace final : public VerifiedFile {
 public:
  /// Reads the list of hashes. Error: it is not the expected one.
  static Result<std::unique_ptr<LayerInPlace>> open(const FuseLoan& loan, const Numbers& numbers) {
    if (loan.verified_bytes > kMostVerified) return damaged("a layer that is too large");
    std::vector<Digest> hashes((loan.verified_bytes + kVerifiedChunk - 1) / kVerifiedChunk);
    const auto list = std::as_writable_bytes(std::span(hashes));
    SPC_TRY(ImageFile(numbers.hashes, 0, list.size()).read(0, list));
    if (sha256_of(list) != loan.hashes) return damaged("the list of its hashes was changed");
    return std::unique_ptr<LayerInPlace>(new LayerInPlace(loan, numbers, std::move(hashes)));
  }

  Result<void> read(std::uint64_t position, std::span<std::byte> into) override {
    while (!into.empty()) {
      const std::uint64_t chunk = position / kVerifiedChunk, from = position % kVerifiedChunk;
      const auto size = static_cast<std::size_t>(
          std::min(kVerifiedChunk, loan_.verified_bytes - chunk * kVerifiedChunk));
      const std::size_t part = std::min(into.size(), size - static_cast<std::size_t>(from));
      if (part == size) {
        SPC_TRY(load(chunk, into.first(size)));
      } else {
        const auto block = SPC_TRY(chunks_.get(chunk, [&] { return loaded(chunk, size); }));
        std::memcpy(into.data(), block->bytes.get() + from, part);
      }
      into = into.subspan(part);
      position += part;
    }
    return {};
  }

 private:
  static constexpr std::size_t kCachedBytes = 8 << 20;
  static constexpr int kMostLines = 20;

  LayerInPlace(const FuseLoan& loan, const Numbers& numbers, std::vector<Digest> hashes)
      : loan_(loan), numbers_(numbers), hashes_(std::move(hashes)) {}

  Result<void> load(std::uint64_t chunk, std::span<std::byte> into) {
    const ImageFile file(numbers_.image, 0, loan_.verified_bytes);
    auto read = file.read(chunk * kVerifiedChunk, into);
    if (read && sha256_of(into) == hashes_[chunk]) return {};
    const std::string reason = read ? "was changed" : read.error().message();
    if (++lines_ <= kMostLines)
      log("layer " + loan_.layer.str() + " in the shared store: byte " +
          std::to_string(chunk * kVerifiedChunk) + ": " + reason);
    return read ? damaged("a chunk that was changed") : std::move(read);
  }

  Result<Block> loaded(std::uint64_t chunk, std::size_t size) {
    Block block{.bytes = std::unique_ptr<std::byte[]>(new std::byte[size]), .size = size};
    SPC_TRY(load(chunk, {block.bytes.get(), size}));
    return block;
  }

  void log(const std::string& text) const {
    const std::string line = "<27>spank-container: " + text;  // daemon.err
    [[maybe_unused]] const auto sent =
        send_message(numbers_.log, std::as_bytes(std::span(line)), {}, WhenFull::fail);
  }

  const FuseLoan loan_;
  const Numbers numbers_;
  const std::vector<Digest> hashes_;
  Cache<Block> chunks_{kCachedBytes};
  std::atomic<int> lines_ = 0;
};

}  // namespace

// --- main program ---

// `fuse OFFSET,OFFSET...` serves the images at these offsets of files through a FUSE device each,
// or, given a socket instead of a file, the file received from it; see protocol/fuse.hpp.
//
// The order is: everything that needs system calls forbidden by the sandbox, then the sandbox, then
// the first read of a file.

namespace {

/// A file that this process serves.
struct Served {
  FuseLoan loan;
  Numbers numbers{};
  std::unique_ptr<FileSystem> files;
  fuse_session* session = nullptr;
  std::unique_ptr<LayerInPlace> in_place;
  bool has_begun = false;
};

/// `device`: its number, which may be opened later.
Result<fuse_session*> make_session(FileSystem& files, int device) {
  ::fuse_set_log_func([](fuse_log_level, const char*, va_list) {});
  // libfuse reports some errors by perror(), which duplicates the descriptor unless the stream's
  // orientation is set: the sandbox forbids that.
  ::fwide(stderr, -1);
  std::string program = "fuse";
  char* arguments[] = {program.data(), nullptr};
  fuse_args args = FUSE_ARGS_INIT(1, arguments);
  fuse_session* session =
      ::fuse_session_new(&args, &FileSystem::operations(), sizeof(fuse_lowlevel_ops), &files);
  const std::string path = "/dev/fd/" + std::to_string(device);
  if (session == nullptr || ::fuse_session_mount(session, path.c_str()) != 0) {
    return Error(ErrorKind::system, "serve a file system: libfuse cannot use the device");
  }
  return session;
}

void send_status(int socket, const Result<void>& done) {
  const FuseStatus status = done ? FuseStatus() : FuseStatus{WireError(done.error())};
  [[maybe_unused]] const auto sent = send_struct(socket, status);
}

/// Makes a file ready for the sandbox: receives it, and creates its session. libfuse needs only the
/// device's number.
Result<void> prepare(Served& file, bool sets_device) {
  struct stat image {};
  if (sets_device) ::fcntl(file.numbers.device, F_SETFL, O_RDWR | O_NONBLOCK);
  if (::fstat(file.numbers.image, &image) == 0 && S_ISSOCK(image.st_mode))
    SPC_TRY(borrow(file.loan, file.numbers));
  file.files =
      file.loan.for_root ? FileSystem::create(0, 0) : FileSystem::create(::getuid(), ::getgid());
  file.session = SPC_TRY(make_session(*file.files, file.numbers.device));
  return {};
}

/// Reads the super block, in the sandbox.
Result<void> open(Served& file) {
  const FuseLoan& loan = file.loan;
  if (loan.verified_bytes > 0) file.in_place = SPC_TRY(LayerInPlace::open(loan, file.numbers));
  file.files->serve(SPC_TRY(file.in_place
                                ? open_image(ImageFile(*file.in_place, loan.verified_bytes))
                                : open_image(file.numbers.image, loan.offset)));
  return {};
}

/// Calls `body` for each file. Those for which it fails are reported and left out.
template <typename Body>
void keep_good(std::vector<Served>& files, const Body& body) {
  std::erase_if(files, [&](Served& file) {
    const Result<void> done = body(file);
    if (!done) send_status(file.numbers.status, done);
    return !done;
  });
  if (files.empty()) ::_exit(1);
}

void begin(Workers& workers, Served& file) {
  // The kernel sends INIT only once, to the mount's first server, and libfuse serves no request
  // before it. The kernel never uses this request number, and ignores the answer.
  struct {
    fuse_in_header header;
    fuse_init_in init;
  } first{};
  first.header.len = sizeof first;
  first.header.opcode = FUSE_INIT;
  first.header.unique = ~std::uint64_t{1};  // the kernel's numbers are even, and rise from 2
  first.init.major = FUSE_KERNEL_VERSION;
  first.init.minor = FUSE_KERNEL_MINOR_VERSION;
  // All supported kernels set this flag, from which libfuse derives the size of its request buffer.
  first.init.flags = FUSE_MAX_PAGES;
  const fuse_buf buffer{.size = sizeof first, .flags = {}, .mem = &first, .fd = -1, .pos = 0};
  if (file.loan.joins) ::fuse_session_process_buf(file.session, &buffer);
  workers.begin(file.session);
  file.has_begun = true;
}

/// Receives the devices and gives them their numbers.
Result<void> receive_devices(const std::vector<Served>& files) {
  FuseOrder order{};
  const auto devices =
      SPC_TRY_DURING("wait for the devices", receive_struct(kFuseStatus, order, files.size()));
  if (order != FuseOrder::devices || devices.size() != files.size())
    return Error(ErrorKind::internal, "wait for the devices: none have come");
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (::dup3(devices[i].get(), files[i].numbers.device, O_CLOEXEC) < 0)
      return Error::from_errno(errno, "take a device");
  }
  return {};
}

/// Executes orders for these files, which share a status socket. Returns false if its other end is
/// closed: files that are mounted are still served.
bool obey_order(Workers& workers, std::span<Served> files) {
  Served& file = files.front();
  FuseOrder order{};
  const auto passed = receive_struct(file.numbers.status, order, 1);
  if (!passed && !file.has_begun) ::_exit(1);
  if (!passed) return false;
  if (order == FuseOrder::begin && !file.has_begun)
    for (Served& one : files) begin(workers, one);
  if (order == FuseOrder::lend && passed->size() == 1 && file.has_begun) {
    file.files->await_init();
    lend(passed->front().get(), file.loan, file.numbers);
  }
  if (order == FuseOrder::finish) workers.finish();
  return true;
}

/// `together`: the files share a status socket, which passes their devices. `end`: upper bound of
/// the descriptors' numbers.
Result<void> run(std::vector<Served>& files, bool together, int end) {
  const std::size_t count = files.size();
  const bool sets_devices = !together && count > 1;
  keep_good(files, [&](Served& file) { return prepare(file, sets_devices); });
  if (std::ranges::any_of(files, [](const Served& file) { return file.loan.verified_bytes > 0; }))
    open_log(files.front().numbers.log);
  std::vector<fuse_session*> sessions;
  for (const Served& file : files) sessions.push_back(file.session);
  Workers workers(sessions, count > 1);
  const UniqueFd orders(::epoll_create1(EPOLL_CLOEXEC));
  // More descriptors: all devices, or the socket of a joining server.
  SPC_TRY_DURING("entering the sandbox", enter_fuse_sandbox(end + static_cast<int>(count)));
  keep_good(files, [&](Served& file) {
    auto done = open(file);
    if (!done) workers.leave_one();
    return done;
  });
  if (together && files.size() < count) ::_exit(1);
  if (together) SPC_TRY(receive_devices(files));
  const std::size_t sharing = together ? count : 1;
  for (std::size_t i = 0; i < files.size(); i += sharing) {
    send_status(files[i].numbers.status, {});
    if (files[i].loan.joins) begin(workers, files[i]);
    epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
    ::epoll_ctl(orders.get(), EPOLL_CTL_ADD, files[i].numbers.status, &event);
  }
  for (;;) {
    epoll_event event{};
    if (::epoll_wait(orders.get(), &event, 1, -1) != 1) continue;
    const auto some = std::span(files).subspan(event.data.u64, sharing);
    if (!obey_order(workers, some))
      ::epoll_ctl(orders.get(), EPOLL_CTL_DEL, some.front().numbers.status, nullptr);
  }
}

Result<void> guarded(std::vector<Served>& files, bool together, int end) {
  try {
    return run(files, together, end);
  } catch (const std::system_error& e) {
    return Error::from_errno(e.code().value(), "serve a file system: start a thread");
  } catch (const std::exception& e) {
    return Error(ErrorKind::internal, std::string("serve a file system: ") + e.what());
  }
}

/// Returns the files with the offsets in `text`; none: it is not a list of offsets. Not `together`:
/// it is the offset in all files that the process has inherited.
std::vector<Served> files_of(std::string_view text, bool together) {
  std::vector<Served> files;
  while (!text.empty()) {
    FuseLoan& loan = files.emplace_back().loan;
    const char* const end = text.data() + text.size();
    const auto number = std::from_chars(text.data(), end, loan.offset);
    if (number.ec != std::errc()) return {};
    text = {number.ptr, end};
    loan.for_root = text.starts_with(kFuseForRoot);
    if (loan.for_root) text.remove_prefix(std::strlen(kFuseForRoot));
    if (!text.empty() && text.front() != ',') return {};
    text.remove_prefix(std::min<std::size_t>(text.size(), 1));
  }
  for (int status = kFuseStatus + kFusePerFile;
       !together && !files.empty() && ::fcntl(status, F_GETFD) >= 0; status += kFusePerFile)
    files.push_back({.loan = files.front().loan});
  const int count = static_cast<int>(files.size()), hashes = kFuseDevice + kFusePerFile * count;
  for (int i = 0; Served & file : files) {
    const int more = i * kFusePerFile;
    file.numbers = {.device = kFuseDevice + more,
                    .image = kFuseImage + more,
                    .status = together ? kFuseStatus : kFuseStatus + more,
                    .hashes = hashes + i++,
                    .log = hashes + count};
  }
  return files;
}

}  // namespace

}  // namespace spc::fuse

int main(int argc, char** argv) {
  const bool together = argc == 3 && std::string_view(argv[1]) == spc::kFuseTogetherWord;
  auto files = spc::fuse::files_of(together || argc == 2 ? argv[argc - 1] : "", together);
  if (files.empty() || ::fcntl(spc::kFuseStatus, F_GETFD) < 0) {
    constexpr char kUsage[] = "fuse is started by the agent, not manually\n";
    (void)spc::write_all(STDERR_FILENO, std::string_view(kUsage));
    return 2;
  }
  const int hashes = files.front().numbers.hashes, log = files.front().numbers.log;
  ::syscall(SYS_close_range, hashes, ~0U, 0);
  // Reserve the other numbers, so that received descriptors get higher ones.
  for (int number = spc::kFuseDevice; number <= log; ++number)
    if (number >= hashes || (together && ::fcntl(number, F_GETFD) < 0))
      ::dup2(STDIN_FILENO, number);
  // Blocks all signals but SIGKILL and SIGSTOP: a step's signals are meant for its tasks, which
  // need their files to handle them. The server stays in the agent's process group, for which
  // slurmstepd waits. If the agent is killed, the server continues, because the tasks still need
  // their files. Before the mount exists, the status socket reports the agent's end.
  ::prctl(PR_SET_PDEATHSIG, 0);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  // Blocks are allocated often: allocate them from the heap, not by mmap.
  ::mallopt(M_MMAP_THRESHOLD, 4 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 64 << 20);
  ::mallopt(M_ARENA_MAX, 1);
  ::mallopt(M_TOP_PAD, 1 << 20);
  // Beside the reserved descriptors: those of the two epolls.
  const auto failed = spc::fuse::guarded(files, together, log + 3);
  spc::fuse::send_status(spc::kFuseStatus, failed);
  ::_exit(1);
}
