#include <unistd.h>

#include <cstdio>

#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/process/pipe.hpp"
#include "image/reference/file_url.hpp"
#include "image/reference/location.hpp"
#include "tool/command.hpp"
#include "tool/containers/node_step.hpp"
#include "tool/images/import_run.hpp"
#include "tool/images/obtain.hpp"
#include "tool/images/remote_image.hpp"
#include "tool/images/shared_images.hpp"
#include "tool/surroundings/terminal.hpp"

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

namespace {

/// For all nodes, and not for this one.
Result<int> pull_into_shared_store(const Arguments& arguments) {
  const std::string pull = arguments.value("pull");
  if ((!pull.empty() && pull != "missing") || arguments.has("digest")) {
    return Error(ErrorKind::invalid, "pull --shared: takes no --digest, and no --pull but missing")
        .hint("scontainer pull --help");
  }
  const auto config = SPC_TRY(read_config(SPC_CONFIG_FILE));
  SPC_TRY(open_shared_store());  // as whom it belongs to
  for (const std::string& image : arguments.words) {
    const auto wanted = SPC_TRY(parse_wanted(arguments, image));
    const auto location = SPC_TRY(ImageLocation::parse(image, config.default_registry));
    if (location.kind == ImageLocation::Kind::remote_file)
      return Error(ErrorKind::invalid,
                   formatted("pull --shared: {}: is a file, not an image of layers",
                             in_quotes(without_secrets(image))));
    ImportRequest request;
    request.image = location.canonical();
    request.only_shared = true;
    request.uid = ::geteuid();
    request.meter = !wanted.quiet && draws_progress();
    if (wanted.platform) request.platform = *wanted.platform;
    request.pull = wanted.pull;
    PullDisplay display(request.image, wanted.quiet);
    std::puts(SPC_TRY(import_into_shared_store(request, display)).str().c_str());
  }
  return 0;
}

Result<Digest> pull_into_file(const Config& config, const Wanted& wanted,
                              const Arguments& arguments) {
  if (!RemoteFile::is_meant(wanted.image)) {
    return Error(ErrorKind::invalid,
                 "pull --output: takes one image, oras://NAME or https://HOST/FILE")
        .hint("for other images, scontainer pull and scontainer export");
  }
  return fetch_remote_image(config, wanted, arguments.value("output"), arguments.has("force"));
}

/// Several images at once, each by a process of its own; their digests are printed in the order of
/// the images, and one that fails does not keep the others.
Result<int> pull_side_by_side(const Arguments& arguments) {
  constexpr std::size_t kAtOnce = 4;
  struct Pull {
    Child child;
    UniqueFd digest;
  };
  std::vector<Pull> pulls;
  int status = 0;
  const auto end_one = [&](Pull& pull) {
    const std::string digest = read_pipe(pull.digest.get(), 4096);
    if (pull.child.wait().code() != 0) status = 1;
    std::fputs(digest.c_str(), stdout);
    std::fflush(stdout);  // nothing of it is for the next process to write
  };
  std::size_t ended = 0;
  for (const std::string& image : arguments.words) {
    if (pulls.size() - ended == kAtOnce) end_one(pulls[ended++]);
    auto [reading, writing] = SPC_TRY(make_pipe());
    Pull pull{.child = {}, .digest = std::move(reading)};
    const int writing_end = writing.get();
    Arguments one = arguments;
    one.words = {image};
    const auto work = [&] {
      ::dup2(writing_end, STDOUT_FILENO);
      const auto done = run_pull(one);
      if (!done) report_error(done.error().message());
      std::fflush(stdout);
      return done ? *done : 1;
    };
    pull.child = SPC_TRY(Child::run(work, "pull an image"));
    pulls.push_back(std::move(pull));
  }
  while (ended < pulls.size()) end_one(pulls[ended++]);
  return status;
}

}  // namespace

Result<int> run_pull(const Arguments& arguments) {
  if (arguments.has("shared")) return pull_into_shared_store(arguments);
  if (arguments.words.size() > 1) {
    if (arguments.has("output")) return Error(ErrorKind::invalid, "pull --output: takes one image");
    return pull_side_by_side(arguments);
  }
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config));
  const auto wanted = SPC_TRY(parse_wanted(arguments, arguments.words[0]));
  Digest digest;
  if (arguments.has("output")) {
    digest = SPC_TRY(pull_into_file(config, wanted, arguments));
  } else if (arguments.has("digest")) {
    if (!places.own_store) {
      return Error(
          ErrorKind::refused,
          "--digest is not available to root: the node's service user pulls root's images");
    }
    digest = SPC_TRY(image_at_source(places, config, wanted)).digest;
  } else {
    digest = places.own_store ? SPC_TRY(obtain(places, config, wanted)).image.digest
                              : SPC_TRY(pull_into_node_store(places, config, wanted));
  }
  std::puts(digest.str().c_str());
  return 0;
}

}  // namespace spc::tool
