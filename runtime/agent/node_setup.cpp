#include "agent/node_setup.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "agent/privilege.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "protocol/store_layout.hpp"

namespace spc::agent {

// --- policy ---

namespace {

constexpr char kKept[] = SPC_RUN_DIR "/policy";

/// Returns a stamp that changes when config.toml or a file of config.d changes, appears or
/// disappears, its owner and mode included.
std::uint64_t stamp_of_config() {
  std::uint64_t sum = 0;
  const auto add = [&sum](int directory, const char* name) {
    struct stat status {};
    if (::fstatat(directory, name, &status, 0) != 0) return;
    const auto changed =
        static_cast<std::uint64_t>(status.st_ctim.tv_sec * 1'000'000'000 + status.st_ctim.tv_nsec);
    sum += (status.st_ino * 0x9e3779b97f4a7c15) ^ changed;
  };
  for (const char* path : {SPC_CONFIG_FILE, SPC_CONFIG_DIR, SPC_CONFIG_DIR "/.."})
    add(AT_FDCWD, path);
  for (DirectoryReader drop_ins(SPC_CONFIG_DIR); drop_ins.next();)
    add(drop_ins.descriptor(), drop_ins.c_name());
  return sum;
}

bool plausible(const PolicyRecord& policy) {
  return std::memcmp(policy.magic, PolicyRecord::kMagic, sizeof policy.magic) == 0 &&
         policy.default_registry[sizeof policy.default_registry - 1] == '\0' &&
         policy.upper_percent <= 100 && policy.squashfs <= PolicyRecord::by_copies &&
         policy.text_bytes <= PolicyRecord::kMostText;
}

/// Stores the policy so that readers never see a part of it. Returns the file, open for reading.
Result<UniqueFd> keep(const PolicyRecord& policy, int texts) {
  const auto file = SPC_TRY(own(::open(SPC_RUN_DIR, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0644),
                                "create a file in " SPC_RUN_DIR));
  off_t begin = 0;
  const bool begun = ::write(file.get(), &policy, sizeof policy) == sizeof policy;
  if (!begun || ::sendfile(file.get(), texts, &begin, policy.text_bytes) != policy.text_bytes)
    return Error::from_errno(errno, "write " + quoted(kKept));
  SPC_TRY(put_file(file.get(), AT_FDCWD, kKept));
  return own(::open(itself(file.get()).c_str(), O_RDONLY | O_CLOEXEC), "open " + quoted(kKept));
}

/// Creates a directory with exactly this owner and mode. An existing one, or the target of root's
/// link, must be owned by root or that owner.
Result<void> ensure_directory(const std::string& path, uid_t uid, gid_t gid, mode_t mode) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return Error::from_errno(errno, "make directory " + quoted(path));
  const auto directory = SPC_TRY(own(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                                     "open directory " + quoted(path)));
  struct stat status {};
  SPC_TRY(check(::fstat(directory.get(), &status), "stat " + quoted(path)));
  if (status.st_uid != 0 && status.st_uid != uid)
    return Error(ErrorKind::refused, "use directory " + quoted(path) + ": owned by user " +
                                         std::to_string(status.st_uid))
        .hint("remove it or chown it to root");
  SPC_TRY(check(::fchown(directory.get(), uid, gid), "set the owner of " + quoted(path)));
  return check(::fchmod(directory.get(), mode), "set the mode of " + quoted(path));
}

}  // namespace

Result<UniqueFd> current_policy(uid_t service_uid, gid_t service_gid, PolicyRecord& policy) {
  const auto stamp = stamp_of_config();
  UniqueFd kept(::open(kKept, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (kept && ::read(kept.get(), &policy, sizeof policy) == sizeof policy && plausible(policy) &&
      policy.stamp == stamp)
    return kept;
  auto [ours, theirs] = SPC_TRY(socket_pair());
  constexpr timeval kPatience{10, 0};  // seconds: the parser may be stopped
  ::setsockopt(ours.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  const pid_t child =
      SPC_TRY(start_helper("import", "policy", service_uid, service_gid, {theirs.get()}));
  theirs.reset();
  PolicyAnswer answer;
  auto texts = receive_struct(ours.get(), answer, 1);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);  // no EINTR: the agent handles no signal
  if (!texts) return std::move(texts).error().during("read " + quoted(SPC_CONFIG_FILE));
  if (answer.error.is_set()) return answer.error.unread();
  if (!plausible(answer.policy) || texts->size() != 1)
    return Error(ErrorKind::internal, "read the policy: unexpected reply");
  policy = answer.policy;
  policy.stamp = stamp;
  return keep(policy, texts->front().get());
}

// --- setup ---

Result<void> set_up_node(uid_t service_uid, gid_t service_gid) {
  for (const char* place : {SPC_RUN_DIR, SPC_STORE_DIR, SPC_STORE_DIR "/layers"})
    SPC_TRY(ensure_directory(place, 0, 0, 0755));
  for (const char* part : {store_layout::kLayers, store_layout::kGrants, store_layout::kRecords})
    SPC_TRY(ensure_directory(std::string(SPC_STORE_DIR "/") + part, 0, service_gid, 0750));
  SPC_TRY(ensure_directory(std::string(SPC_STORE_DIR "/") + store_layout::kNames, 0, 0, 0755));
  SPC_TRY(ensure_directory(SPC_STORE_DIR "/images", service_uid, service_gid, 0700));
  SPC_TRY(ensure_directory(SPC_STORE_DIR "/public", service_uid, service_gid, 0755));
  for (const char* place : {SPC_STORE_DIR "/containers", SPC_RUN_DIR "/steps"})
    SPC_TRY(ensure_directory(place, 0, 0, 0700));
  constexpr int kHow = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
  const auto locks =
      SPC_TRY(own(::open(SPC_STORE_DIR "/locks", kHow, 0600), "create the lock file of the store"));
  return check(::fchown(locks.get(), service_uid, service_gid), "set the owner of the lock file");
}

}  // namespace spc::agent
