#include "agent/named_container.hpp"

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
#include <cstdlib>
#include <ctime>
#include <limits>

#include "agent/privilege.hpp"
#include "base/unique_fd.hpp"
#include "protocol/store_layout.hpp"

namespace spc::agent {

namespace {

constexpr char kContainers[] = SPC_STORE_DIR "/containers";
constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

Result<UniqueFd> open_containers() {
  return own(::open(kContainers, kDirectory), "open directory " + quoted(kContainers),
             "restart slurmd, which creates the store");
}

/// Opens or creates a directory of root in one that only root enters: no other user can have
/// replaced it.
Result<UniqueFd> ensure_at(int parent, const std::string& name) {
  SPC_TRY(check(::mkdirat(parent, name.c_str(), 0700), "make directory " + name, EEXIST));
  return own(::openat(parent, name.c_str(), kDirectory), "open directory " + name);
}

DirectoryReader names_in(int parent, const char* name = ".") {
  return DirectoryReader(UniqueFd(::openat(parent, name, kDirectory)));
}

/// Opens the trash of this user: a directory owned by the user inside one that only root enters.
/// Root does not read it any more.
Result<UniqueFd> trash_of(uid_t uid) {
  const auto containers = SPC_TRY(open_containers());
  const auto all = SPC_TRY(ensure_at(containers.get(), "trash"));
  auto trash = SPC_TRY(ensure_at(all.get(), std::to_string(uid)));
  SPC_TRY(check(::fchown(trash.get(), uid, ~0U), "give the trash to its user"));
  return trash;
}

/// Moves the entry under a name of our own. A missing entry is no error.
Result<void> move_to_trash(int parent, const std::string& name, int trash) {
  static unsigned moved = 0;
  const std::string as = std::to_string(::getpid()) + "." + std::to_string(moved++);
  return check(::renameat(parent, name.c_str(), trash, as.c_str()),
               "move " + name + " out of the way", ENOENT);
}

/// Returns whether a start of the container has got as far as its tasks.
bool is_stored(int of_user, const std::string& key) {
  struct stat notes {};
  return ::fstatat(of_user, (key + "/is/notes").c_str(), &notes, AT_SYMLINK_NOFOLLOW) == 0 &&
         notes.st_size > 0;
}

/// Returns whether the container's directory still has its name.
bool is_named(int of_user, const std::string& key, int directory) {
  struct stat ours {
  }, named{};
  return ::fstat(directory, &ours) == 0 &&
         ::fstatat(of_user, key.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         ours.st_ino == named.st_ino;
}

/// Returns an empty descriptor if the container is in use, or its last holder has just removed it.
Result<UniqueFd> take_lock(int of_user, const std::string& key, int directory) {
  auto lock =
      SPC_TRY(own(::openat(directory, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600),
                  "lock the container"));
  const bool taken =
      ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0 && is_named(of_user, key, directory);
  return taken ? std::move(lock) : UniqueFd();
}

/// Removes a container, or its `is`, for good. Without notes it is no container any more; root's
/// directories in it become the user's. Steps that use it go on.
Result<void> discard(int parent, const std::string& name, uid_t uid) {
  const auto trash = SPC_TRY(trash_of(uid));
  for (const char* notes : {"/notes", "/is/notes"}) ::unlinkat(parent, (name + notes).c_str(), 0);
  for (const char* below : {"/layers", "/work", "/is/layers", "/is/work", "/is", "/lock", ""})
    SPC_TRY(check(::fchownat(parent, (name + below).c_str(), uid, ~0U, AT_SYMLINK_NOFOLLOW),
                  "give " + name + " away", ENOENT));
  return move_to_trash(parent, name, trash.get());
}

/// Returns whether steps still use a removed container: they share its lock.
bool has_steps(int trash, const char* name) {
  const UniqueFd lock(::openat(trash, (std::string(name) + "/lock").c_str(),
                               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  return lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0;
}

/// Deletes the user's files without privilege, with the user's rights to files, at any depth and
/// number, without following a path. While a directory is read, its entries are unlinked or moved
/// up. So each name is one of ours or one component below it, and no name is stored.
void empty(int trash) {
  for (bool progress = true; progress;) {
    progress = false;
    for (DirectoryReader names = names_in(trash); names.next();) {
      if (has_steps(trash, names.c_name())) continue;
      for (DirectoryReader below = names_in(trash, names.c_name()); below.next();) {
        bool gone = ::unlinkat(below.descriptor(), below.c_name(), 0) == 0;
        if (!gone && errno == EISDIR &&
            ::fchmodat(below.descriptor(), below.c_name(), 0700, 0) == 0) {
          gone = move_to_trash(below.descriptor(), below.c_name(), trash).has_value();
        }
        progress |= gone;
      }
      progress |= ::unlinkat(trash, names.c_name(), AT_REMOVEDIR) == 0;
    }
  }
}

/// Empties the trash in a separate process that outlives the caller and sees only the trash. It
/// keeps root's ID alone, so that neither its user nor a site's epilog, which ends processes of
/// users whose jobs are over, can stop it. While one process empties the trash, at most one other
/// waits. The waiting process reads the trash only after it has stopped waiting, so it also deletes
/// entries moved there meanwhile, and other callers can return.
Result<void> empty_in_background(int of_user, int trash, uid_t uid) {
  ::setsid();  // before the fork: when we end, slurmd kills the rest of our process group
  const pid_t child = ::fork();
  if (child != 0) return check(child, "fork");
  ::setpriority(PRIO_PROCESS, 0, 19);
  constexpr rlimit kMemory{64 << 20, 64 << 20};
  ::setrlimit(RLIMIT_AS, &kMemory);
  const bool inside = ::fchdir(trash) == 0 && ::chroot(".") == 0 && ::setgroups(0, nullptr) == 0;
  ::setfsuid(uid);
  const bool powerless =
      ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::cap_set_proc(::cap_init()) == 0;
  const bool waits = inside && powerless && ::flock(of_user, LOCK_EX | LOCK_NB) == 0 &&
                     ::flock(trash, LOCK_EX) == 0;
  if (waits && ::flock(of_user, LOCK_UN) == 0) empty(trash);
  ::_exit(0);
}

UniqueFd new_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/// Returns an address that fits into sockaddr_un, however long the directory's path is.
sockaddr_un address_of(int directory, const std::string& name) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  (itself(directory) + "/" + name).copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

/// Discards unused containers of a user: those that no start has finished, and those of jobs whose
/// keys have this prefix and that were last used before `until`.
Result<void> discard_unused(const std::string& user, const std::string& begin, time_t until) {
  DirectoryReader keys = names_in(SPC_TRY(open_containers()).get(), user.c_str());
  if (keys.descriptor() < 0) return {};
  const auto uid = static_cast<uid_t>(std::strtoul(user.c_str(), nullptr, 10));
  while (keys.next()) {
    const std::string key(keys.name());
    const bool of_job = key.starts_with(begin) && key.find('.') != std::string::npos;
    struct stat status {};
    const UniqueFd directory(::openat(keys.descriptor(), key.c_str(), kDirectory));
    const auto lock = take_lock(keys.descriptor(), key, directory.get());
    if (!lock || !*lock || ::fstat(directory.get(), &status) != 0) continue;
    const bool stays = is_stored(keys.descriptor(), key) && (!of_job || status.st_mtime >= until);
    if (!stays) (void)discard(keys.descriptor(), key, uid);
  }
  return empty_in_background(keys.descriptor(), SPC_TRY(trash_of(uid)).get(), uid);
}

}  // namespace

Result<bool> NamedContainer::take(bool afresh, std::uint32_t most) {
  const auto containers = SPC_TRY(open_containers());
  auto of_user = SPC_TRY(ensure_at(containers.get(), std::to_string(uid_)));
  if (most != 0 && ::faccessat(of_user.get(), key_.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) != 0) {
    std::uint32_t others = 0;
    for (DirectoryReader all = names_in(of_user.get()); others < most && all.next();) ++others;
    if (others == most)
      return Error(ErrorKind::refused, "make a container with a name: the user has " +
                                           std::to_string(most) + " on this node")
          .hint("use one again, as with NAME:replace, or ask the administrator to remove some");
  }
  directory_ = SPC_TRY(ensure_at(of_user.get(), key_));
  of_user_ = std::move(of_user);
  lock = SPC_TRY(take_lock(of_user_.get(), key_, directory_.get()));
  if (!lock) return false;
  stored_ = !afresh && is_stored(of_user_.get(), key_);
  listener = SPC_TRY(listen_at(directory_.get(), "socket"));
  const int opened = stored_
                         ? ::openat(directory_.get(), "is/notes", O_RDWR | O_NOFOLLOW | O_CLOEXEC)
                         : ::openat(directory_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  notes = SPC_TRY(own(opened, "open the container's notes"));
  return true;
}

NamedContainer::~NamedContainer() {
  if (lock) ::futimens(lock.get(), nullptr);  // the last use
  // One of the steps that share a removed container moves it, so that its name can be used again.
  if (lock && !is_stored(of_user_.get(), key_) &&
      ::flock(directory_.get(), LOCK_EX | LOCK_NB) == 0 &&
      is_named(of_user_.get(), key_, directory_.get()))
    (void)discard(of_user_.get(), key_, uid_);
}

UniqueFd NamedContainer::ask() const { return connect_to(directory_.get(), "socket"); }

Result<ImageFiles> NamedContainer::open_image() const {
  const auto layers = SPC_TRY(
      own(::openat(directory_.get(), "is/layers", kDirectory), "open the container's layers"));
  return ImageStore::open_files(SPC_TRY(open_object(directory_.get(), "is/record", "its record")),
                                layers.get());
}

Result<UniqueFd> NamedContainer::keep(const ImageFiles& image) {
  if (stored_)
    return own(::openat(directory_.get(), "is", kDirectory), "open the container's files");
  SPC_TRY(discard(directory_.get(), "is", uid_));
  auto is = SPC_TRY(ensure_at(directory_.get(), "is"));
  for (const char* name : {"up", "work"}) SPC_TRY(ensure_at(is.get(), name));
  const int failed = ::fchownat(is.get(), "up", uid_, gid_, AT_SYMLINK_NOFOLLOW) |
                     ::fchmodat(is.get(), "up", 0755, 0);
  SPC_TRY(check(failed, "set owner and mode of the container's /"));
  const auto layers = SPC_TRY(ensure_at(is.get(), "layers"));
  for (const LayerFile& layer : image.layers)
    SPC_TRY(link_file(layer.file.get(), layers.get(), store_layout::layer_file(layer.digest), 0));
  if (image.record) SPC_TRY(link_file(image.record.get(), is.get(), "record", 0));
  stored_ = true;
  return is;
}

Result<void> NamedContainer::settle() {
  if (of_user_) SPC_TRY(link_file(notes.get(), directory_.get(), "is/notes", EEXIST));
  of_user_.reset();
  return {};
}

Result<UniqueFd> listen_at(int directory, const std::string& name) {
  ::unlinkat(directory, name.c_str(), 0);
  UniqueFd listener = new_socket();
  const sockaddr_un address = address_of(directory, name);
  SPC_TRY(check(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
                "create a socket"));
  SPC_TRY(check(::listen(listener.get(), 128), "listen on a socket"));
  return listener;
}

UniqueFd connect_to(int directory, const std::string& name) {
  UniqueFd connection = new_socket();
  const sockaddr_un address = address_of(directory, name);
  const bool answered =
      ::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  return answered && peer_is_root(connection.get()) ? std::move(connection) : UniqueFd();
}

Result<UniqueFd> open_steps() {
  return own(::open(SPC_RUN_DIR "/steps", kDirectory), "open the directory of steps");
}

std::string traces_of(uid_t uid, std::uint32_t job) {
  return std::to_string(uid) + "." + std::to_string(job) + ".";
}

Result<void> remove_traces(const std::string& begin, int how) {
  for (DirectoryReader traces = names_in(SPC_TRY(open_steps()).get()); traces.next();) {
    if (traces.name().starts_with(begin)) ::unlinkat(traces.descriptor(), traces.c_name(), how);
  }
  return {};
}

Result<void> remove_containers_of(uid_t uid, std::uint32_t job) {
  // All steps of the job have ended: remaining sockets belong to a killed slurmstepd.
  for (const int how : {0, AT_REMOVEDIR}) SPC_TRY(remove_traces(traces_of(uid, job), how));
  return discard_unused(std::to_string(uid), std::to_string(job) + ".",
                        std::numeric_limits<time_t>::max());
}

Result<void> sweep_containers() {
  timespec up{};
  ::clock_gettime(CLOCK_BOOTTIME, &up);
  for (DirectoryReader users(SPC_TRY(open_containers())); users.next();) {
    if (users.name() != "trash")
      SPC_TRY(discard_unused(users.c_name(), "", ::time(nullptr) - up.tv_sec));
  }
  return {};
}

}  // namespace spc::agent
