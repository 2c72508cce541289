#include "agent/node/policy.hpp"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "agent/node/privilege.hpp"
#include "agent/node/system_call.hpp"
#include "base/directory.hpp"
#include "base/socket.hpp"

namespace spc::agent {
namespace {

constexpr char kKept[] = SPC_RUN_DIR "/policy";

/// Changes when config.toml or a file of config.d changes, appears or goes, its owner and mode
/// included.
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

/// A reader never sees half of it. Gives back the file, open for reading.
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

}  // namespace

Result<UniqueFd> current_policy(uid_t service_uid, gid_t service_gid, PolicyRecord& policy) {
  const auto stamp = stamp_of_config();
  UniqueFd kept(::open(kKept, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (kept && ::read(kept.get(), &policy, sizeof policy) == sizeof policy && plausible(policy) &&
      policy.stamp == stamp)
    return kept;
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const pid_t child =
      SPC_TRY(start_helper("import", "policy", service_uid, service_gid, {theirs.get()}));
  theirs.reset();
  PolicyAnswer answer;
  auto texts = receive_struct(ours.get(), answer, 1);
  end_child(child);
  if (!texts) return std::move(texts).error().during("read " + quoted(SPC_CONFIG_FILE));
  if (answer.error.is_set()) return answer.error.unread();
  if (!plausible(answer.policy) || texts->size() != 1)
    return Error(ErrorKind::internal, "read the policy: unexpected reply");
  policy = answer.policy;
  policy.stamp = stamp;
  return keep(policy, texts->front().get());
}

}  // namespace spc::agent
