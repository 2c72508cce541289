// Site rules for images: trust in a signature policy, admission by signatures, and the policy
// record made of config.toml.

#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <ctime>
#include <exception>
#include <span>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/process/kernel.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "config/config.hpp"
#include "image/import/import.hpp"
#include "image/pull/layer_process.hpp"
#include "protocol/image_record.hpp"
#include "protocol/policy.hpp"
#include "registry/signature.hpp"
#include "registry/trust_policy.hpp"

namespace spc {

// --- trust program ---

namespace {

Result<void> check_local(const std::string& file, const std::string& path,
                         const std::string& reference, std::string_view transports) {
  const auto policy = SPC_TRY(TrustPolicy::read(file, 0));
  for (const std::string_view transport : split(transports, ',')) {
    const auto found = policy.for_local(std::string(transport), path, reference);
    const auto admits = [](const TrustRequirement& one) {
      return one.kind == TrustRequirement::Kind::accept_anything;
    };
    if (std::all_of(found.requirements->begin(), found.requirements->end(), admits)) continue;
    return Error(
               ErrorKind::refused,
               formatted(
                   "this site's signature policy does not admit {} without a signature ({} in {})",
                   path.empty() ? "this image" : in_quotes(path), found.scope, in_quotes(file)))
        .hint("use a signed image of a registry, or ask the administrator");
  }
  return {};
}

}  // namespace

int answer_trust(std::span<char*> words, int socket) noexcept {
  TrustAnswer answer;
  try {
    if (words.size() != 4) return 2;
    const auto checked = check_local(words[0], words[1], words[2], words[3]);
    if (!checked) answer.error = WireError(checked.error());
  } catch (const std::exception& error) {
    answer.error = WireError(Error(ErrorKind::internal, error.what()));
  }
  return send_struct(socket, answer) ? 0 : 1;
}

// --- admission ---

namespace {

// The newest ones. Each costs a request.
constexpr std::size_t kMostIndexes = 4;

}  // namespace

Result<Admission> Admission::prepare(const Config& config, const ImageStore& store,
                                     const ImageReference& image, const ImageReference& name) {
  Admission admission(config, store, image, name);
  const std::string& path = config.site.signature_policy;
  if (path.empty()) return admission;
  const auto policy = SPC_TRY(TrustPolicy::read(path, ::geteuid()));
  admission.check_ =
      SPC_TRY(RequirementCheck::prepare(policy.for_registry(name), path, ::geteuid()));
  return admission;
}

Result<void> Admission::decide_digest(const Digest& manifest) const {
  if (!config_.registry(image_.registry).require_digest || image_.digest) return {};
  return Error(ErrorKind::refused, formatted("this site allows images from {} by digest only",
                                             in_quotes(image_.registry)))
      .hint(formatted("currently {}/{}@{}", image_.registry, image_.repository, manifest.str()));
}

Result<void> Admission::decide(std::string_view manifest, std::vector<Digest> indexes,
                               PullPolicy pull, Repository& repository) {
  manifest_ = Sha256::of(manifest);
  SPC_TRY(decide_digest(manifest_));
  if (!check_ || !check_->needs_signatures()) return {};
  indexes.resize(std::min(indexes.size(), kMostIndexes));
  SignedImage image{.name = name_, .digests = std::move(indexes)};
  image.digests.push_back(manifest_);

  const std::string kept = SPC_TRY(store_.signatures(manifest_));
  found_ = parse_kept_signatures(kept);
  if (satisfied(image)) {
    accepted_.clear();  // they are stored already
    return {};
  }
  if (pull == PullPolicy::never) {
    return Error(ErrorKind::refused, refusal_->what())
        .hint("drop --container-pull=never to look for new signatures");
  }
  found_.clear();
  return ask(image, repository);
}

/// Fetches cosign's signatures: under a tag made of the digest, or as referrers of it.
Result<void> Admission::ask(const SignedImage& image, Repository& repository) {
  for (const Digest& subject : image.digests) {
    SPC_TRY(add_attached(signature_tag(subject), repository));
    if (satisfied(image)) return {};
  }
  for (const Digest& subject : image.digests) {
    const auto added = add_referrers(subject, repository);
    // If some signatures were found, the reason why they do not admit the image is the better
    // message.
    if (!added && found_.empty()) return added.error();
    if (satisfied(image)) return {};
  }
  if (!has_bundles_) return *std::move(refusal_);
  return Error(ErrorKind::refused, refusal_->what())
      .hint(
          "it has sigstore bundles, which are not supported: sign it with cosign sign "
          "--new-bundle-format=false");
}

bool Admission::satisfied(const SignedImage& image) {
  auto accepted = check_->accept(found_, image);
  if (!accepted) {
    refusal_ = std::move(accepted).error();
    return false;
  }
  accepted_ = *std::move(accepted);
  return true;
}

/// Returns false if no such manifest exists.
Result<bool> Admission::add_attached(const std::string& tag_or_digest, Repository& repository) {
  const std::string what = "signatures " + in_quotes(tag_or_digest);
  const auto manifest = SPC_TRY(repository.find_manifest(tag_or_digest, what));
  if (!manifest) return false;
  std::string payload;
  std::optional<Digest> payload_digest;
  auto signatures = SPC_TRY(parse_attachment(*manifest, what));
  for (AttachedSignature& attached : signatures) {
    if (found_.size() == kMostSignatures)
      return Error(ErrorKind::refused, what + ": there are too many");
    // Several signers share a payload: fetch it once.
    if (payload_digest != attached.payload)
      payload = SPC_TRY(repository.get_small(attached.payload, attached.payload_size, what));
    payload_digest = attached.payload;
    found_.push_back({.payload = payload, .signature = std::move(attached.signature), .key = ""});
  }
  return true;
}

Result<void> Admission::add_referrers(const Digest& subject, Repository& repository) {
  const std::string what = "referrers of " + in_quotes(subject.str());
  auto index = SPC_TRY(repository.find_referrers(subject, what));
  if (!index)
    index = SPC_TRY(
        // Fallback for registries without the referrers API.
        repository.find_manifest("sha256-" + subject.hex(), what));
  if (!index) return {};
  const auto found = SPC_TRY(parse_referrers(*index, what));
  has_bundles_ = has_bundles_ || found.has_bundles;
  for (const Digest& referrer : found.signatures) SPC_TRY(add_attached(referrer.str(), repository));
  return {};
}

Result<void> Admission::keep() const {
  if (accepted_.empty()) return {};
  const std::string kept = SPC_TRY(store_.signatures(manifest_));
  return store_.write_signatures(manifest_,
                                 serialize(merged(accepted_, parse_kept_signatures(kept))));
}

// --- policy ---

namespace {

/// A size of config.toml, whose syntax was checked before.
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

/// Returns the limit of layers that the kernel mounts for one start. A job holds at most three
/// times as many in addition. A percentage is meant for nodes whose memory matches their number of
/// processors. It always allows the layers of an ordinary image.
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
  // Decide the method here, so that not every step on an old kernel tries the others first. The
  // decision is valid until config.toml changes or the node reboots. If the kernel can idmap an
  // erofs, each step tries, because the module may be loaded later.
  const auto kernel = running_kernel();
  if (kernel < kMapsSquashfs && files_share_blocks(SPC_STORE_DIR)) {
    policy.squashfs = PolicyRecord::by_copies;
  } else if (kernel < (config.wants_squashfs() ? kMapsSquashfs : kMapsErofs)) {
    policy.squashfs = PolicyRecord::by_fuse_for_users;
  }
  // A pod that is not privileged has no loop devices. On a host, udev creates this device node for
  // an installed module, loaded or not.
  if (config.squashfs == "auto" && ::access("/dev/loop-control", F_OK) != 0) policy.most_layers = 0;
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

/// Fills the policy record and returns the file with the texts that it refers to.
Result<UniqueFd> read_policy(PolicyRecord& policy) {
  std::string files;
  auto config = SPC_TRY(read_config(SPC_CONFIG_FILE, 0, {}, &files));
  if (config.default_registry.size() >= sizeof policy.default_registry) {
    return Error(ErrorKind::invalid, "config.toml: default_registry is too long");
  }
  policy = record_of(config);
  // The settings have the other half.
  config.site.keep_last_valid &= files.size() <= PolicyRecord::kMostText / 2;
  const std::string texts = site_records(config.site) + (config.site.keep_last_valid ? files : "");
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
      answer.error = WireError(for_administrator(read.error()));
  } catch (const std::exception& error) {
    answer.error = WireError(Error(ErrorKind::internal, error.what()));
  }
  const int passed[] = {texts.get()};
  return send_struct(socket, answer, std::span(passed, texts ? 1 : 0)) ? 0 : 1;
}

}  // namespace spc
