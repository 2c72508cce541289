#include "image/import/policy.hpp"

#include <sys/sysinfo.h>

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
#include "image/import/layer_form.hpp"
#include "image/layer/worker/mountable.hpp"
#include "protocol/image_record.hpp"
#include "protocol/policy.hpp"

namespace spc {
namespace {

/// A size of config.toml, whose form has been checked.
struct Size {
  std::uint64_t value = 0;
  bool is_percentage = false;
};

Size size_of(std::string_view text) {
  std::uint64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value).ptr;
  const char unit = end == text.data() + text.size() ? '\0' : *end;
  switch (unit) {
    case '%': return {std::min<std::uint64_t>(value, 100), true};
    case 'T':
    case 't': value <<= 10; [[fallthrough]];
    case 'G':
    case 'g': value <<= 10; [[fallthrough]];
    case 'M':
    case 'm': value <<= 10; [[fallthrough]];
    case 'K':
    case 'k': value <<= 10; [[fallthrough]];
    default: return {value};
  }
}

/// Layers that the kernel mounts for one start: what a job holds besides is three times as much at
/// most. The percentage is for nodes whose memory fits their processors: it always allows the
/// layers of an ordinary image.
std::uint32_t most_layers(const Config& config) {
  constexpr std::uint64_t kOrdinary = 32;
  if (config.squashfs == "fuse") return 0;
  const LayerLimits form = form_of_layers(config, false);
  if (form.format == LayerFormat::erofs) return ImageRecordHeader::kMaxLayers;
  struct sysinfo node {};
  ::sysinfo(&node);
  const Size size = size_of(config.layer_memory);
  const std::uint64_t bytes = size.is_percentage
                                  ? std::uint64_t{node.totalram} * node.mem_unit / 100 * size.value
                                  : size.value;
  const std::uint64_t layers = bytes / 4 / memory_of_squashfs(form.compression);
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      layers, size.is_percentage ? kOrdinary : 0, ImageRecordHeader::kMaxLayers));
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
  const Size upper = size_of(config.upper_size);
  if (upper.is_percentage) {
    policy.upper_percent = static_cast<std::uint32_t>(upper.value);
  } else {
    policy.upper_bytes = upper.value;
  }
  policy.most_layers = most_layers(config);
  policy.writable = config.writable ? 1 : 0;
  policy.mount_home = config.mount_home ? 1 : 0;
  policy.pull = number_of(config.pull);
  // So that not every step of an old kernel tries first. What is decided here lasts until
  // config.toml changes, or the next boot: where the kernel can map an erofs each step tries, as
  // its module may come later.
  const auto kernel = running_kernel();
  if (kernel < kMapsSquashfs && files_share_blocks(SPC_STORE_DIR)) {
    policy.squashfs = PolicyRecord::by_copies;
  } else if (kernel < (config.wants_squashfs() ? kMapsSquashfs : kMapsErofs)) {
    policy.squashfs = PolicyRecord::by_fuse_for_users;
  }
  if (config.squashfs == "kernel") policy.squashfs = PolicyRecord::by_kernel;
  if (config.squashfs == "copy") policy.squashfs = PolicyRecord::by_copies;
  policy.task_flags = (config.site.error_report ? PolicyRecord::error_report : 0U) |
                      (config.site.task_prolog_on_host ? PolicyRecord::task_prolog_on_host : 0U);
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
  if (texts.size() > PolicyRecord::kMostText)
    return Error(ErrorKind::invalid, "config.toml: texts are too long");
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
