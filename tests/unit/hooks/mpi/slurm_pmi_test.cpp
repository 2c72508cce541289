// 50-slurm-pmi: which directories, refusals and variables come of the job's variables. The node is a directory.

#include <fcntl.h>

#include <filesystem>
#include <fstream>

#include "unit/catch.hpp"
#include "hooks/step/slurm_conf.hpp"
#include "hooks/mpi/slurm_pmi.hpp"

using namespace spc;
namespace fs = std::filesystem;

namespace {

/// A node whose files are below a directory of its own, and a step of two tasks on it.
struct Node {
  fs::path root;
  HookContext context;

  Node() {
    std::string name = fs::temp_directory_path() / "spc-pmi-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root = name;
    context.host_root = root;
    context.uid = 2001;
    context.job = {{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_MPI_TYPE", "none"}};
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
  /// With the node's files as the image's.
  [[nodiscard]] Edits task() {
    context.open_in_image = [this](const char* path, int flags) {
      return UniqueFd(::open((root.string() + path).c_str(), flags | O_CLOEXEC));
    };
    auto edits = slurm_pmi_hook.task(context);
    REQUIRE(edits);
    return *std::move(edits);
  }
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("Slurm's files: keys in any case, the last one counts, comments do not") {
  CHECK(slurm_setting("TmpFS=/a\ntmpfs=/b # TmpFS=/c\n", "TmpFS") == "/b");
  CHECK(slurm_setting("NodeName=n1 CPUs=4 TmpFS=/d State=UP\n", "tmpfs") == "/d");
  CHECK(slurm_setting("#TmpFS=/a\nMyTmpFS=/b\nTmpFS\n", "TmpFS").empty());
  CHECK(slurm_setting("", "TmpFS").empty());
}

TEST_CASE("a step without MPI gets nothing") {
  Node node;
  CHECK(node.prepare() == Edits());
  CHECK(node.task() == Edits());
}

TEST_CASE("the directories of the PMIx server and of its clients") {
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

TEST_CASE("SLURM_CONF of the job says where Slurm's files are; one that is no path says nothing") {
  Node node;
  node.use_pmix();
  node.write("opt/slurm/etc/slurm.conf", "TmpFS=/fast\n");
  node.context.job["SLURM_CONF"] = "/opt/slurm/etc/slurm.conf";
  CHECK(node.mounted()[1] == "/fast/spmix_appdir_2001_17.3");
  node.context.job["SLURM_CONF"] = "slurm.conf";
  CHECK(node.mounted()[1] == "/tmp/spmix_appdir_2001_17.3");
}

TEST_CASE("mpirun's server has a directory, and no client directory of Slurm's") {
  Node node;
  node.context.job = {{"PMIX_NAMESPACE", "prte-host-12@1"}, {"PMIX_SERVER_TMPDIR", "/tmp/ompi.host.2001/pid.12"}};
  CHECK(node.mounted() == Names{"/tmp/ompi.host.2001/pid.12"});
}

TEST_CASE("PALS of cray_shasta has a directory") {
  Node node;
  node.context.job["SLURM_MPI_TYPE"] = "cray_shasta";
  node.context.job["PALS_SPOOL_DIR"] = "/var/spool/slurmd/mpi_cray_shasta/17.3";
  CHECK(node.mounted() == Names{"/var/spool/slurmd/mpi_cray_shasta/17.3"});
}

TEST_CASE("what is known to fail is refused if it was asked for, and warned of if the site gives it to every step") {
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

TEST_CASE("ids that differ inside: munge or a server without checks, or a refusal") {
  Node node;
  node.use_pmix();
  node.context.remap_root = true;
  CHECK(node.prepare().refusal.find("PMIX_MCA_psec=none") != std::string::npos);
  node.context.job["PMIX_SECURITY_MODE"] = "none";
  CHECK(node.prepare().refusal.empty());
  node.context.job["PMIX_SECURITY_MODE"] = "munge,native";
  node.write("run/munge/munge.socket.2", "");
  auto edits = node.prepare();
  CHECK(edits.refusal.empty());
  CHECK(edits.mounts.back().source == "/run/munge");

  // Whether the image has munge is known only when it is there.
  (void)node.task();
  REQUIRE(slurm_pmi_hook.create(node.context, edits));
  CHECK(edits.refusal.find("libmunge.so.2") != std::string::npos);
  edits.refusal.clear();
  node.write("etc/ld.so.cache", std::string("/lib/x86_64-linux-gnu/libmunge.so.2\0", 36));
  REQUIRE(slurm_pmi_hook.create(node.context, edits));
  CHECK(edits.refusal.empty());
}

TEST_CASE("containers of their own may not have memory of their own") {
  Node node;
  node.use_pmix();
  node.context.own_container = true;
  CHECK(node.prepare().refusal.empty());
  node.context.own_ipc = true;
  CHECK(node.prepare().refusal.find("=ipc") != std::string::npos);
  node.context.job["SLURM_STEP_NUM_NODES"] = "2";
  CHECK(node.prepare().refusal.empty());
}

TEST_CASE("a task has its own variables, whatever an image was saved with") {
  Node node;
  node.context.job["PMI_RANK"] = "1";
  node.context.job["PMI_FD"] = "11";
  node.context.environment = {{"PMI_RANK", "0"}, {"PMI_FD", "11"}, {"PMIX_RANK", "5"}, {"PMIX_MCA_x", "1"}, {"OTHER", "x"}};
  const Edits edits = node.task();
  CHECK(edits.environment.set == std::map<std::string, std::string>{{"PMI_RANK", "1"}});
  CHECK(edits.environment.unset == std::set<std::string>{"PMIX_RANK"});
}

TEST_CASE("tuning and places of libraries are not a task's: they stay as site, job and image have them") {
  Node node;
  node.context.environment = {{"FI_CXI_DEFAULT_CQ_SIZE", "131072"}, {"PMI_MMAP_SYNC_WAIT_TIME", "300"}, {"PMI_DEBUG", "1"},
                              {"PMIX_INSTALL_PREFIX", "/opt/hpcx/ompi"}, {"PMIX_PREFIX", "/opt/pmix"}, {"PMIX_PKGLIBDIR", "/opt/pmix/lib"},
                              {"FI_CXI_COLL_JOB_ID", "7"}, {"FI_CXI_HWCOLL_MIN_NODES", "4"}, {"PMIX_SERVER_TMPDIR", "/old"}};
  node.context.job["PMIX_INSTALL_PREFIX"] = "/usr/mpi/hpcx";  // by a module on the login node
  const Edits edits = node.task();
  CHECK(edits.environment.set.empty());
  CHECK(edits.environment.unset == std::set<std::string>{"FI_CXI_COLL_JOB_ID", "FI_CXI_HWCOLL_MIN_NODES", "PMIX_SERVER_TMPDIR"});
}

TEST_CASE("PMIx chooses its components itself, but for those that everyone has") {
  Node node;
  node.use_pmix();
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

TEST_CASE("where the server's directory is hidden, its data come by another way") {
  Node node;
  node.use_pmix();
  CHECK(node.task().environment.defaults == std::map<std::string, std::string>{{"PMIX_MCA_gds", "hash"}});
}

TEST_CASE("an image whose MPI does not understand the --mpi that was asked for") {
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
