#include <unistd.h>

#include <cstdio>

#include "base/format.hpp"
#include "image/reference/location.hpp"
#include "tool/command.hpp"
#include "tool/containers/node_step.hpp"
#include "tool/images/import_run.hpp"
#include "tool/images/obtain.hpp"
#include "tool/images/remote_image.hpp"
#include "tool/images/shared_images.hpp"

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
      return Error(ErrorKind::invalid, formatted("--pull: {} is not allowed", in_quotes(pull))).hint(kPullPolicies);
  }
  wanted.quiet = arguments.has("quiet");
  wanted.verbose = arguments.has("verbose");
  return wanted;
}

namespace {

/// For all nodes, and not for this one.
Result<int> pull_into_shared_store(const Arguments& arguments) {
  if (arguments.has("pull") || arguments.has("digest")) {
    return Error(ErrorKind::invalid, "pull --shared: takes neither --pull nor --digest").hint("scontainer pull --help");
  }
  const auto config = SPC_TRY(read_config(SPC_CONFIG_FILE));
  SPC_TRY(open_shared_store());  // as whom it belongs to
  for (const std::string& image : arguments.words) {
    const auto wanted = SPC_TRY(parse_wanted(arguments, image));
    ImportRequest request;
    request.image = SPC_TRY(ImageLocation::parse(image, config.default_registry)).canonical();
    request.only_shared = true;
    request.uid = ::geteuid();
    request.meter = !wanted.quiet && draws_progress();
    if (wanted.platform) request.platform = *wanted.platform;
    PullDisplay display(request.image, wanted.quiet);
    std::puts(SPC_TRY(import_into_shared_store(request, display)).str().c_str());
  }
  return 0;
}

Result<Digest> pull_into_file(const Config& config, const Wanted& wanted, const Arguments& arguments) {
  if (!RemoteFile::is_meant(wanted.image) || arguments.words.size() > 1) {
    return Error(ErrorKind::invalid, "pull --output: takes one image, oras://NAME or https://HOST/FILE")
        .hint("for other images, scontainer pull and scontainer export");
  }
  return fetch_remote_image(config, wanted, arguments.value("output"), arguments.has("force"));
}

}  // namespace

Result<int> run_pull(const Arguments& arguments) {
  if (arguments.has("shared")) return pull_into_shared_store(arguments);
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config));
  for (const std::string& image : arguments.words) {
    const auto wanted = SPC_TRY(parse_wanted(arguments, image));
    if (arguments.has("output")) {
      const Digest fetched = SPC_TRY(pull_into_file(config, wanted, arguments));
      std::puts(fetched.str().c_str());
      continue;
    }
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
