// The configurations in packaging/examples/sites, each on a fake node of such a site with some fake
// images. Compares the output of --container-explain about hooks, mounts and variables. With
// SPC_WRITE_GOLDEN set, the golden files are rewritten.

#include <sys/resource.h>
#include <algorithm>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "config/config.hpp"
#include "hook_engine/step_hooks.hpp"
#include "launch/hooks/hook_edits.hpp"
#include "launch/spec/container_spec.hpp"
#include "unit/hooks/fabric/fabric_node.hpp"
#include "unit/hooks/image_root.hpp"

namespace {

using Words = std::vector<std::string>;

struct SilentLog : Log {
  void write(LogLevel, std::string_view) noexcept override {}
};

/// The environment of a step of two nodes with four tasks on each.
struct FakeStep {
  std::string name, mpi, slurm_mpi;
  std::map<std::string, std::string> job;
  Words devices = {};
};

/// A fake image: a C library of this release, other libraries, variables.
struct FakeImage {
  std::string glibc;
  std::vector<std::pair<std::string, MadeElf>> libraries;  ///< directory and library
  std::vector<std::string> files;
  Words environment;
};

const Words kReleases{"2.2.5", "2.17", "2.28", "2.31", "2.34",
                      "2.35",  "2.36", "2.38", "2.39", "2.41"};

MadeElf needing(const std::string& soname, const std::string& glibc, Words needed = {}) {
  needed.emplace_back("libc.so.6");
  return {.soname = soname, .needed = needed, .version_needs = {{"libc.so.6", {"GLIBC_" + glibc}}}};
}

std::string of_this_node(MadeElf library) {
  library.machine = kOwnMachine;
  return library.bytes();
}

class SiteOnNode {
 public:
  explicit SiteOnNode(const std::string& name) : name_(name) {
    std::ostringstream text;
    text << std::ifstream(std::string(SPC_SITES) + "/" + name + ".toml").rdbuf();
    auto config = parse_config(text.str(), name + ".toml");
    if (!config) FAIL(config.error().message());
    site_ = config->site;
  }
  ~SiteOnNode() {
    const std::string path = std::string(SPC_SITE_PAGES) + "/" + name_ + ".txt";
    if (std::getenv("SPC_WRITE_GOLDEN") != nullptr) std::ofstream(path) << as_on_x86(page_);
    std::ostringstream golden;
    golden << std::ifstream(path).rdbuf();
    CHECK(as_on_x86(page_) == golden.str());
  }
  SiteOnNode(const SiteOnNode&) = delete;
  SiteOnNode& operator=(const SiteOnNode&) = delete;

  FabricNode node;

  void library(const std::string& path, const MadeElf& library) const {
    node.write(path, of_this_node(library));
  }

  void start(const std::string& title, const FakeImage& image, const FakeStep& step) {
    const ImageRoot root;
    put(image, root);
    LaunchRequest request;
    request.image = title;
    request.mpi = step.mpi;
    request.devices = step.devices;
    auto job = job_of(step);
    HookContext context = hook_context(request, job, site_);
    for (auto& [key, value] : context.settings) {
      if (key == "fabric" && value == "require" && !can_lock()) value = "auto";
    }
    context.host_root = node.root.string();
    SilentLog log;
    auto hooks = StepHooks::find_in("/nowhere", std::move(context), log);
    REQUIRE(hooks);
    page_ += "== " + title + ": " + step.name + "\n";
    auto edits = hooks->prepare();
    ContainerSpec spec;
    spec.settings.environment = image.environment;
    spec.user = {.uid = 1000,
                 .gid = 1000,
                 .name = "user",
                 .home = "/home/user",
                 .shell = "/bin/sh",
                 .group_entries = {}};
    HookContext& known = hooks->context();
    known.open_in_image = root.context().open_in_image;
    for (const std::string& variable : image.environment)
      known.image[variable.substr(0, variable.find('='))] = variable.substr(variable.find('=') + 1);
    const auto created = edits ? hooks->create(*edits) : Result<void>(edits.error());
    if (!created) {
      page_ += "refused: " + created.error().message() + "\n\n";
      return;
    }
    decide(spec, request, site_, job);
    for (const auto& of_hook : edits->of_hooks) add(of_hook, spec);
    for (const auto& [name, variable] : spec.environment) known.environment[name] = variable.value;
    auto tasks = hooks->task();
    REQUIRE(tasks);
    for (const auto& of_hook : tasks->of_hooks) add(of_hook, spec);
    request.explain = ExplainForm::all;
    for (const std::string& line : explain(spec, request, site_, job)) {
      constexpr std::string_view kOfJob[] = {"(job)",    "(login)", "(user)", "(slurm)",
                                             "(launch)", "(mpi)",   "(gpu)"};
      const bool of_job = std::ranges::any_of(
          kOfJob, [&](std::string_view origin) { return line.find(origin) != std::string::npos; });
      if (line.starts_with("hook") || line.starts_with("mount") ||
          (line.starts_with("variable") && !of_job))
        page_ += without_limit(line) + "\n";
    }
    page_ += "\n";
  }

 private:
  static bool can_lock() {
    rlimit limit{};
    return ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_max >= rlim_t{1} << 30;
  }
  /// Removes limits, which depend on the test machine.
  static std::string without_limit(const std::string& line) {
    const auto at = line.find("; locked memory: ");
    return at == std::string::npos ? line : line.substr(0, at);
  }

  static void put(const FakeImage& image, const ImageRoot& root) {
    const std::string loader =
        kOwnMachine == EM_X86_64 ? "/lib64/ld-linux-x86-64.so.2" : "/lib/ld-linux-aarch64.so.1";
    root.put(loader, elf_library(loader.substr(loader.rfind('/') + 1), kOwnMachine));
    MadeElf libc{.soname = "libc.so.6"};
    for (const std::string& release : kReleases) {
      libc.version_definitions.push_back("GLIBC_" + release);
      if (release == image.glibc) break;
    }
    root.put(std::string(kLibraries) + "/libc.so.6", of_this_node(libc));
    root.put("/dev/shm/file", "");
    for (const auto& [directory, library] : image.libraries)
      root.put(directory + "/" + library.soname, of_this_node(library));
    for (const std::string& file : image.files) root.put(file, "");
  }

  static std::map<std::string, std::string> job_of(const FakeStep& step) {
    std::map<std::string, std::string> job{{"SLURM_JOB_ID", "17"},
                                           {"SLURM_STEP_ID", "0"},
                                           {"SLURM_STEP_NUM_TASKS", "8"},
                                           {"SLURM_STEP_NUM_NODES", "2"},
                                           {"SLURM_NODEID", "0"},
                                           {"SLURM_LOCALID", "0"},
                                           {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                                           {"SLURM_PROCID", "0"},
                                           {"SLURM_STEP_NODELIST", "node[1-2]"},
                                           {"SLURM_MPI_TYPE", step.slurm_mpi}};
    for (const auto& [name, value] : step.job) job[name] = value;
    return job;
  }

  void add(const HookEdits::OfHook& outcome, ContainerSpec& spec) {
    const Edits& edits = outcome.edits;
    for (const std::string& note : edits.notes) spec.hooks.emplace_back(outcome.hook, note);
    for (const std::string& warning : but_for_limits(edits.warnings))
      spec.hooks.emplace_back(outcome.hook, "WARNING: " + warning);
    for (const std::string& denied : edits.denied_devices)
      spec.hooks.emplace_back(outcome.hook, denied + " cannot be opened");
    for (const MountEdit& mount : edits.mounts) {
      if (!mount.target.empty())
        spec.mounts.push_back({.source = mount.source,
                               .target = mount.target,
                               .flags = mount.read_only ? "ro" : "rw",
                               .asked_by = outcome.hook});
    }
    for (const std::string& name : edits.environment.unset) spec.environment.erase(name);
    for (const auto& [name, value] : edits.environment.set)
      spec.environment[name] = {value, Origin::hook};
    for (const auto& [name, value] : edits.environment.prepend) {
      Variable& variable = spec.environment[name];
      variable = {value + (variable.value.empty() ? "" : ":" + variable.value), Origin::hook};
    }
    for (const auto& [name, value] : edits.environment.defaults)
      spec.environment.insert({name, {value, Origin::hook}});
  }

  std::string name_, page_;
  SitePolicy site_;
};

/// Returns a provider that needs the libibverbs of its release.
MadeElf of_release_50(const std::string& soname) {
  return {.soname = soname,
          .needed = {"libibverbs.so.1"},
          .version_needs = {{"libibverbs.so.1", {"IBVERBS_PRIVATE_50"}}}};
}

/// Returns an NGC image: HPC-X, rdma-core and NCCL of Ubuntu 24.04.
FakeImage ngc_image() {
  return {
      .glibc = "2.39",
      .libraries = {{kLibraries, {.soname = "libnl-3.so.200"}},
                    {kLibraries, {.soname = "libnl-route-3.so.200"}},
                    {kLibraries, {.soname = "libhwloc.so.15"}},
                    {kLibraries,
                     {.soname = "libibverbs.so.1",
                      .version_definitions = {"IBVERBS_1.1", "IBVERBS_1.14",
                                              "IBVERBS_PRIVATE_50"}}},
                    {kLibraries, of_release_50("libmlx5.so.1")},
                    {std::string(kLibraries) + "/libibverbs", of_release_50("libmlx5-rdmav34.so")},
                    {kLibraries, {.soname = "libnccl.so.2"}},
                    {"/opt/hpcx/ompi/lib", {.soname = "libmpi.so.40"}}},
      .files = {"/etc/libibverbs.d/mlx5.driver"},
      .environment = {"NCCL_VERSION=2.27", "PYTORCH_VERSION=2.9", "OPAL_PREFIX=/opt/hpcx/ompi",
                      "LD_LIBRARY_PATH=/opt/hpcx/ompi/lib:/usr/local/nvidia/lib"}};
}

FakeImage old_image() {  // Debian 11 with NCCL and no fabric libraries
  return {.glibc = "2.31",
          .libraries = {{kLibraries, {.soname = "libnccl.so.2"}}},
          .files = {},
          .environment = {"NCCL_VERSION=2.18"}};
}

const FakeStep kNcclStep{"eight tasks with NCCL on two nodes", "", "none", {}};

/// Puts a file of the examples at a path of the fake node.
void put_example(const FabricNode& node, const std::string& name, const std::string& place) {
  std::ostringstream text;
  text << std::ifstream(std::string(SPC_SITES) + "/" + name).rdbuf();
  node.write(place, text.str());
}

}  // namespace

TEST_CASE("site_file_cray_ex_on_fake_slingshot_node") {
  SiteOnNode site("cray-ex");
  for (const char* name : {"cxi0", "cxi1"}) {
    site.node.write(std::string("/sys/class/cxi/") + name + "/properties");
    site.node.write(std::string("/dev/") + name);
  }
  site.node.write("/dev/xpmem");
  const std::string mpich = "/opt/cray/pe/mpich/default/ofi/gnu/12.3/lib-abi-mpich/";
  MadeElf mpi = needing(
      "libmpi.so.12", "2.28",
      {"libfabric.so.1", "libpmi.so.0", "libpmi2.so.0", "libgfortran.so.5", "libxpmem.so.0"});
  mpi.functions = {"MPI_Init", "MPI_Send"};
  site.library(mpich + "libmpi.so.12", mpi);
  site.library(mpich + "libmpifort.so.12", needing("libmpifort.so.12", "2.28", {"libmpi.so.12"}));
  MadeElf fabric = needing("libfabric.so.1", "2.28",
                           {"libcxi.so.1", "libcurl.so.4", "libjson-c.so.3", "libatomic.so.1"});
  fabric.version_definitions = {"FABRIC_1.0", "FABRIC_1.6", "FABRIC_1.7"};
  site.library("/opt/cray/libfabric/default/lib64/libfabric.so.1", fabric);
  site.library("/usr/lib64/libcxi.so.1",
               needing("libcxi.so.1", "2.34", {"libnl-3.so.200", "libnl-genl-3.so.200"}));
  site.library("/opt/cray/pe/pmi/default/lib/libpmi.so.0",
               needing("libpmi.so.0", "2.17", {"libpals.so.0"}));
  site.library("/opt/cray/pe/pmi/default/lib/libpmi2.so.0",
               needing("libpmi2.so.0", "2.17", {"libpals.so.0"}));
  site.library("/opt/cray/pe/pals/default/lib/libpals.so.0", needing("libpals.so.0", "2.17"));
  site.library("/opt/xpmem/lib64/libxpmem.so.0", needing("libxpmem.so.0", "2.17"));
  site.library("/opt/site/aws-ofi-nccl/lib/libnccl-net-ofi.so",
               needing("libnccl-net-ofi.so", "2.34", {"libfabric.so.1"}));
  for (const char* name : {"libnl-3.so.200", "libnl-genl-3.so.200", "libjson-c.so.3",
                           "libatomic.so.1", "libgfortran.so.5", "libquadmath.so.0"})
    site.library(std::string("/usr/lib64/") + name, needing(name, "2.34"));
  site.library("/usr/lib64/libcurl.so.4", needing("libcurl.so.4", "2.38"));

  FakeImage mpich_image{.glibc = "2.39",
                        .libraries = {{kLibraries,
                                       {.soname = "libmpich.so.12",
                                        .functions = {"MPI_Init", "MPI_Send", "MPI_Session_init"}}},
                                      {kLibraries, {.soname = "libnl-3.so.200"}},
                                      {kLibraries, {.soname = "libgfortran.so.5"}}},
                        .files = {},
                        .environment = {}};
  site.start("MPICH on Ubuntu 24.04", mpich_image,
             {"--mpi=cray_shasta --container-mpi=host",
              "host",
              "cray_shasta",
              {{"PALS_SPOOL_DIR", "/var/spool/slurmd/mpi_cray_shasta/17.0"}}});
  site.start("MPICH on Ubuntu 24.04", mpich_image,
             {"--mpi=cray_shasta, the image's MPI",
              "",
              "cray_shasta",
              {{"PALS_SPOOL_DIR", "/var/spool/slurmd/mpi_cray_shasta/17.0"}}});
  site.start("NGC PyTorch", ngc_image(), kNcclStep);
  site.start("Debian 11 with NCCL", old_image(), kNcclStep);
  put_example(site.node, "aws-ofi-nccl.yaml", "/etc/cdi/aws-ofi-nccl.yaml");
  site.library("/opt/site/aws-ofi-nccl/cuda13/lib/libnccl-net-ofi.so",
               needing("libnccl-net-ofi.so", "2.34", {"libfabric.so.1"}));
  site.start("NGC PyTorch", ngc_image(),
             {"--container-device=site.example/aws-ofi-nccl=cuda13",
              "",
              "none",
              {},
              {"site.example/aws-ofi-nccl=cuda13"}});
}

TEST_CASE("site_file_aws_on_fake_efa_node") {
  SiteOnNode site("aws-efa");
  site.node.add_adapter("rdmap16s27", "efa", "0000:10:1b.0", 0);
  MadeElf verbs = needing("libibverbs.so.1", "2.34", {"libnl-3.so.200", "libnl-route-3.so.200"});
  verbs.version_definitions = {"IBVERBS_1.1", "IBVERBS_1.14", "IBVERBS_PRIVATE_59"};
  site.library("/usr/lib64/libibverbs.so.1", verbs);
  MadeElf provider = needing("libefa.so.1", "2.34", {"libibverbs.so.1"});
  provider.version_needs["libibverbs.so.1"] = {"IBVERBS_PRIVATE_59"};
  site.library("/usr/lib64/libibverbs/libefa-rdmav59.so", provider);
  site.library("/usr/lib64/libefa.so.1", provider);
  site.library("/usr/lib64/librdmacm.so.1", needing("librdmacm.so.1", "2.34", {"libibverbs.so.1"}));
  site.library("/opt/amazon/efa/lib64/libfabric.so.1",
               needing("libfabric.so.1", "2.34", {"libefa.so.1", "libibverbs.so.1"}));
  for (const char* name : {"libnccl-net-ofi.so", "libnccl-tuner-ofi.so"})
    site.library(std::string("/opt/amazon/ofi-nccl/lib64/") + name,
                 needing(name, "2.34", {"libfabric.so.1", "libhwloc.so.15"}));
  for (const char* name : {"libnl-3.so.200", "libnl-route-3.so.200", "libhwloc.so.15"})
    site.library(std::string("/usr/lib64/") + name, needing(name, "2.34"));

  site.start("NGC PyTorch", ngc_image(), kNcclStep);
  FakeImage of_aws = ngc_image();
  of_aws.libraries.push_back({"/opt/amazon/efa/lib", {.soname = "libfabric.so.1"}});
  of_aws.libraries.push_back({"/opt/amazon/ofi-nccl/lib", {.soname = "libnccl-net.so"}});
  of_aws.environment.back() = "LD_LIBRARY_PATH=/opt/amazon/efa/lib:/opt/amazon/ofi-nccl/lib";
  site.start("AWS's own", of_aws, kNcclStep);
  site.start("Debian 11 with NCCL", old_image(), kNcclStep);
}

TEST_CASE("site_file_omni_path_on_fake_hfi1_node") {
  SiteOnNode site("omni-path");
  site.node.add_adapter("hfi1_0", "hfi1", "0000:5e:00.0", 0);
  site.node.write("/dev/hfi1_0");
  site.library("/usr/lib64/libpsm2.so.2", needing("libpsm2.so.2", "2.34", {"libnuma.so.1"}));
  site.library("/usr/lib64/libfabric.so.1",
               needing("libfabric.so.1", "2.34",
                       {"libpsm2.so.2", "libatomic.so.1", "librdmacm.so.1", "libibverbs.so.1"}));
  for (const char* name :
       {"libnuma.so.1", "libatomic.so.1", "libnl-3.so.200", "libnl-route-3.so.200"})
    site.library(std::string("/usr/lib64/") + name, needing(name, "2.34"));
  site.library("/usr/lib64/libibverbs.so.1",
               needing("libibverbs.so.1", "2.34", {"libnl-3.so.200", "libnl-route-3.so.200"}));
  site.library("/usr/lib64/librdmacm.so.1", needing("librdmacm.so.1", "2.34", {"libibverbs.so.1"}));

  FakeImage open_mpi{.glibc = "2.36",
                     .libraries = {{kLibraries, {.soname = "libmpi.so.40"}}},
                     .files = {},
                     .environment = {}};
  const FakeStep pmix{"--mpi=pmix", "", "pmix", {{"PMIX_NAMESPACE", "slurm.pmix.17.0"}}};
  site.start("Open MPI on Debian 12", open_mpi, pmix);
  open_mpi.libraries.push_back({kLibraries, {.soname = "libnuma.so.1"}});
  open_mpi.libraries.push_back(
      {kLibraries,
       {.soname = "libfabric.so.1", .version_definitions = {"FABRIC_1.0", "FABRIC_1.8"}}});
  site.start("Open MPI and libfabric on Debian 12", open_mpi, pmix);
  site.start("Debian 11 with NCCL", old_image(), pmix);
}

TEST_CASE("site_file_superpod_on_fake_infiniband_node") {
  SiteOnNode site("superpod");
  for (int i = 0; i < 12; ++i)
    site.node.add_adapter("mlx5_" + std::to_string(i), "mlx5_core",
                          "0000:" + std::to_string(10 + i) + ":00.0", i);
  site.node.write("/etc/nccl.conf", "NCCL_IB_SL=1\nNCCL_TOPO_FILE=/etc/nccl/topo.xml\n");
  site.node.write("/etc/nccl/topo.xml");
  const FakeStep step{"--mpi=pmix --network=sharp, hpcx loaded",
                      "",
                      "pmix",
                      {{"PMIX_NAMESPACE", "slurm.pmix.17.0"},
                       {"SLURM_NETWORK", "sharp"},
                       {"OPAL_PREFIX", "/opt/node/hpcx"},
                       {"PMIX_INSTALL_PREFIX", "/opt/node/hpcx"},
                       {"UCX_MODULE_DIR", "/opt/node/ucx"}}};
  site.start("NGC PyTorch", ngc_image(), step);
  site.start("Debian 11 with NCCL", old_image(), kNcclStep);
}
