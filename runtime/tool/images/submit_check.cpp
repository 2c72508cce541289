#include "tool/images/submit_check.hpp"

#include <unistd.h>

#include <cstdio>

#include "image/reference/location.hpp"
#include "launch/policy/submit_rules.hpp"
#include "protocol/submit.hpp"
#include "tool/images/obtain.hpp"

namespace spc::tool {
namespace {

/// The registry says no, for a reason that a node would give too. What is wrong on this machine alone is not one.
bool is_refusal(const Error& error) { return error.kind() == ErrorKind::not_found || error.kind() == ErrorKind::refused; }

Result<void> ask_registry(const Config& config, const ImageLocation& image, const Wanted& wanted) {
  const PullPolicy pull = wanted.pull.value_or(config.pull);
  // The nodes may have what the registry has no longer.
  const bool asks = pull == PullPolicy::newer || pull == PullPolicy::always;
  if (!config.site.check_at_submit || !asks || image.kind != ImageLocation::Kind::registry || ::geteuid() == 0) return {};
  auto places = Places::find();
  if (!places) return {};
  places->config = SPC_CONFIG_FILE;
  if (!make_own_store(*places)) return {};
  ::alarm(kSubmitSeconds);  // ends this program, and with it the one that asks
  const auto digest = image_at_source(*places, config, wanted);
  if (!digest && is_refusal(digest.error())) return digest.error();
  return {};
}

Result<void> check(const Wanted& wanted, const std::vector<std::string>& features) {
  const auto config = read_config(SPC_CONFIG_FILE);
  if (!config) return {};  // the nodes have files of their own
  const SubmitRules rules = config->submit_rules();
  SPC_TRY(rules.check(features, wanted.image));
  if (wanted.image.empty() || !rules.importer.empty()) return {};
  return ask_registry(*config, SPC_TRY(ImageLocation::parse(wanted.image, config->default_registry)), wanted);
}

}  // namespace

int run_submit_check(std::span<char*> words) {
  if (words.size() < 3) return 2;
  Wanted wanted;
  wanted.image = words[0];
  wanted.pull = parse_pull_policy(words[1]);
  if (auto platform = Platform::parse(words[2])) wanted.platform = *std::move(platform);
  wanted.quiet = true;
  const auto checked = check(wanted, {words.begin() + 3, words.end()});
  if (!checked) std::puts(checked.error().message().c_str());
  return checked ? 0 : 1;
}

}  // namespace spc::tool
