#include "container/agent/policy.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>

#include "base/file.hpp"
#include "base/socket.hpp"
#include "container/agent/privilege.hpp"
#include "container/agent/system_call.hpp"

namespace spc {
namespace {

constexpr char kKept[] = SPC_RUN_DIR "/policy";

PolicyRecord::Stamp stamp_of_config() {
  struct stat status {};
  if (::stat(SPC_CONFIG_FILE, &status) != 0) return {};
  return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size), status.st_mtim.tv_sec,
          status.st_mtim.tv_nsec};
}

bool plausible(const PolicyRecord& policy) {
  return std::memcmp(policy.magic, PolicyRecord::kMagic, sizeof policy.magic) == 0 &&
         policy.default_registry[sizeof policy.default_registry - 1] == '\0' && policy.upper_percent <= 100 &&
         policy.squashfs <= PolicyRecord::by_fuse;
}

/// Written aside and renamed, so that a reader never sees half of it.
Result<void> keep(const PolicyRecord& policy) {
  const std::string aside = std::string(kKept) + "." + std::to_string(::getpid());
  constexpr int kHow = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
  const auto file = SPC_TRY(own(::open(aside.c_str(), kHow, 0644), "create " + quoted(aside)));
  SPC_TRY(write_all(file.get(), std::as_bytes(std::span(&policy, 1))));
  return check(::rename(aside.c_str(), kKept), "rename " + quoted(aside));
}

Result<PolicyRecord> parse_config(uid_t service_uid, gid_t service_gid) {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const pid_t child = SPC_TRY(start_helper(SPC_LIBEXECDIR "/import", "policy", service_uid, service_gid, {theirs.get()}));
  theirs.reset();
  PolicyAnswer answer;
  auto received = receive_struct(ours.get(), answer);
  end_child(child);
  if (!received) return std::move(received).error().during("read " + quoted(SPC_CONFIG_FILE));
  answer.error[sizeof answer.error - 1] = '\0';
  if (answer.error[0] != '\0') return Error(ErrorKind::invalid, printable(answer.error));
  if (!plausible(answer.policy)) return Error(ErrorKind::internal, "read " + quoted(SPC_CONFIG_FILE) + ": unexpected answer");
  return answer.policy;
}

}  // namespace

Result<PolicyRecord> current_policy(uid_t service_uid, gid_t service_gid) {
  const auto stamp = stamp_of_config();
  PolicyRecord policy;
  const UniqueFd kept(::open(kKept, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (kept && ::read(kept.get(), &policy, sizeof policy) == sizeof policy && plausible(policy) && policy.stamp == stamp) {
    return policy;
  }
  policy = SPC_TRY(parse_config(service_uid, service_gid));
  policy.stamp = stamp;
  // Not being able to keep it costs some milliseconds at the next start and nothing else.
  [[maybe_unused]] const auto done = keep(policy);
  return policy;
}

std::string upper_size(const PolicyRecord& policy) {
  if (policy.upper_bytes != 0) return std::to_string(policy.upper_bytes);
  return std::to_string(policy.upper_percent) + "%";
}

}  // namespace spc
