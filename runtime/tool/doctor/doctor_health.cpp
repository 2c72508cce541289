#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "image/config/config.hpp"
#include "image/layer/worker/mountable.hpp"
#include "launch/policy/site_policy.hpp"
#include "protocol/policy.hpp"
#include "task/exec_label.hpp"
#include "tool/doctor/bounded.hpp"
#include "tool/doctor/doctor.hpp"
#include "tool/doctor/store_state.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

using Clock = std::chrono::steady_clock;

struct NodeCheck {
  const char* what;
  std::vector<Finding> (*examine)();
};

/// What slurmd has made in /run, and the site's policy as jobs see it. The agent makes a policy
/// again that is not of its kind.
Finding examine_run() {
  constexpr char kRun[] = "node's state";
  struct stat status {};
  if (::lstat(SPC_RUN_DIR "/steps", &status) != 0) {
    return {kRun, Finding::Verdict::failed,
            formatted("{}: {}", SPC_RUN_DIR "/steps", std::strerror(errno)),
            "start slurmd, which creates it"};
  }
  if (!S_ISDIR(status.st_mode) || status.st_uid != 0 || (status.st_mode & 07777) != 0700) {
    return {kRun, Finding::Verdict::failed, SPC_RUN_DIR "/steps has a wrong owner or mode",
            "restart slurmd, which corrects them"};
  }
  const UniqueFd file(
      ::open(SPC_RUN_DIR "/policy", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file && errno == ENOENT)
    return {kRun, Finding::Verdict::ok, "no container was started yet", ""};
  const auto bytes = file ? read_file(file.get(), sizeof(PolicyRecord) + PolicyRecord::kMostText)
                          : Result<std::string>(Error::from_errno(errno, "open"));
  const bool sound =
      bytes && bytes->size() >= sizeof(PolicyRecord) &&
      std::memcmp(bytes->data(), PolicyRecord::kMagic, sizeof PolicyRecord::kMagic) == 0;
  if (!sound) {
    return {kRun, Finding::Verdict::warning,
            SPC_RUN_DIR "/policy cannot be read, or is of another version",
            "the next container makes it again"};
  }
  return {kRun, Finding::Verdict::ok, SPC_RUN_DIR, ""};
}

/// Images make room for others: what else is on the file system decides. Users can fill it, so
/// nothing here takes the node out.
Finding examine_space() {
  constexpr char kSpace[] = "space of the store";
  constexpr std::uint64_t kLeast = 64 << 20;  // as a pull leaves free
  const auto state = state_of_store(SPC_STORE_DIR);
  if (!state)
    return {kSpace, Finding::Verdict::failed, state.error().message(),
            "start slurmd, which creates the store"};
  const auto config = read_config(SPC_CONFIG_FILE);
  const StoreConfig limits = config ? config->store : StoreConfig();
  const std::uint64_t others = state->used - std::min(state->used, state->layer_bytes);
  std::string has = formatted("{} of {} free, images use {}", human_bytes(state->free),
                              human_bytes(state->size), human_bytes(state->layer_bytes));
  if (state->spool_bytes > 0)
    has += formatted(", {} are kept for other nodes of running steps",
                     human_bytes(state->spool_bytes));
  constexpr char kRemove[] = "remove other data from the file system of " SPC_STORE_DIR
                             ", or give the store one of its own";
  if (state->free + state->layer_bytes < std::min(kLeast, state->size / 50))
    return {kSpace, Finding::Verdict::warning, "no room: " + has, kRemove};
  if (state->inodes > 0 && state->free_inodes < state->inodes / 100) {
    return {kSpace, Finding::Verdict::warning,
            formatted("{} of {} inodes free", state->free_inodes, state->inodes), kRemove};
  }
  if (others > state->size / 100 * limits.high_watermark) {
    return {kSpace, Finding::Verdict::warning,
            formatted("{}: without images the file system is above high_watermark ({}%)", has,
                      limits.high_watermark),
            kRemove};
  }
  return {kSpace, Finding::Verdict::ok, has, ""};
}

/// Layers stay as they were converted: without erofs on a kernel before 6.2, or by a version whose
/// layers cannot be copied.
Finding examine_layers() {
  constexpr char kLayers[] = "layers";
  const auto config = read_config(SPC_CONFIG_FILE);
  const bool can_be_mapped =
      config && config->squashfs == "auto" && !config->wants_squashfs() && maps_only_erofs();
  const bool can_be_copied = config && config->wants_copies() && files_share_blocks(SPC_STORE_DIR);
  const bool wants_others = can_be_mapped || can_be_copied;
  const auto number = wants_others ? squashfs_layers(SPC_STORE_DIR).value_or(0) : 0;
  if (number == 0) return {kLayers, Finding::Verdict::ok, "", ""};
  return {kLayers, Finding::Verdict::warning,
          formatted("{} are squashfs, which FUSE serves with this kernel", number),
          "scontainer rm their images: when they are pulled again, the kernel serves them"};
}

/// The profile's name, a blank and its mode in parentheses make a line of what the kernel has
/// loaded. Empty: root alone may see.
bool has_apparmor_profile(const std::string& name) {
  const UniqueFd file(::open("/sys/kernel/security/apparmor/profiles", O_RDONLY | O_CLOEXEC));
  const auto loaded = file ? read_file(file.get(), 4 << 20) : Result<std::string>(std::string());
  return !loaded || loaded->empty() ||
         ("\n" + *loaded).find("\n" + name + " (") != std::string::npos;
}

Finding examine_labels() {
  constexpr char kWhat[] = "security labels";
  const auto site = SitePolicy::read();
  if (site.apparmor_profile.empty() && site.selinux_label.empty())
    return {kWhat, Finding::Verdict::ok, "none", ""};
  const bool has_apparmor = has_security_module(SecurityModule::apparmor);
  if (!site.apparmor_profile.empty() && has_apparmor &&
      !has_apparmor_profile(site.apparmor_profile)) {
    return {kWhat, Finding::Verdict::failed,
            formatted("AppArmor has no profile {}", in_quotes(site.apparmor_profile)),
            "load it: apparmor_parser --replace FILE"};
  }
  const bool counts = (!site.apparmor_profile.empty() && has_apparmor) ||
                      (!site.selinux_label.empty() && has_security_module(SecurityModule::selinux));
  if (counts)
    return {kWhat, Finding::Verdict::ok, site.apparmor_profile + " " + site.selinux_label, ""};
  return {kWhat, Finding::Verdict::warning,
          "this kernel has neither AppArmor nor SELinux by which containers are to be confined",
          "boot with security=apparmor or security=selinux, or remove the keys from config.toml"};
}

/// What only jobs need is needed on a node that runs them.
std::vector<Finding> needed(Finding finding) {
  if (finding.verdict == Finding::Verdict::warning) finding.verdict = Finding::Verdict::failed;
  return {std::move(finding)};
}

/// In this order; each is asked by itself.
constexpr NodeCheck kNodeChecks[] = {
    {"kernel", examine_kernel_of_node},
    {"programs", [] { return std::vector{examine_programs()}; }},
    {"service user", [] { return needed(examine_service_user()); }},
    {"node store", [] { return needed(examine_node_store()); }},
    {"space of the store", [] { return std::vector{examine_space()}; }},
    {"layers", [] { return std::vector{examine_layers()}; }},
    {"shared store", [] { return std::vector{examine_shared_store()}; }},
    {"node's state", [] { return std::vector{examine_run()}; }},
    {"config.toml", [] { return std::vector{examine_config(SPC_CONFIG_FILE)}; }},
    {"security labels", [] { return std::vector{examine_labels()}; }},
    {"Slurm plugin", [] { return std::vector{examine_plugin()}; }},
};

constexpr std::size_t kFields = 4;

std::string packed(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& one : findings) {
    for (const std::string& field :
         {one.what, std::to_string(static_cast<int>(one.verdict)), one.detail, one.cure}) {
      text += std::string(field.c_str()) + '\0';
    }
  }
  return text;
}

std::vector<Finding> unpacked(const std::string& text) {
  std::vector<Finding> findings;
  const auto fields = split(text, '\0');
  for (std::size_t at = 0; at + kFields < fields.size(); at += kFields) {
    const auto verdict = static_cast<Finding::Verdict>(fields[at + 1].front() - '0');
    findings.push_back({std::string(fields[at]), verdict, std::string(fields[at + 2]),
                        std::string(fields[at + 3])});
  }
  return findings;
}

}  // namespace

std::vector<Finding> examine_health() {
  constexpr std::chrono::seconds kLimit{10};
  const auto end = Clock::now() + kLimit;
  std::vector<Finding> findings;
  for (const NodeCheck& check : kNodeChecks) {
    // Who hangs leaves a second to each of the others.
    const auto left = std::max<Clock::duration>(end - Clock::now(), std::chrono::seconds(1));
    const auto limit = std::min<Clock::duration>(left, std::chrono::seconds(3));
    const auto answer =
        answer_before(Clock::now() + limit, [&] { return packed(check.examine()); });
    auto found = answer ? unpacked(*answer) : std::vector<Finding>();
    if (found.empty()) {
      // A warning: a user who keeps the node's disk or processors busy must not take it out.
      found.push_back({check.what, Finding::Verdict::warning, "no answer in time",
                       "look for a file system or a name service that does not answer"});
    }
    for (Finding& one : found) findings.push_back(std::move(one));
  }
  return findings;
}

Finding::Verdict worst_of(const std::vector<Finding>& findings) {
  auto worst = Finding::Verdict::ok;
  for (const Finding& one : findings) worst = std::max(worst, one.verdict);
  return worst;
}

}  // namespace spc::tool
