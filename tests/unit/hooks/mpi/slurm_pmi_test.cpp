// 50-slurm-pmi: directories, refusals and variables that follow from the job's variables. The node
// is a directory.

#include <fcntl.h>

#include <filesystem>
#include <fstream>

#include "hooks/mpi/mpi_hooks.hpp"
#include "hooks/step/allocation.hpp"
#include "unit/has.hpp"
#include "unit/hooks/elf_maker.hpp"

using namespace spc;
namespace fs = std::filesystem;

namespace {

/// A node whose files are in a temporary directory, and a step of two tasks on it.
struct Node {
  fs::path root;
  HookContext context;

  Node() {
    std::string name = fs::temp_directory_path() / "spc-pmi-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root = name;
    context.host_root = root;
    context.uid = 2001;
    context.job = {
        {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_MPI_TYPE", "none"}};
  }
  ~Node() { fs::remove_all(root); }
  Node(const Node&) = delete;

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  }
  void use_pmix() {
    context.job["SLURM_MPI_TYPE"] = "pmix";
    context.job["PMIX_NAMESPACE"] = "slurm.pmix.17.3";
    context.job["PMIX_SERVER_TMPDIR"] = "/var/spool/slurmd/pmix.17.3/";
    context.job["PMIX_SECURITY_MODE"] = "munge,native";
  }
  [[nodiscard]] Edits prepare() const {
    auto edits = slurm_pmi_hook.prepare(context);
    REQUIRE(edits);
    return *std::move(edits);
  }
  [[nodiscard]] std::vector<std::string> mounted() const {
    std::vector<std::string> names;
    for (const MountEdit& mount : prepare().mounts) {
      CHECK(mount.source == mount.target);
      CHECK(mount.optional);
      names.push_back(mount.source);
    }
    return names;
  }
  void look_into(const Node& image) {
    context.open_in_image = [place = image.root.string()](const char* path, int flags) {
      return UniqueFd(::open((place + path).c_str(), flags | O_CLOEXEC));
    };
  }
  /// Returns the edits for an image with the node's files.
  [[nodiscard]] Edits create() {
    look_into(*this);
    Edits edits;
    REQUIRE(slurm_pmi_hook.create(context, edits));
    return edits;
  }
  [[nodiscard]] Edits task() {
    look_into(*this);
    auto edits = slurm_pmi_hook.task(context);
    REQUIRE(edits);
    return *std::move(edits);
  }
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("slurm_conf_keys_ignore_case_and_comments") {
  CHECK(slurm_setting("TmpFS=/a\ntmpfs=/b # TmpFS=/c\n", "TmpFS") == "/b");
  CHECK(slurm_setting("NodeName=n1 CPUs=4 TmpFS=/d State=UP\n", "tmpfs") == "/d");
  CHECK(slurm_setting("#TmpFS=/a\nMyTmpFS=/b\nTmpFS\n", "TmpFS").empty());
  CHECK(slurm_setting("", "TmpFS").empty());
}

TEST_CASE("pmi_step_without_mpi_gets_nothing") {
  Node node;
  CHECK(node.prepare() == Edits());
  CHECK(node.task() == Edits());
}

// outcome 217 accepted: the PMIx server's directory is absent or hidden
TEST_CASE("pmix_server_and_client_directories_are_mounted") {
  Node node;
  node.use_pmix();
  CHECK(node.mounted() == Names{"/var/spool/slurmd/pmix.17.3", "/tmp/spmix_appdir_2001_17.3"});
  node.write("etc/slurm/slurm.conf", "TmpFS=/scratch/%n/\n");
  node.context.job["SLURMD_NODENAME"] = "n7";
  CHECK(node.mounted()[1] == "/scratch/n7/spmix_appdir_2001_17.3");
  node.write("etc/slurm/mpi.conf", "PMIxCliTmpDirBase=/run/pmix\n");
  CHECK(node.mounted()[1] == "/run/pmix/spmix_appdir_2001_17.3");
  node.context.job["SLURM_PMIX_TMPDIR"] = "/mine";
  CHECK(node.mounted()[1] == "/mine/spmix_appdir_2001_17.3");
}

TEST_CASE("slurm_conf_variable_of_job_locates_the_files") {
  Node node;
  node.use_pmix();
  node.write("opt/slurm/etc/slurm.conf", "TmpFS=/fast\n");
  node.context.job["SLURM_CONF"] = "/opt/slurm/etc/slurm.conf";
  CHECK(node.mounted()[1] == "/fast/spmix_appdir_2001_17.3");
  node.context.job["SLURM_CONF"] = "slurm.conf";
  CHECK(node.mounted()[1] == "/tmp/spmix_appdir_2001_17.3");
}

TEST_CASE("pmix_of_mpirun_mounts_only_its_server_directory") {
  Node node;
  node.context.job = {{"PMIX_NAMESPACE", "prte-host-12@1"},
                      {"PMIX_SERVER_TMPDIR", "/tmp/ompi.host.2001/pid.12"}};
  CHECK(node.mounted() == Names{"/tmp/ompi.host.2001/pid.12"});
}

TEST_CASE("pals_directory_is_mounted_for_cray_shasta") {
  Node node;
  node.context.job["SLURM_MPI_TYPE"] = "cray_shasta";
  node.context.job["PALS_SPOOL_DIR"] = "/var/spool/slurmd/mpi_cray_shasta/17.3";
  CHECK(node.mounted() == Names{"/var/spool/slurmd/mpi_cray_shasta/17.3"});
}

TEST_CASE("pmi_unsupported_options_are_refused_or_warned") {
  Node node;
  node.use_pmix();
  node.context.own_net = true;
  CHECK(node.prepare().refusal.find("--container-unshare=net") != std::string::npos);
  node.write("etc/slurm/slurm.conf", "MpiDefault=pmix\n");
  CHECK(node.prepare().refusal.empty());
  CHECK(node.prepare().warnings.size() == 1);
  node.context.job["SLURM_STEP_NUM_TASKS"] = "1";
  CHECK(node.prepare().warnings.empty());
}

TEST_CASE("pmi_with_other_ids_inside_is_refused_or_warned") {
  Node node;
  node.use_pmix();
  node.context.remap_root = true;
  const auto warnings = [&](Edits edits) {
    (void)node.task();
    REQUIRE(slurm_pmi_hook.create(node.context, edits));
    CHECK(edits.refusal.empty());
    return edits.warnings.empty() ? std::string() : edits.warnings.front();
  };
  CHECK(warnings(node.prepare()).empty());  // no MPI in the image
  const std::string pmix("/lib/x86_64-linux-gnu/libpmix.so.2\0", 35);
  node.write("etc/ld.so.cache", pmix);
  CHECK(warnings(node.prepare()).find("PMIX_MCA_psec=none") != std::string::npos);
  node.context.job["PMIX_SECURITY_MODE"] = "none";
  CHECK(warnings(node.prepare()).empty());
  node.context.job["PMIX_SECURITY_MODE"] = "munge,native";
  node.write("run/munge/munge.socket.2", "");
  auto edits = node.prepare();
  CHECK(edits.refusal.empty());
  CHECK(edits.mounts.back().source == "/run/munge");

  // Whether the image has munge is known only after it is mounted.
  CHECK(warnings(edits).find("libmunge.so.2") != std::string::npos);
  node.write("etc/ld.so.cache", pmix + std::string("/lib/x86_64-linux-gnu/libmunge.so.2\0", 36));
  CHECK(warnings(edits).empty());
}

TEST_CASE("pmi_with_own_ipc_namespace_is_refused") {
  Node node;
  node.use_pmix();
  node.context.own_container = true;
  CHECK(node.prepare().refusal.empty());
  node.context.own_ipc = true;
  CHECK(node.prepare().refusal.find("=ipc") != std::string::npos);
  node.context.job["SLURM_STEP_NUM_NODES"] = "2";
  CHECK(node.prepare().refusal.empty());
}

TEST_CASE("pmi_task_variables_replace_saved_ones") {
  Node node;
  node.context.job["PMI_RANK"] = "1";
  node.context.job["PMI_FD"] = "11";
  node.context.environment = {
      {"PMI_RANK", "0"}, {"PMI_FD", "11"}, {"PMIX_RANK", "5"}, {"PMIX_MCA_x", "1"}, {"OTHER", "x"}};
  const Edits edits = node.task();
  CHECK(edits.environment.set == std::map<std::string, std::string>{{"PMI_RANK", "1"}});
  CHECK(edits.environment.unset == std::set<std::string>{"PMIX_RANK"});
}

TEST_CASE("pmi_tuning_variables_are_kept") {
  Node node;
  node.context.environment = {{"FI_CXI_DEFAULT_CQ_SIZE", "131072"},
                              {"PMI_MMAP_SYNC_WAIT_TIME", "300"},
                              {"PMI_DEBUG", "1"},
                              {"PMIX_INSTALL_PREFIX", "/opt/hpcx/ompi"},
                              {"PMIX_PREFIX", "/opt/pmix"},
                              {"PMIX_PKGLIBDIR", "/opt/pmix/lib"},
                              {"FI_CXI_COLL_JOB_ID", "7"},
                              {"FI_CXI_HWCOLL_MIN_NODES", "4"},
                              {"PMIX_SERVER_TMPDIR", "/old"}};
  node.context.job["PMIX_INSTALL_PREFIX"] = "/usr/mpi/hpcx";  // set by a module on the login node
  const Edits edits = node.task();
  CHECK(edits.environment.set.empty());
  CHECK(edits.environment.unset == std::set<std::string>{"FI_CXI_COLL_JOB_ID",
                                                         "FI_CXI_HWCOLL_MIN_NODES",
                                                         "PMIX_SERVER_TMPDIR"});
}

TEST_CASE("pmix_components_are_chosen_conservatively") {
  Node node;
  node.use_pmix();
  CHECK(!node.task().environment.defaults.contains("PMIX_MCA_psec"));  // munge may be missing
  node.context.job["PMIX_GDS_MODULE"] = "hash";
  node.context.job["PMIX_SECURITY_MODE"] = "native";
  CHECK(node.task().environment.defaults ==
        std::map<std::string, std::string>{{"PMIX_MCA_gds", "hash"}, {"PMIX_MCA_psec", "native"}});
  node.use_pmix();
  node.context.job.erase("PMIX_GDS_MODULE");
  fs::create_directories(node.root / "var/spool/slurmd/pmix.17.3");
  node.context.environment = {{"PMIX_MCA_psec", "munge,native"}, {"PMIX_MCA_gds", "hash"}};
  CHECK(node.task().environment.unset == std::set<std::string>{"PMIX_MCA_psec"});
  node.context.environment = {{"PMIX_MCA_psec", "none"}, {"PMIX_MCA_gds", "ds21,hash"}};
  CHECK(node.task().environment.unset == std::set<std::string>{"PMIX_MCA_gds"});
  node.context.environment = {{"PMIX_MCA_psec", "^munge"}, {"PMIX_MCA_gds", "^shmem2,ds21"}};
  CHECK(node.task().environment.unset.empty());
  node.context.environment = {{"PMIX_MCA_psec", "native"}, {"PMIX_MCA_gds", "ds21"}};
  node.context.image["PMIX_MCA_gds"] = "ds21";
  CHECK(node.task().environment.unset.empty());
}

TEST_CASE("pmix_with_hidden_server_directory_uses_hash_store") {
  Node node;
  node.use_pmix();
  CHECK(node.task().environment.defaults ==
        std::map<std::string, std::string>{{"PMIX_MCA_gds", "hash"}});
}

TEST_CASE("pmi_type_unsupported_by_image_mpi_warns") {
  Node node;
  (void)node.task();
  const auto warnings = [&](const char* type, const std::string& library) {
    node.context.job["SLURM_MPI_TYPE"] = type;
    node.write("etc/ld.so.cache", std::string(1, '\0') + library + '\0');
    Edits edits;
    REQUIRE(slurm_pmi_hook.create(node.context, edits));
    return edits.warnings.size() * 10 + edits.notes.size();
  };
  CHECK(warnings("pmi2", "libmpi.so.40") == 10);
  CHECK(warnings("pmi2", "libmpi.so.12") == 0);
  CHECK(warnings("pmix", "libmpich.so.12") == 10);
  CHECK(warnings("pmix", "libmpi.so.40") == 0);
  CHECK(warnings("none", "libmpi.so.40") == 1);
  CHECK(warnings("none", "libother.so.1") == 0);
}

TEST_CASE("mpi_module_paths_missing_in_container_are_unset") {
  Node node;
  node.context.job.insert({{"OPAL_PREFIX", "/opt/hpcx/ompi"},
                           {"PMIX_INSTALL_PREFIX", "/opt/pmix"},
                           {"UCX_MODULE_DIR", "/opt/ucx/lib/ucx"},
                           {"I_MPI_ROOT", "/opt/intel"}});
  node.context.environment = node.context.job;
  node.context.environment["OPAL_PREFIX"] = "/opt/image";
  node.context.image = {{"OPAL_PREFIX", "/opt/image"}, {"I_MPI_ROOT", "/opt/intel"}};
  node.write("opt/ucx/lib/ucx/libuct_ib.so", "");
  const Edits edits = node.task();
  CHECK(edits.environment.unset == std::set<std::string>{"PMIX_INSTALL_PREFIX"});
  CHECK(
      edits.notes ==
      Names{
          "of an MPI of the host that the container does not have: PMIX_INSTALL_PREFIX is unset"});
  node.context.mpi = "host";
  CHECK(node.task().environment.unset.empty());
}

TEST_CASE("pmix_directory_from_mpirun_is_no_place_of_open_mpi") {
  Node node;
  const std::string name = "OMPI_MCA_mca_base_component_path";
  for (const char* place : {"/usr/lib/pmix2/lib/pmix", "/opt/openmpi/lib/openmpi"})
    node.write(std::string(place).substr(1) + "/mca_any.so", "");
  node.context.job[name] = "/usr/lib/pmix2/lib/pmix";
  node.context.environment = node.context.job;
  CHECK(node.task().environment.unset == std::set<std::string>{name});
  node.context.job[name] = "/opt/openmpi/lib/openmpi";
  node.context.environment = node.context.job;
  CHECK(node.task().environment.unset.empty());
}

TEST_CASE("cray_pals_with_image_without_cray_pmi_warns") {
  Node node;
  node.context.job["SLURM_MPI_TYPE"] = "cray_shasta";
  node.context.job["PALS_SPOOL_DIR"] = "/var/spool/slurmd/mpi_cray_shasta/17.3";
  node.write("usr/lib/libmpich.so.12", "");
  CHECK(has(node.create().warnings,
            "--mpi=cray_shasta and an image without Cray's PMI: ranks will not find each other"));
  node.context.mpi = "host";
  CHECK(node.create().warnings.empty());
  node.context.mpi.clear();
  node.write("usr/lib/libpals.so.0", "");
  CHECK(node.create().warnings.empty());
}

TEST_CASE("open_mpi_5_without_pmix_warns") {
  Node node;
  node.context.job["SLURM_MPI_TYPE"] = "pmi2";
  for (const char* name : {"libmpi.so.40", "libpmi2.so.0"})
    node.write(std::string("usr/lib/") + name, "");
  CHECK(node.create().warnings.empty());
  node.write("usr/lib/libopen-pal.so.80", "");
  CHECK(node.create().warnings == Names{"the image has Open MPI 5, which has PMIx only: --mpi=pmi2 "
                                        "is not supported (hint: --mpi=pmix)"});
}

TEST_CASE("open_mpi_in_vendor_directories_is_found") {
  for (const char* directory :
       {"opt/hpcx/ompi/lib", "opt/amazon/openmpi/lib64", "opt/amazon/openmpi5/lib64",
        "opt/openmpi/lib", "usr/lib/x86_64-linux-gnu/openmpi/lib",
        "usr/lib64/mpi/gcc/openmpi4/lib64", "opt/conda/lib", "opt/mine/lib"}) {
    Node node;
    node.context.image["LD_LIBRARY_PATH"] = "/nowhere:/opt/mine/lib";
    CHECK(node.create().notes.empty());
    node.write(std::string(directory) + "/libmpi.so.40", "");
    CHECK(node.create().notes == Names{"the image has Open MPI: use --mpi=pmix to connect ranks"});
  }
  Node node;
  node.write("opt/mpich/lib/libmpi.so.12", "");
  CHECK(node.create().notes ==
        Names{"the image has MPICH or a derivative: use --mpi=pmi2 to connect ranks"});
}

TEST_CASE("intel_mpi_gets_libpmi2_of_node") {
  Node node;
  Node image;
  node.context.job["SLURM_MPI_TYPE"] = "pmi2";
  node.context.image["I_MPI_ROOT"] = "/opt/intel/oneapi/mpi/latest";
  const auto start = [&] {
    Edits edits = node.prepare();
    node.look_into(image);
    REQUIRE(slurm_pmi_hook.create(node.context, edits));
    return edits;
  };
  CHECK(has(start().warnings,
            "the image has Intel MPI, which finds Slurm by libpmi2.so.0: neither the image nor the "
            "node has it"));
  const MadeElf library{.soname = "libpmi2.so.0",
                        .needed = {"libc.so.6"},
                        .version_needs = {{"libc.so.6", {"GLIBC_2.34"}}}};
  node.write("usr/lib64/libpmi2.so.0", library.bytes());
  image.write(
      "usr/lib/libc.so.6",
      MadeElf{.soname = "libc.so.6", .version_definitions = {"GLIBC_2.17", "GLIBC_2.31"}}.bytes());
  CHECK(has(start().warnings,
            "Intel MPI cannot find Slurm: the node's libpmi2.so.0 needs GLIBC_2.34, but the "
            "image's C library goes up to 2.31"));
  image.write(
      "usr/lib/libc.so.6",
      MadeElf{.soname = "libc.so.6", .version_definitions = {"GLIBC_2.17", "GLIBC_2.34"}}.bytes());
  const Edits edits = start();
  CHECK(edits.warnings.empty());
  REQUIRE(edits.libraries.size() == 1);
  CHECK_FALSE(edits.libraries[0].before);
  CHECK(edits.libraries[0].path == "/usr/lib/spank-container/pmi/libpmi2.so.0");
  image.write("usr/lib/spank-container/pmi/libpmi2.so.0", library.bytes());  // as mounted
  node.context.job["I_MPI_PMI_LIBRARY"] = node.context.environment["I_MPI_PMI_LIBRARY"] =
      "/usr/lib64/libpmi2.so";
  const auto task = slurm_pmi_hook.task(node.context);
  CHECK(task->environment.unset.contains("I_MPI_PMI_LIBRARY"));
  CHECK(task->environment.defaults.at("I_MPI_PMI_LIBRARY") ==
        "/usr/lib/spank-container/pmi/libpmi2.so.0");

  node.context.image.clear();  // of another MPI: no edits
  const Edits other = start();
  CHECK(other.libraries.empty());
  REQUIRE(other.mounts.size() == 1);
  CHECK(other.mounts[0].target.empty());
}

TEST_CASE("open_mpi_4_built_with_pmi2_gets_libpmi2_of_node") {
  Node node;
  Node image;
  node.context.job["SLURM_MPI_TYPE"] = "pmi2";
  node.write("usr/lib64/libpmi2.so.0",
             MadeElf{.soname = "libpmi2.so.0", .needed = {"libc.so.6"}}.bytes());
  image.write("usr/lib/libc.so.6", MadeElf{.soname = "libc.so.6"}.bytes());
  image.write("opt/hpcx/ompi/lib/libmpi.so.40", "");
  image.write("opt/hpcx/ompi/lib/openmpi/mca_pml_ob1.so", "");
  const auto start = [&] {
    Edits edits = node.prepare();
    node.look_into(image);
    REQUIRE(slurm_pmi_hook.create(node.context, edits));
    return edits;
  };
  Edits edits = start();
  CHECK(edits.libraries.empty());
  CHECK(
      edits.warnings ==
      Names{
          "the image has Open MPI without PMI-2: --mpi=pmi2 is not supported (hint: --mpi=pmix)"});
  image.write("usr/lib/libpmi2.so.0", "");  // of another program
  CHECK(start().warnings.size() == 1);
  fs::remove(image.root / "usr/lib/libpmi2.so.0");

  image.write("opt/hpcx/ompi/lib/openmpi/mca_pmix_s2.so", "");
  edits = start();
  CHECK(edits.warnings.empty());
  REQUIRE(edits.libraries.size() == 1);
  CHECK(edits.libraries[0].soname == "libpmi2.so.0");
  CHECK(edits.notes == Names{"the node's /usr/lib64/libpmi2.so.0 is added for Open MPI"});
  image.write("usr/lib/spank-container/pmi/libpmi2.so.0", "");  // as mounted
  CHECK(slurm_pmi_hook.task(node.context)->environment.defaults.empty());
  fs::remove(node.root / "usr/lib64/libpmi2.so.0");
  CHECK(has(start().warnings,
            "the image has Open MPI, which finds Slurm by libpmi2.so.0: neither the image nor the "
            "node has it"));
  image.write("usr/lib/libopen-pal.so.80", "");
  CHECK(start().warnings == Names{"the image has Open MPI 5, which has PMIx only: --mpi=pmi2 is "
                                  "not supported (hint: --mpi=pmix)"});
}

TEST_CASE("mpi_linked_with_libpmi2_gets_libpmi2_of_node") {
  Node node;
  Node image;
  node.context.job["SLURM_MPI_TYPE"] = "pmi2";
  node.write(
      "usr/lib64/libpmi2.so.0",
      MadeElf{.soname = "libpmi2.so.0", .needed = {"libc.so.6"}, .machine = kOwnMachine}.bytes());
  image.write("usr/lib/libc.so.6", MadeElf{.soname = "libc.so.6", .machine = kOwnMachine}.bytes());
  const auto start = [&] {
    Edits edits = node.prepare();
    node.look_into(image);
    REQUIRE(slurm_pmi_hook.create(node.context, edits));
    return edits;
  };
  image.write(
      "usr/lib/libmpi.so.12",
      MadeElf{.soname = "libmpi.so.12", .needed = {"libc.so.6"}, .machine = kOwnMachine}.bytes());
  CHECK(start().libraries.empty());
  image.write("usr/lib/libmpi.so.12", MadeElf{.soname = "libmpi.so.12",
                                              .needed = {"libpmi2.so.0", "libc.so.6"},
                                              .machine = kOwnMachine}
                                          .bytes());
  const Edits edits = start();
  REQUIRE(edits.libraries.size() == 1);
  CHECK(edits.libraries[0].soname == "libpmi2.so.0");
  CHECK(edits.notes == Names{"the node's /usr/lib64/libpmi2.so.0 is added for MVAPICH2 or MPICH"});
  image.write("usr/lib/libpmi2.so.0", "");  // its own
  CHECK(start().libraries.empty());
}

TEST_CASE("slurm_conf_includes_are_followed") {
  Node node;
  node.write("etc/slurm/slurm.conf",
             "ClusterName=a\nInclude mpi-default.conf\ninclude /etc/site/more.conf\n");
  node.write("etc/slurm/mpi-default.conf", "MpiDefault=pmix\n");
  // A circular include.
  node.write("etc/site/more.conf", "TmpFS=/fast\nInclude /etc/site/more.conf\n");
  const std::string text = slurm_file(node.context, "slurm.conf");
  CHECK(slurm_setting(text, "MpiDefault") == "pmix");
  CHECK(slurm_setting(text, "TmpFS") == "/fast");
}
