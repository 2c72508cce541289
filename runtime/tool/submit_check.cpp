#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.hpp"
#include "base/text.hpp"
#include "config/config.hpp"
#include "convert/facts.hpp"
#include "hooks/gpu/gpu_hooks.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/step/allocation.hpp"
#include "protocol/submit.hpp"
#include "reference/location.hpp"
#include "registry/manifest.hpp"
#include "tool/command.hpp"
#include "tool/images/obtain.hpp"

namespace spc::tool {

// --- node fit ---

/// Nodes on which a job may run, as described in config.toml.
struct NodeKind {
  std::string where;  ///< for messages: `partition "gpu"`, or `this cluster`
  NodesConfig nodes;
};

/// Returns one entry for each partition of `a,b`. Without `partitions`, uses the default partition
/// of slurm.conf. `constraint`: features joined by & or commas that all nodes of the job have.
/// Other constraint expressions are ignored.
std::vector<NodeKind> kinds_of_nodes(const Config& config, const std::string& partitions,
                                     std::string_view constraint);

/// An image's metadata before the pull.
struct KnownImage {
  std::string name;
  Digest digest;
  ImageConfig config;
  std::vector<Fact> facts;
};

/// Refuses an image that cannot run on these nodes. Returns warnings for possible mismatches.
Result<std::vector<std::string>> check_fit(const KnownImage& image, const NodeKind& kind);

namespace {

/// Overrides the settings of all nodes by those of the named nodes.
void add_to(NodesConfig& nodes, const std::map<std::string, NodesConfig, std::less<>>& named,
            std::string_view name) {
  const auto found = named.find(name);
  if (found == named.end()) return;
  for (const auto member : {&NodesConfig::arch, &NodesConfig::driver, &NodesConfig::glibc}) {
    if (!(found->second.*member).empty()) nodes.*member = found->second.*member;
  }
  if (found->second.gpu != NodesConfig().gpu) nodes.gpu = found->second.gpu;
  if (!found->second.pmi.empty()) nodes.pmi = found->second.pmi;
}

std::string default_partition() {
  HookContext context;
  if (const char* const conf = std::getenv("SLURM_CONF")) context.job["SLURM_CONF"] = conf;
  const std::string text = slurm_file(context, "slurm.conf");
  for (const std::string_view line : split(text, '\n')) {
    if (slurm_setting(line, "PartitionName").empty()) continue;
    const std::string is_default = slurm_setting(line, "Default");
    if (is_default == "YES" || is_default == "yes" || is_default == "Yes")
      return slurm_setting(line, "PartitionName");
  }
  return {};
}

/// Returns the features that all nodes must have. Empty if `constraint` is any other expression.
std::vector<std::string_view> features_of(std::string_view constraint) {
  if (constraint.find_first_of("|[]()*") != std::string_view::npos) return {};
  std::vector<std::string_view> features;
  for (const std::string_view part : split(constraint, '&')) {
    for (const std::string_view name : split(part, ',')) features.push_back(trimmed(name));
  }
  return features;
}

std::string fact(const KnownImage& image, std::string_view what) {
  const auto found = std::ranges::find(image.facts, what, &Fact::what);
  return found == image.facts.end() ? std::string() : found->value;
}

HookContext::Variables variables_of(const std::vector<std::string>& entries) {
  HookContext::Variables variables;
  for (const std::string& entry : entries) {
    const auto equals = entry.find('=');
    if (equals != std::string::npos) variables[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return variables;
}

class Check {
 public:
  Check(const KnownImage& image, const NodeKind& kind)
      : image_(image), nodes_(kind.nodes), where_(kind.where) {
    context_.image = variables_of(image.config.env);
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
      if (std::string_view(*entry).starts_with("NVIDIA_"))
        context_.job.merge(variables_of({*entry}));
    }
  }

  Result<std::vector<std::string>> run() {
    SPC_TRY(architecture());
    SPC_TRY(vendor());
    SPC_TRY(driver());
    SPC_TRY(libc());
    pmi();
    return std::move(warnings_);
  }

 private:
  [[nodiscard]] std::string said(const std::string& what) const {
    return formatted("check image {} for {}: {}", in_quotes(image_.name), where_, what);
  }
  [[nodiscard]] Error refused(const std::string& why, const std::string& hint) const {
    return Error(ErrorKind::refused, said(why)).hint(hint);
  }

  Result<void> architecture() const {
    const auto wanted = Platform::parse("linux/" + nodes_.arch);
    const Platform& is = image_.config.platform;
    if (nodes_.arch.empty() || !wanted || is.architecture.empty() ||
        is.architecture == wanted->architecture)
      return {};
    return refused(
        formatted("it is built for {}, the nodes are {}", printable(is.str()), wanted->str()),
        "choose a tag built for " + wanted->str() + ", or another partition");
  }

  Result<void> vendor() const {
    const bool is_nvidia =
        !fact(image_, "cuda").empty() || context_.image.contains("NVIDIA_REQUIRE_CUDA");
    const bool is_amd = !fact(image_, "rocm").empty();
    if (nodes_.gpu == NodesConfig().gpu || is_nvidia == is_amd ||
        nodes_.gpu == (is_nvidia ? "nvidia" : "amd"))
      return {};
    const std::string they_have =
        nodes_.gpu == "none" ? "have none" : "have others (" + nodes_.gpu + ")";
    return refused(
        formatted("it is made for {} GPUs, the nodes {}", is_nvidia ? "NVIDIA" : "AMD", they_have),
        "choose another image or partition");
  }

  Result<void> driver() {
    if (nodes_.driver.empty()) return {};
    NvidiaDriver driver;
    driver.version = nodes_.driver;
    Edits edits;
    check_requirements(context_, driver, false, edits);
    if (!edits.refusal.empty()) return Error(ErrorKind::refused, said(edits.refusal));
    for (const auto& warning : edits.warnings) warnings_.push_back(said(warning));
    return {};
  }

  Result<void> libc() const {
    const std::string is = fact(image_, "libc");
    constexpr std::string_view kGlibc = "glibc ";
    if (nodes_.glibc.empty() || !is.starts_with(kGlibc)) return {};
    if (compare_versions(std::string_view(is).substr(kGlibc.size()), nodes_.glibc) >= 0) return {};
    return refused(formatted("it has {}, what the nodes add to containers needs {} or newer", is,
                             nodes_.glibc),
                   "choose an image of a newer distribution");
  }

  /// Warns only: the program may not use MPI, or may start its ranks without Slurm.
  void pmi() {
    const std::string mpi = fact(image_, "mpi"), option = fact(image_, "srun");
    if (nodes_.pmi.empty() || option.empty()) return;
    const auto speaks = [&](const std::string& type) {
      return option.find(type.starts_with("pmix") ? std::string("pmix") : type) !=
             std::string::npos;
    };
    if (std::ranges::any_of(nodes_.pmi, speaks)) return;
    warnings_.push_back(said(formatted(
        "its {} needs srun {}, there is {} (hint: ranks will not find each other by srun)", mpi,
        option, joined(nodes_.pmi, ", "))));
  }

  const KnownImage& image_;
  const NodesConfig& nodes_;
  std::string where_;
  HookContext context_;
  std::vector<std::string> warnings_;
};

}  // namespace

std::vector<NodeKind> kinds_of_nodes(const Config& config, const std::string& partitions,
                                     std::string_view constraint) {
  const std::string asked =
      partitions.empty() && !config.partitions.empty() ? default_partition() : partitions;
  std::vector<NodeKind> kinds;
  for (const std::string_view partition : split(asked, ',')) {
    NodeKind kind{.where = partition.empty() ? "this cluster" : "partition " + in_quotes(partition),
                  .nodes = config.nodes};
    add_to(kind.nodes, config.partitions, partition);
    for (const std::string_view feature : features_of(constraint))
      add_to(kind.nodes, config.features, feature);
    kinds.push_back(std::move(kind));
  }
  return kinds;
}

Result<std::vector<std::string>> check_fit(const KnownImage& image, const NodeKind& kind) {
  return Check(image, kind).run();
}

// --- submit check ---

namespace {

void tell(const char* word, const std::string& text) {
  std::printf("%s%s\n", word, printable(text).c_str());
}

/// Returns whether the registry refused the image for a reason that also holds on the nodes. Errors
/// specific to this machine do not count: the nodes' architecture selects the image of an index.
bool is_refusal(const Error& error, bool is_nodes_platform) {
  return error.kind() == ErrorKind::not_found || error.kind() == ErrorKind::refused ||
         (is_nodes_platform && error.kind() == ErrorKind::invalid);
}

/// Returns the facts of a previously pulled copy of the image, otherwise those of its
/// configuration.
std::vector<Fact> known_facts(const Places& places, const SourceImage& source,
                              const ImageConfig& config) {
  const auto store = open_store(places.store);
  const auto stored =
      store ? image_of(store->get(), source.digest) : Result<ListedImage>(store.error());
  const auto sheet = stored ? facts_in(stored->record->settings) : std::nullopt;
  return sheet ? sheet->facts : facts_of_variables(config.env);
}

/// Returns the image for one kind of nodes. Without a name, returns an image with no known facts.
Result<KnownImage> ask_registry(const Places& places, const Config& config, PullRequest wanted,
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

/// Refuses the image if no partition accepts it. The error is the first partition's.
Result<void> check_image(const Config& config, const ImageLocation& image,
                         const PullRequest& wanted, const std::vector<NodeKind>& kinds) {
  const PullPolicy pull = wanted.pull.value_or(config.pull);
  // The nodes may have an image that has been removed from the registry.
  const bool asks = pull == PullPolicy::newer || pull == PullPolicy::always;
  if (!config.site.check_at_submit || !asks || image.kind != ImageLocation::Kind::registry ||
      ::geteuid() == 0)
    return {};
  auto places = Places::find();
  if (!places) return {};
  places->config = SPC_CONFIG_FILE;
  if (!make_own_store(*places)) return {};
  ::alarm(kSubmitSeconds);  // ends this program, and with it the waiting caller
  std::optional<Error> first;
  for (NodeKind kind : kinds) {
    if (wanted.platform) kind.nodes.arch.clear();  // the user selects another architecture
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
  PullRequest wanted;
  std::string partitions, constraint;
  std::vector<std::string> features;
};

Result<void> check(const Submission& asked) {
  const auto config = read_config(SPC_CONFIG_FILE);
  if (!config) return {};  // the nodes have their own configuration files
  SPC_TRY(config->check_request(asked.features, asked.wanted.image));
  if (asked.wanted.image.empty() || !config->site.importer.empty()) return {};
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

int run_read_environment(std::span<char*> words) {
  if (words.size() != 1) return 2;
  const auto read = [&]() -> Result<void> {
    const auto environment =
        SPC_TRY(EnvironmentPlaces::of_this_process(own_paths()).read(words[0]));
    if (const auto foreign = environment.foreign_annotations(); !foreign.empty())
      tell(kSubmitWarning, warning_about(foreign, environment.file));
    tell(kSubmitEnvironment, SPC_TRY(environment.record()));
    return {};
  };
  const auto done = read();
  if (!done) tell(kSubmitRefused, done.error().message());
  return done ? 0 : 1;
}

}  // namespace spc::tool
