#include <cstdio>

#include "base/format.hpp"
#include "tool/command.hpp"
#include "tool/containers/node_step.hpp"
#include "tool/images/obtain.hpp"

namespace spc::tool {

Result<Wanted> parse_wanted(const Arguments& arguments, const std::string& image) {
  Wanted wanted;
  wanted.image = image;
  if (const auto platform = arguments.value("platform"); !platform.empty()) {
    wanted.platform = SPC_TRY_DURING("--platform", Platform::parse(platform));
  }
  if (const auto pull = arguments.value("pull"); !pull.empty()) {
    wanted.pull = parse_pull_policy(pull);
    if (!wanted.pull)
      return Error(ErrorKind::invalid, formatted("--pull: {} is not allowed", in_quotes(pull)))
          .hint(kPullPolicies);
  }
  wanted.quiet = arguments.has("quiet");
  wanted.verbose = arguments.has("verbose");
  return wanted;
}

Result<int> run_pull(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config));
  for (const std::string& image : arguments.words) {
    const auto wanted = SPC_TRY(parse_wanted(arguments, image));
    if (arguments.has("digest")) {
      if (!places.own_store) {
        return Error(ErrorKind::refused, "--digest is not available to root: the node's service user pulls root's images");
      }
      const auto digest = SPC_TRY(digest_at_source(places, config, wanted));
      std::puts(digest.str().c_str());
      continue;
    }
    const auto digest = places.own_store ? SPC_TRY(obtain(places, config, wanted)).image.digest
                                         : SPC_TRY(pull_into_node_store(places, config, wanted));
    std::puts(digest.str().c_str());
  }
  return 0;
}

}  // namespace spc::tool
