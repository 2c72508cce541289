#include "agent/node/named_container.hpp"

#include <fcntl.h>
#include <grp.h>
#include <sys/capability.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>

#include "agent/node/system_call.hpp"
#include "base/directory.hpp"
#include "protocol/store_layout.hpp"

namespace spc::agent {
namespace {

constexpr char kContainers[] = SPC_STORE_DIR "/containers";
constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

Result<UniqueFd> open_containers() { return own(::open(kContainers, kDirectory), "open directory " + quoted(kContainers)); }

/// A directory of root in one that only root enters: nobody else can have put anything in its place.
Result<UniqueFd> ensure_at(int parent, const std::string& name) {
  if (::mkdirat(parent, name.c_str(), 0700) != 0 && errno != EEXIST) return Error::from_errno(errno, "make directory " + name);
  return own(::openat(parent, name.c_str(), kDirectory), "open directory " + name);
}

DirectoryReader names_in(int parent, const char* name = ".") {
  return DirectoryReader(UniqueFd(::openat(parent, name, kDirectory)));
}

/// What is to be deleted of this user's: his, in a directory that only root enters. Root looks into it no more.
Result<UniqueFd> trash_of(int containers, uid_t uid) {
  const auto all = SPC_TRY(ensure_at(containers, "trash"));
  auto trash = SPC_TRY(ensure_at(all.get(), std::to_string(uid)));
  SPC_TRY(check(::fchown(trash.get(), uid, ~0U), "give the trash to its user"));
  return trash;
}

/// Under a name of our own. Nothing to move is fine.
Result<void> move_to_trash(int parent, const std::string& name, int trash) {
  static unsigned moved = 0;
  const std::string as = std::to_string(::getpid()) + "." + std::to_string(moved++);
  if (::renameat(parent, name.c_str(), trash, as.c_str()) == 0 || errno == ENOENT) return {};
  return Error::from_errno(errno, "move " + name + " out of the way");
}

/// A container, or its `is`, for good: it is none without notes, and root's directories in it become the user's.
Result<void> discard(int parent, const std::string& name, uid_t uid, int trash) {
  for (const char* notes : {"/notes", "/is/notes"}) ::unlinkat(parent, (name + notes).c_str(), 0);
  for (const char* below : {"/layers", "/work", "/is/layers", "/is/work", "/is", ""}) {
    const int failed = ::fchownat(parent, (name + below).c_str(), uid, ~0U, AT_SYMLINK_NOFOLLOW);
    if (failed != 0 && errno != ENOENT) return Error::from_errno(errno, "give " + name + " to its user");
  }
  return move_to_trash(parent, name, trash);
}

/// Without privilege, with the user's rights to files. Deletes what he has written, as deep and as much as it may be, without
/// following any path: what a directory holds is unlinked or moved up while it is read, so that each name is one of ours or one
/// component below it, and none is kept.
void empty(int trash) {
  for (bool progress = true; progress;) {
    progress = false;
    for (DirectoryReader names = names_in(trash); names.next();) {
      for (DirectoryReader below = names_in(trash, names.c_name()); below.next();) {
        bool gone = ::unlinkat(below.descriptor(), below.c_name(), 0) == 0;
        if (!gone && errno == EISDIR && ::fchmodat(below.descriptor(), below.c_name(), 0700, 0) == 0) {
          gone = move_to_trash(below.descriptor(), below.c_name(), trash).has_value();
        }
        progress |= gone;
      }
      progress |= ::unlinkat(trash, names.c_name(), AT_REMOVEDIR) == 0;
    }
  }
}

/// In a process of its own, which outlives the caller, sees nothing but the trash, and waits for everybody else. It keeps root's
/// ID alone, so that neither its user nor a site's epilog, which ends processes of users whose jobs are over, can stop it.
/// While one empties the trash at most one other waits: it begins to read after it has stopped waiting, so whoever finds
/// somebody waiting leaves to him what he has moved there.
Result<void> empty_in_background(int of_user, int trash, uid_t uid) {
  ::setsid();  // before the fork: when we end, slurmd kills what is left of our group
  const pid_t child = ::fork();
  if (child != 0) return check(child, "fork");
  ::setpriority(PRIO_PROCESS, 0, 19);
  constexpr rlimit kMemory{64 << 20, 64 << 20};
  ::setrlimit(RLIMIT_AS, &kMemory);
  const bool inside = ::fchdir(trash) == 0 && ::chroot(".") == 0 && ::setgroups(0, nullptr) == 0;
  ::setfsuid(uid);
  const bool powerless = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::cap_set_proc(::cap_init()) == 0;
  const bool waits = inside && powerless && ::flock(of_user, LOCK_EX | LOCK_NB) == 0 && ::flock(trash, LOCK_EX) == 0;
  if (waits && ::flock(of_user, LOCK_UN) == 0) empty(trash);
  ::_exit(0);
}

UniqueFd new_socket() { return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

/// A path that fits into an address, however long that of the directory is.
sockaddr_un address_of(int directory, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", directory, name.c_str());
  return address;
}

/// Discards those containers of a user that nobody uses and whose keys begin like this, and, if they are of jobs, were last used
/// before the time `until`.
Result<void> discard_unused(int containers, const char* user, const std::string& begin, time_t until) {
  DirectoryReader keys = names_in(containers, user);
  if (keys.descriptor() < 0) return {};
  const auto uid = static_cast<uid_t>(std::strtoul(user, nullptr, 10));
  const auto trash = SPC_TRY(trash_of(containers, uid));
  while (keys.next()) {
    const bool of_job = keys.name().starts_with(begin) && keys.name().find('.') != std::string_view::npos;
    struct stat status {};
    if (!of_job || ::fstatat(keys.descriptor(), keys.c_name(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    const UniqueFd lock(::openat(keys.descriptor(), (std::string(keys.name()) + "/lock").c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
    if (status.st_mtime >= until || (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)) continue;
    [[maybe_unused]] const auto moved = discard(keys.descriptor(), std::string(keys.name()), uid, trash.get());
  }
  return empty_in_background(keys.descriptor(), trash.get(), uid);
}

}  // namespace

Result<bool> NamedContainer::take(bool afresh, std::uint32_t most) {
  const auto containers = SPC_TRY(open_containers());
  const auto of_user = SPC_TRY(ensure_at(containers.get(), std::to_string(uid_)));
  if (most != 0 && ::faccessat(of_user.get(), key_.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) != 0) {
    std::uint32_t others = 0;
    for (DirectoryReader all = names_in(of_user.get()); others < most && all.next();) ++others;
    if (others == most)
      return Error(ErrorKind::refused, "make a container with a name: the user has " + std::to_string(most) + " on this node")
          .hint("use one again, for example with NAME:replace, or ask the administrator to remove some");
  }
  directory_ = SPC_TRY(ensure_at(of_user.get(), key_));
  const int opened = ::openat(directory_.get(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  auto taken = SPC_TRY(own(opened, "open the container's lock"));
  if (::flock(taken.get(), LOCK_EX | LOCK_NB) != 0) return false;
  struct stat ours {}, named {};
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
  constexpr int kHow = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
  auto record = SPC_TRY(own(::openat(directory_.get(), "is/record", kHow), "open its record"));
  // Earlier versions linked it while it was the service user's.
  SPC_TRY(check(::fchown(record.get(), 0, 0) | ::fchmod(record.get(), 0444), "make its record root's"));
  return ImageStore::open_files(std::move(record), layers.get());
}

Result<UniqueFd> NamedContainer::keep(const ImageFiles& image) {
  if (stored_) return own(::openat(directory_.get(), "is", kDirectory), "open the container's files");
  const auto containers = SPC_TRY(open_containers());
  const auto trash = SPC_TRY(trash_of(containers.get(), uid_));
  SPC_TRY(discard(directory_.get(), "is", uid_, trash.get()));
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
  return answered && peer_is(connection.get(), 0) ? std::move(connection) : UniqueFd();
}

UniqueFd accept_root(int listener) {
  UniqueFd connection(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  return connection && peer_is(connection.get(), 0) ? std::move(connection) : UniqueFd();
}

Result<UniqueFd> open_steps() { return own(::open(SPC_RUN_DIR "/steps", kDirectory), "open the directory of steps"); }

std::string step_name(uid_t uid, std::uint32_t job, std::uint32_t step) {
  return std::to_string(uid) + "." + std::to_string(job) + "." + std::to_string(step);
}

Result<void> remove_containers_of(uid_t uid, std::uint32_t job) {
  const auto containers = SPC_TRY(open_containers());
  const std::string of_job = std::to_string(job) + ".";
  // Of steps whose slurmstepd was killed: all steps of the job have ended.
  for (DirectoryReader sockets = names_in(SPC_TRY(open_steps()).get()); sockets.next();) {
    if (sockets.name().starts_with(std::to_string(uid) + "." + of_job)) ::unlinkat(sockets.descriptor(), sockets.c_name(), 0);
  }
  return discard_unused(containers.get(), std::to_string(uid).c_str(), of_job, std::numeric_limits<time_t>::max());
}

Result<void> sweep_containers() {
  const auto containers = SPC_TRY(open_containers());
  timespec up{};
  ::clock_gettime(CLOCK_BOOTTIME, &up);
  for (DirectoryReader users = names_in(containers.get()); users.next();) {
    if (users.name() != "trash") SPC_TRY(discard_unused(containers.get(), users.c_name(), "", ::time(nullptr) - up.tv_sec));
  }
  return {};
}

}  // namespace spc::agent
