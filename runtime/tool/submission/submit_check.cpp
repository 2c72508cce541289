#include "tool/submission/submit_check.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/format.hpp"
#include "image/reference/location.hpp"
#include "launch/policy/submit_rules.hpp"
#include "protocol/submit.hpp"
#include "tool/images/obtain.hpp"
#include "tool/submission/node_fit.hpp"

namespace spc::tool {
namespace {

void tell(const char* word, const std::string& text) {
  std::printf("%s%s\n", word, printable(text).c_str());
}

/// The registry says no, for a reason that a node would give too. What is wrong on this machine
/// alone is not one: which image of several is meant depends on the nodes' architecture.
bool is_refusal(const Error& error, bool is_nodes_platform) {
  return error.kind() == ErrorKind::not_found || error.kind() == ErrorKind::refused ||
         (is_nodes_platform && error.kind() == ErrorKind::invalid);
}

/// What files of it say, if it has been pulled here before; else what its configuration says.
std::vector<Fact> known_facts(const Places& places, const SourceImage& source,
                              const ImageConfig& config) {
  const auto store = open_store(places.store);
  const auto stored =
      store ? image_of(store->get(), source.digest) : Result<ListedImage>(store.error());
  const auto sheet = stored ? facts_in(stored->record->settings) : std::nullopt;
  return sheet ? sheet->facts : facts_of_variables(config.env);
}

/// As it is for one kind of nodes; without a name: nothing is known.
Result<KnownImage> ask_registry(const Places& places, const Config& config, Wanted wanted,
                                const NodeKind& kind) {
  const auto arch = kind.nodes.arch.empty() ? Result<Platform>(Platform())
                                            : Platform::parse("linux/" + kind.nodes.arch);
  const bool is_nodes_platform = !wanted.platform && !kind.nodes.arch.empty() && arch;
  if (is_nodes_platform) wanted.platform = *arch;
  auto source = image_at_source(places, config, wanted);
  if (!source && !is_refusal(source.error(), is_nodes_platform)) return KnownImage();
  if (!source && is_nodes_platform)
    return std::move(source).error().during("check the image for " + kind.where);
  if (!source) return std::move(source).error();
  const auto parsed = parse_image_config(source->config, "image configuration");
  if (!parsed) return KnownImage();
  return KnownImage{.name = wanted.image,
                    .digest = source->digest,
                    .config = *parsed,
                    .facts = known_facts(places, *source, *parsed)};
}

/// Refused if no partition will do; the first one's reason is told.
Result<void> check_image(const Config& config, const ImageLocation& image, const Wanted& wanted,
                         const std::vector<NodeKind>& kinds) {
  const PullPolicy pull = wanted.pull.value_or(config.pull);
  // The nodes may have what the registry has no longer.
  const bool asks = pull == PullPolicy::newer || pull == PullPolicy::always;
  if (!config.site.check_at_submit || !asks || image.kind != ImageLocation::Kind::registry ||
      ::geteuid() == 0)
    return {};
  auto places = Places::find();
  if (!places) return {};
  places->config = SPC_CONFIG_FILE;
  if (!make_own_store(*places)) return {};
  ::alarm(kSubmitSeconds);  // ends this program, and with it the one that asks
  std::optional<Error> first;
  for (NodeKind kind : kinds) {
    if (wanted.platform) kind.nodes.arch.clear();  // the user wants another one
    auto known = ask_registry(*places, config, wanted, kind);
    if (known && known->name.empty()) return {};
    auto fits = known ? check_fit(*known, kind)
                      : Result<std::vector<std::string>>(std::move(known).error());
    for (const auto& warning : fits ? *fits : std::vector<std::string>())
      tell(kSubmitWarning, warning);
    if (fits) tell(kSubmitDigest, known->digest.str());
    if (fits) return {};
    if (!first) first = std::move(fits).error();
  }
  return first ? Result<void>(*std::move(first)) : Result<void>();
}

struct Submission {
  Wanted wanted;
  std::string partitions, constraint;
  std::vector<std::string> features;
};

Result<void> check(const Submission& asked) {
  const auto config = read_config(SPC_CONFIG_FILE);
  if (!config) return {};  // the nodes have files of their own
  const SubmitRules rules = config->submit_rules();
  SPC_TRY(rules.check(asked.features, asked.wanted.image));
  if (asked.wanted.image.empty() || !rules.importer.empty()) return {};
  const auto location = SPC_TRY(ImageLocation::parse(asked.wanted.image, config->default_registry));
  return check_image(*config, location, asked.wanted,
                     kinds_of_nodes(*config, asked.partitions, asked.constraint));
}

}  // namespace

int run_submit_check(std::span<char*> words) {
  if (words.size() < 5) return 2;
  Submission asked{.wanted = {},
                   .partitions = words[3],
                   .constraint = words[4],
                   .features = {words.begin() + 5, words.end()}};
  asked.wanted.image = words[0];
  asked.wanted.pull = parse_pull_policy(words[1]);
  if (auto platform = Platform::parse(words[2])) asked.wanted.platform = *std::move(platform);
  asked.wanted.quiet = true;
  const auto checked = check(asked);
  if (!checked) tell(kSubmitRefused, checked.error().message());
  return checked ? 0 : 1;
}

}  // namespace spc::tool
