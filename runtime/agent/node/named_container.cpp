#include "agent/node/named_container.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>

#include "agent/node/system_call.hpp"
#include "base/directory.hpp"
#include "protocol/store_layout.hpp"

namespace spc::agent {
namespace {

constexpr char kContainers[] = SPC_STORE_DIR "/containers";
constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

Result<UniqueFd> open_containers() {
  auto opened = own(::open(kContainers, kDirectory), "open directory " + quoted(kContainers));
  if (!opened) return std::move(opened).error().hint("restart slurmd, which creates the store");
  return opened;
}

/// A directory of root in one that only root enters: nobody else can have put anything in its place.
Result<UniqueFd> ensure_at(int parent, const std::string& name) {
  if (::mkdirat(parent, name.c_str(), 0700) != 0 && errno != EEXIST) return Error::from_errno(errno, "make directory " + name);
  return own(::openat(parent, name.c_str(), kDirectory), "open directory " + name);
}

DirectoryReader names_in(int parent, const char* name = ".") {
  return DirectoryReader(UniqueFd(::openat(parent, name, kDirectory)));
}

/// Under a name of our own, in the directory of what is to be deleted. Nothing to move is fine.
Result<void> move_to_trash(int parent, const std::string& name, int trash) {
  static unsigned moved = 0;
  const std::string as = std::to_string(::getpid()) + "." + std::to_string(moved++);
  if (::renameat(parent, name.c_str(), trash, as.c_str()) == 0 || errno == ENOENT) return {};
  return Error::from_errno(errno, "move " + name + " out of the way");
}

/// Deletes what users have written, as deep and as much as it may be, without following any path: what a directory holds is
/// unlinked or moved up while it is read, so that each name is one of ours or one component below it, and none is kept.
void empty(int trash) {
  for (bool progress = true; progress;) {
    progress = false;
    for (DirectoryReader names = names_in(trash); names.next();) {
      for (DirectoryReader below = names_in(trash, names.c_name()); below.next();) {
        const bool gone = ::unlinkat(below.descriptor(), below.c_name(), 0) == 0;
        progress |= gone || (errno == EISDIR && move_to_trash(below.descriptor(), below.c_name(), trash));
      }
      progress |= ::unlinkat(trash, names.c_name(), AT_REMOVEDIR) == 0;
    }
  }
}

/// In a process of its own, which outlives the caller, sees nothing but the trash, and waits for everybody else.
/// While one empties the trash at most one other waits: it begins to read after it has stopped waiting, so whoever finds
/// somebody waiting leaves to him what he has moved there.
Result<void> empty_in_background(int containers, int trash) {
  ::setsid();  // before the fork: when we end, slurmd kills what is left of our group
  const pid_t child = ::fork();
  if (child != 0) return check(child, "fork");
  ::setpriority(PRIO_PROCESS, 0, 19);
  constexpr rlimit kMemory{64 << 20, 64 << 20};
  ::setrlimit(RLIMIT_AS, &kMemory);
  const bool waits = ::flock(containers, LOCK_EX | LOCK_NB) == 0 && ::flock(trash, LOCK_EX) == 0;
  if (waits && ::flock(containers, LOCK_UN) == 0 && ::fchdir(trash) == 0 && ::chroot(".") == 0) empty(trash);
  ::_exit(0);
}

bool is_roots(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == 0;
}

UniqueFd new_socket() { return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

/// A path that fits into an address, however long that of the directory is.
sockaddr_un address_of(int directory, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", directory, name.c_str());
  return address;
}

/// Moves a container that nobody uses to the trash, as a whole.
void remove_if_free(int of_user, const std::string& key, int trash) {
  const UniqueFd directory(::openat(of_user, key.c_str(), kDirectory));
  const UniqueFd lock(::openat(directory.get(), "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return;
  [[maybe_unused]] const auto moved = move_to_trash(of_user, key, trash);
}

bool is_older_than_boot(int of_user, const std::string& key) {
  struct stat status {};
  timespec up{};
  ::clock_gettime(CLOCK_BOOTTIME, &up);
  return ::fstatat(of_user, key.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && status.st_mtime < ::time(nullptr) - up.tv_sec;
}

}  // namespace

Result<bool> NamedContainer::take(bool afresh) {
  const auto containers = SPC_TRY(open_containers());
  const auto of_user = SPC_TRY(ensure_at(containers.get(), std::to_string(uid_)));
  directory_ = SPC_TRY(ensure_at(of_user.get(), key_));
  constexpr int kHow = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
  auto taken = SPC_TRY(own(::openat(directory_.get(), "lock", kHow, 0600), "open the container's lock"));
  if (::flock(taken.get(), LOCK_EX | LOCK_NB) != 0) return false;
  struct stat ours {};
  struct stat named {};
  const bool removed = ::fstat(directory_.get(), &ours) != 0 ||
                       ::fstatat(of_user.get(), key_.c_str(), &named, AT_SYMLINK_NOFOLLOW) != 0 || ours.st_ino != named.st_ino;
  if (removed) return false;  // just now, by somebody who had the lock
  listener = SPC_TRY(listen_at(directory_.get(), "socket"));
  struct stat written {};
  notes = UniqueFd(::openat(directory_.get(), "is/notes", O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  stored_ = !afresh && notes && ::fstat(notes.get(), &written) == 0 && written.st_size > 0;
  if (!stored_) {
    notes = SPC_TRY(own(::openat(directory_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), "create the container's notes"));
  }
  lock = std::move(taken);
  return true;
}

UniqueFd NamedContainer::ask() const { return connect_to(directory_.get(), "socket"); }

Result<ImageFiles> NamedContainer::open_image() const {
  const auto layers = SPC_TRY(own(::openat(directory_.get(), "is/layers", kDirectory), "open the container's layers"));
  auto record = SPC_TRY(own(::openat(directory_.get(), "is/record", O_RDONLY | O_NOFOLLOW | O_CLOEXEC), "open its record"));
  return ImageStore::open_files(std::move(record), layers.get(), Audience::whoever_import_admitted);
}

Result<UniqueFd> NamedContainer::keep(const ImageFiles& image) {
  if (stored_) return own(::openat(directory_.get(), "is", kDirectory), "open the container's files");
  const auto containers = SPC_TRY(open_containers());
  const auto trash = SPC_TRY(ensure_at(containers.get(), "trash"));
  SPC_TRY(move_to_trash(directory_.get(), "is", trash.get()));
  auto is = SPC_TRY(ensure_at(directory_.get(), "is"));
  const auto link = [&](int file, int directory, const std::string& name) {
    return ::linkat(AT_FDCWD, itself(file).c_str(), directory, name.c_str(), AT_SYMLINK_FOLLOW);
  };
  for (const char* name : {"up", "work", "layers"}) SPC_TRY(ensure_at(is.get(), name));
  // The owner and mode of the container's /.
  SPC_TRY(check(::fchownat(is.get(), "up", uid_, gid_, AT_SYMLINK_NOFOLLOW), "change the owner of the container's files"));
  SPC_TRY(check(::fchmodat(is.get(), "up", 0755, 0), "set the mode of the container's files"));
  const auto layers = SPC_TRY(ensure_at(is.get(), "layers"));
  for (const LayerFile& layer : image.layers) {
    SPC_TRY(check(link(layer.file.get(), layers.get(), store_layout::layer_file(layer.digest)), "link a layer of the container"));
  }
  // A record from elsewhere is that of a file or directory of the user, who brings it again.
  if (link(image.record.get(), is.get(), "record") != 0 && errno != EXDEV) {
    return Error::from_errno(errno, "link the image record of the container");
  }
  SPC_TRY(check(link(notes.get(), is.get(), "notes"), "write the container's notes"));
  stored_ = true;
  return is;
}

Result<UniqueFd> listen_at(int directory, const std::string& name) {
  ::unlinkat(directory, name.c_str(), 0);
  UniqueFd listener = new_socket();
  const sockaddr_un address = address_of(directory, name);
  SPC_TRY(check(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), "create a socket"));
  SPC_TRY(check(::listen(listener.get(), 128), "listen on a socket"));
  return listener;
}

UniqueFd connect_to(int directory, const std::string& name) {
  UniqueFd connection = new_socket();
  const sockaddr_un address = address_of(directory, name);
  const bool answered = ::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  return answered && is_roots(connection.get()) ? std::move(connection) : UniqueFd();
}

UniqueFd accept_root(int listener) {
  UniqueFd connection(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  return connection && is_roots(connection.get()) ? std::move(connection) : UniqueFd();
}

Result<UniqueFd> open_steps() { return own(::open(SPC_RUN_DIR "/steps", kDirectory), "open the directory of steps"); }

std::string step_name(uid_t uid, std::uint32_t job, std::uint32_t step) {
  return std::to_string(uid) + "." + std::to_string(job) + "." + std::to_string(step);
}

Result<void> remove_containers_of(uid_t uid, std::uint32_t job) {
  const auto containers = SPC_TRY(open_containers());
  const auto trash = SPC_TRY(ensure_at(containers.get(), "trash"));
  const std::string of_job = std::to_string(job) + ".";
  for (DirectoryReader keys = names_in(containers.get(), std::to_string(uid).c_str()); keys.next();) {
    if (keys.name().starts_with(of_job)) remove_if_free(keys.descriptor(), keys.c_name(), trash.get());
  }
  // Of steps whose agent was killed: all steps of the job have ended.
  const std::string of_user = std::to_string(uid) + "." + of_job;
  for (DirectoryReader sockets = names_in(SPC_TRY(open_steps()).get()); sockets.next();) {
    if (sockets.name().starts_with(of_user)) ::unlinkat(sockets.descriptor(), sockets.c_name(), 0);
  }
  return empty_in_background(containers.get(), trash.get());
}

Result<void> sweep_containers() {
  const auto containers = SPC_TRY(open_containers());
  const auto trash = SPC_TRY(ensure_at(containers.get(), "trash"));
  for (DirectoryReader users = names_in(containers.get()); users.next();) {
    for (DirectoryReader keys = names_in(containers.get(), users.c_name()); users.name() != "trash" && keys.next();) {
      const bool of_job = keys.name().find('.') != std::string_view::npos;
      const bool is_old = of_job && is_older_than_boot(keys.descriptor(), keys.c_name());
      if (is_old) remove_if_free(keys.descriptor(), keys.c_name(), trash.get());
    }
  }
  const auto steps = SPC_TRY(open_steps());
  for (DirectoryReader sockets = names_in(steps.get()); sockets.next();) {
    if (!connect_to(steps.get(), sockets.c_name())) ::unlinkat(steps.get(), sockets.c_name(), 0);
  }
  return empty_in_background(containers.get(), trash.get());
}

}  // namespace spc::agent
