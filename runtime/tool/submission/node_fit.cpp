#include "tool/submission/node_fit.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/format.hpp"
#include "base/text.hpp"
#include "hooks/gpu/requirement.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/step/slurm_conf.hpp"

namespace spc::tool {
namespace {

/// What is said of some nodes counts more than what is said of all.
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

/// None if it says more than that all nodes have some features.
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

  /// A warning: it may do without MPI, or start its ranks by itself.
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

}  // namespace spc::tool
