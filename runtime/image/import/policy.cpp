#include "image/import/policy.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <ctime>
#include <exception>
#include <span>

#include "base/file.hpp"
#include "base/process/kernel.hpp"
#include "base/socket.hpp"
#include "image/config/config.hpp"
#include "image/layer/worker/mountable.hpp"
#include "protocol/policy.hpp"

namespace spc {
namespace {

/// `upper_size` as numbers; its form has been checked with the rest of config.toml.
void set_upper_size(PolicyRecord& policy, std::string_view text) {
  std::uint64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value).ptr;
  const char unit = end == text.data() + text.size() ? '\0' : *end;
  if (unit == '%') {
    policy.upper_percent = static_cast<std::uint32_t>(std::min<std::uint64_t>(value, 100));
    return;
  }
  switch (unit) {
    case 'T':
    case 't': value <<= 10; [[fallthrough]];
    case 'G':
    case 'g': value <<= 10; [[fallthrough]];
    case 'M':
    case 'm': value <<= 10; [[fallthrough]];
    case 'K':
    case 'k': value <<= 10; [[fallthrough]];
    default: policy.upper_bytes = value;
  }
}

std::uint32_t number_of(PullPolicy pull) {
  switch (pull) {
    case PullPolicy::newer: return PolicyRecord::newer;
    case PullPolicy::missing: return PolicyRecord::missing;
    case PullPolicy::always: return PolicyRecord::always;
    case PullPolicy::never: return PolicyRecord::never;
  }
  return PolicyRecord::newer;
}

PolicyRecord record_of(const Config& config) {
  PolicyRecord policy;
  std::memcpy(policy.magic, PolicyRecord::kMagic, sizeof policy.magic);
  set_upper_size(policy, config.upper_size);
  policy.writable = config.writable ? 1 : 0;
  policy.mount_home = config.mount_home ? 1 : 0;
  policy.pull = number_of(config.pull);
  // So that not every step of an old kernel tries first. What is decided here lasts until config.toml changes, or the next boot: where
  // the kernel can map an erofs each step tries, as its module may come later.
  const auto kernel = running_kernel();
  if (kernel < kMapsSquashfs && files_share_blocks(SPC_STORE_DIR)) {
    policy.squashfs = PolicyRecord::by_copies;
  } else if (kernel < (config.wants_squashfs() ? kMapsSquashfs : kMapsErofs)) {
    policy.squashfs = PolicyRecord::by_fuse_for_users;
  }
  if (config.squashfs == "kernel") policy.squashfs = PolicyRecord::by_kernel;
  if (config.squashfs == "copy") policy.squashfs = PolicyRecord::by_copies;
  if (config.squashfs == "fuse") policy.squashfs = PolicyRecord::by_fuse;
  policy.most_containers = config.store.max_containers_per_user;
  policy.made_at = static_cast<std::int64_t>(std::time(nullptr));
  policy.tag_ttl = config.tag_ttl;
  policy.job_tag_ttl = config.job_tag_ttl;
  config.default_registry.copy(policy.default_registry, sizeof policy.default_registry - 1);
  return policy;
}

/// The record and the texts behind it.
Result<UniqueFd> read_policy(PolicyRecord& policy) {
  const auto config = SPC_TRY(read_config(SPC_CONFIG_FILE, 0));
  if (config.default_registry.size() >= sizeof policy.default_registry) {
    return Error(ErrorKind::invalid, "config.toml: default_registry is too long");
  }
  policy = record_of(config);
  const std::string texts = site_records(config.site);
  if (texts.size() > PolicyRecord::kMostText) return Error(ErrorKind::invalid, "config.toml: texts are too long");
  policy.text_bytes = static_cast<std::uint32_t>(texts.size());
  return sealed_memory_file("spank-container policy", texts);
}

}  // namespace

int answer_policy(int socket) noexcept {
  PolicyAnswer answer;
  UniqueFd texts;
  try {
    auto read = read_policy(answer.policy);
    if (read)
      texts = *std::move(read);
    else
      answer.error = WireError(read.error());
  } catch (const std::exception& error) {
    answer.error = WireError(Error(ErrorKind::internal, error.what()));
  }
  const int passed[] = {texts.get()};
  return send_struct(socket, answer, std::span(passed, texts ? 1 : 0)) ? 0 : 1;
}

}  // namespace spc
