#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "doctor/diagnose.hpp"
#include "doctor/preflight.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
using Verdict = Finding::Verdict;

namespace {

constexpr char kSpecification[] =
    R"({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", )"
    R"("containerEdits": {"mounts": [
       {"hostPath": "/usr/lib64/libcuda.so.570.86.10",
       "containerPath": "/usr/lib64/libcuda.so.570.86.10", "options": ["ro"]}]}}]})";

/// A fake node: a directory for its files, and values for properties that are not files.
class FakeNode {
 public:
  FakeNode() {
    char name[] = "/tmp/spc-preflight-XXXXXX";
    around.host_root = ::mkdtemp(name);
    around.locked_memory = around.open_files = {UINT64_MAX, UINT64_MAX};
    around.shared_memory = Surroundings::Space{std::uint64_t{8} << 30, std::uint64_t{7} << 30};
    around.interfaces = {{"lo", true}, {"eth0", false}};
    around.environment = {{"SLURM_JOB_ID", "7"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "0"},
                          {"SLURM_MPI_TYPE", "pmix"},
                          {"PMIX_NAMESPACE", "slurm.pmix.7.0"},
                          {"PMIX_RANK", "0"}};
    around.may_open = [this](const std::string& node) {
      return denied.count(node) != 0 ? EPERM : around.exists(node) ? 0 : ENOENT;
    };
    around.listen_on = [](std::uint16_t) { return 0; };
    file("/proc/sys/user/max_user_namespaces", "65536\n");
  }
  ~FakeNode() { std::filesystem::remove_all(around.host_root); }
  FakeNode(const FakeNode&) = delete;
  FakeNode& operator=(const FakeNode&) = delete;

  void file(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(
        std::filesystem::path(around.host_root + path).parent_path());
    std::ofstream(around.host_root + path) << text;
  }
  /// Installs two GPUs with a complete driver.
  void gpus() {
    around.driver.version = around.driver.library_version = "570.86.10";
    around.driver.library_directories = {"/usr/lib/x86_64-linux-gnu"};
    for (const char* node : {"/dev/nvidia0", "/dev/nvidia1"}) {
      NvidiaGpu gpu;
      gpu.node = node;
      around.driver.gpus.push_back(gpu);
      file(node, "");
    }
    file("/dev/nvidiactl", "");
    file("/dev/nvidia-uvm", "");
  }
  [[nodiscard]] Finding check(const std::string& what) const {
    for (Finding& finding : preflight(around)) {
      if (finding.what == what) return finding;
    }
    return {"no such check", Verdict::failed, what, ""};
  }

  Surroundings around;
  std::set<std::string> denied;
};

void expect(const Finding& finding, Verdict verdict, const std::string& detail) {
  INFO(finding.what << ": " << finding.detail << " | " << finding.cure);
  CHECK(static_cast<int>(finding.verdict) == static_cast<int>(verdict));
  CHECK(finding.detail.find(detail) != std::string::npos);
  CHECK(finding.cure.empty() == (verdict == Verdict::ok));
}

}  // namespace

TEST_CASE("preflight_fake_node_without_gpu_and_fabric_passes") {
  const FakeNode node;
  for (const Finding& finding : preflight(node.around)) expect(finding, Verdict::ok, "");
}

TEST_CASE("preflight_fake_node_with_gpus_and_infiniband_passes") {
  FakeNode node;
  node.gpus();
  node.around.environment["SLURM_STEP_GPUS"] = "0,1";
  node.around.driver.nvswitch_nodes = {"/dev/nvidia-nvswitchctl"};
  node.around.driver.imex_channels = {"/dev/nvidia-caps-imex-channels/channel0"};
  node.file("/dev/nvidia-caps-imex-channels/channel0", "");
  node.file("/run/nvidia-fabricmanager/socket", "");
  node.file("/sys/class/infiniband/mlx5_0/x", "");
  node.file("/dev/infiniband/uverbs0", "");
  node.file("/usr/lib64/libibverbs.so.1", "");
  node.file("/etc/cdi/nvidia.json", kSpecification);
  node.file("/usr/lib64/libcuda.so.570.86.10", "");
  for (const Finding& finding : preflight(node.around)) expect(finding, Verdict::ok, "");
  expect(node.check("GPU nodes"), Verdict::ok, "/dev/nvidia0 /dev/nvidia1 accessible");
  expect(node.check("driver"), Verdict::ok, "570.86.10, libraries in /usr/lib/x86_64-linux-gnu");
  expect(node.check("InfiniBand"), Verdict::ok, "mlx5_0: uverbs0");
}

TEST_CASE("preflight_checks_have_unique_names_known_to_failures") {
  std::set<std::string> names;
  for (const Finding& finding : preflight(FakeNode().around))
    CHECK(names.insert(finding.what).second);
  for (const Failure* failure : known_failures()) {
    for (const char* check : failure->checks) {
      INFO(std::string(failure->id) << ": " << check);
      CHECK(names.count(check) == 1);
    }
  }
}

TEST_CASE("preflight_outside_job_or_step_warns") {
  FakeNode node;
  node.around.environment.erase("SLURM_STEP_ID");
  expect(node.check("job"), Verdict::warning, "not in a step");
  node.around.environment.clear();
  expect(node.check("job"), Verdict::warning, "none");
}

TEST_CASE("preflight_fake_gpu_access_denied_is_reported") {
  FakeNode node;
  node.gpus();
  node.denied = {"/dev/nvidia1"};
  expect(node.check("GPU nodes"), Verdict::ok,
         "/dev/nvidia0 accessible; not /dev/nvidia1 (Operation not permitted)");
  node.around.environment["SLURM_STEP_GPUS"] = "0-1";
  expect(node.check("GPUs of the step"), Verdict::failed, "only 1");
  node.denied = {"/dev/nvidia0", "/dev/nvidia1"};
  expect(node.check("GPU nodes"), Verdict::failed, "not /dev/nvidia0 (Operation not permitted)");
  node.around.environment.erase("SLURM_STEP_GPUS");
  expect(node.check("GPU nodes"), Verdict::warning, "not /dev/nvidia0");
  node.denied = {"/dev/nvidiactl"};
  expect(node.check("GPU nodes"), Verdict::failed, "but not /dev/nvidiactl");
}

TEST_CASE("preflight_fake_gpus_without_driver_or_nodes_fail") {
  FakeNode node;
  node.around.environment["SLURM_JOB_GPUS"] = "0";
  expect(node.check("GPU nodes"), Verdict::failed, "not loaded");
  node.around.driver.version = "570.86.10";
  expect(node.check("GPU nodes"), Verdict::failed, "no /dev/nvidia0");
}

TEST_CASE("preflight_variables_that_hide_fake_gpus_warn") {
  FakeNode node;
  node.gpus();
  for (const char* none : {"", "-1", "NoDevFiles"}) {
    node.around.environment["CUDA_VISIBLE_DEVICES"] = none;
    expect(node.check("GPUs of the step"), Verdict::warning, "CUDA_VISIBLE_DEVICES=");
  }
  for (const char* none : {"", "void", "none"}) {
    node.around.environment["NVIDIA_VISIBLE_DEVICES"] = none;
    expect(node.check("NVIDIA_VISIBLE_DEVICES"), Verdict::warning, none);
  }
  node.around.environment["NVIDIA_VISIBLE_DEVICES"] = "all";
  node.around.environment["NVIDIA_DRIVER_CAPABILITIES"] = "utility";
  expect(node.check("NVIDIA_VISIBLE_DEVICES"), Verdict::warning, "utility");
  node.around.environment["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility";
  expect(node.check("NVIDIA_VISIBLE_DEVICES"), Verdict::ok, "all");
}

TEST_CASE("preflight_fake_driver_version_mismatch_fails") {
  FakeNode node;
  node.gpus();
  node.around.driver.library_version = "570.124.06";
  expect(node.check("driver"), Verdict::failed, "kernel module 570.86.10, libcuda is 570.124.06");
  node.around.driver.library_version.clear();
  expect(node.check("driver"), Verdict::failed, "libcuda.so.1 not found");
  node.denied = {"/dev/nvidia-uvm"};
  expect(node.check("nvidia-uvm"), Verdict::failed, "Operation not permitted");
  std::filesystem::remove(node.around.host_root + "/dev/nvidia-uvm");
  expect(node.check("nvidia-uvm"), Verdict::failed, "no /dev/nvidia-uvm");
  node.around.driver.nvswitch_nodes = {"/dev/nvidia-nvswitchctl"};
  expect(node.check("fabric manager"), Verdict::warning, "no fabric manager was found running");
  node.file("/run/nvidia-fabricmanager/nv-fabricmanager.pid", "");
  expect(node.check("fabric manager"), Verdict::ok, "nv-fabricmanager.pid");
  node.around.driver.imex_channels = {"/dev/nvidia-caps-imex-channels/channel0"};
  expect(node.check("IMEX channels"), Verdict::warning, "channel0 not accessible");
}

TEST_CASE("preflight_broken_cdi_files_and_cuda_stubs_are_reported") {
  FakeNode node;
  node.file("/etc/cdi/README", "");
  expect(node.check("CDI"), Verdict::ok, "no specification");
  node.file("/etc/cdi/nvidia.json", kSpecification);
  expect(node.check("CDI"), Verdict::failed,
         "/etc/cdi/nvidia.json names /usr/lib64/libcuda.so.570.86.10, which does not exist");
  node.file("/etc/cdi/nvidia.json",
            R"({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", )"
            R"("containerEdits": {"mounts": [)"
            R"({"hostPath": "/run/nvidia-persistenced/socket", )"
            R"("containerPath": "/run/nvidia-persistenced/socket"}]}}]})");
  expect(node.check("CDI"), Verdict::ok, "/etc/cdi/nvidia.json");
  node.file("/etc/cdi/nvidia.json", "{");
  expect(node.check("CDI"), Verdict::failed, "/etc/cdi/nvidia.json");
  node.around.environment["LD_LIBRARY_PATH"] = "/opt/lib::/usr/local/cuda/lib64/stubs/";
  expect(node.check("stub libraries"), Verdict::failed, "/usr/local/cuda/lib64/stubs");
  node.around.environment["LD_LIBRARY_PATH"] = "/opt/stubs.d:/opt/lib";
  expect(node.check("stub libraries"), Verdict::ok, "");
}

TEST_CASE("preflight_small_memory_limits_are_reported") {
  FakeNode node;
  node.around.shared_memory = Surroundings::Space{64 << 20, 64 << 20};
  expect(node.check("/dev/shm"), Verdict::failed, "64.0 MiB, 64.0 MiB free");
  node.around.shared_memory = Surroundings::Space{std::uint64_t{8} << 30, 1 << 20};
  expect(node.check("/dev/shm"), Verdict::warning, "8.0 GiB, 1.0 MiB free");
  node.around.shared_memory.reset();
  expect(node.check("/dev/shm"), Verdict::failed, "missing");
  node.around.locked_memory = {8 << 20, 8 << 20};
  expect(node.check("locked memory"), Verdict::ok, "8.0 MiB");
  node.file("/sys/class/infiniband/mlx5_0/x", "");
  expect(node.check("locked memory"), Verdict::failed, "the node has a fabric (mlx5_0)");
  CHECK(node.check("locked memory").cure.find("LimitMEMLOCK") != std::string::npos);
  node.around.locked_memory.hard = UINT64_MAX;
  CHECK(node.check("locked memory").cure.find("ulimit -l") != std::string::npos);
  node.around.open_files = {1024, 4096};
  expect(node.check("open files"), Verdict::warning, "1024 of at most 4096");
}

TEST_CASE("preflight_restrictive_kernel_settings_are_reported") {
  const FakeNode node;
  node.file("/proc/sys/kernel/yama/ptrace_scope", "1\n");
  expect(node.check("ptrace scope"), Verdict::ok, "1");
  node.file("/proc/sys/kernel/yama/ptrace_scope", "3\n");
  expect(node.check("ptrace scope"), Verdict::warning, "3");
  node.file("/proc/sys/user/max_user_namespaces", "0\n");
  expect(node.check("user namespaces"), Verdict::failed, "is 0");
  node.file("/proc/sys/user/max_user_namespaces", "100\n");
  node.file("/proc/sys/kernel/unprivileged_userns_clone", "0\n");
  expect(node.check("user namespaces"), Verdict::ok, "users cannot create any");
}

TEST_CASE("preflight_remove_ipc_follows_logind_rules") {
  const FakeNode node;
  expect(node.check("RemoveIPC"), Verdict::ok, "is not running");
  node.file("/run/systemd/seats/seat0", "");
  expect(node.check("RemoveIPC"), Verdict::ok, "is not running");
  node.file("/run/systemd/system/x", "");
  expect(node.check("RemoveIPC"), Verdict::warning, "yes");
  node.file("/etc/systemd/logind.conf", "[Login]\n#RemoveIPC=no\n");
  expect(node.check("RemoveIPC"), Verdict::warning, "yes");
  node.file("/etc/systemd/logind.conf", "[Login]\nRemoveIPC=no\n");
  expect(node.check("RemoveIPC"), Verdict::ok, "no");
  node.file("/etc/systemd/logind.conf.d/50-site.conf", "[Login]\nRemoveIPC=yes\n");
  expect(node.check("RemoveIPC"), Verdict::warning, "yes");
}

TEST_CASE("preflight_pmi_variables_are_checked") {
  FakeNode node;
  auto& environment = node.around.environment;
  expect(node.check("PMIx"), Verdict::ok, "slurm.pmix.7.0, rank 0");
  environment["PMIX_SERVER_TMPDIR"] = "/var/spool/slurmd/pmix.7.0/";
  expect(node.check("PMIx"), Verdict::failed,
         "PMIX_SERVER_TMPDIR=/var/spool/slurmd/pmix.7.0/ does not exist");
  node.file("/var/spool/slurmd/pmix.7.0/x", "");
  expect(node.check("PMIx"), Verdict::ok, "");
  for (const char* harmless : {"none", "^munge", "native"}) {
    environment["PMIX_MCA_psec"] = harmless;
    expect(node.check("PMIx"), Verdict::ok, "");
  }
  environment["PMIX_MCA_psec"] = "munge,native";
  expect(node.check("PMIx"), Verdict::warning, "PMIX_MCA_psec=munge,native");
  environment.erase("PMIX_RANK");
  expect(node.check("PMIx"), Verdict::failed, "PMIX_RANK is not set");
  environment.erase("PMIX_NAMESPACE");
  environment["SLURM_MPI_TYPE"] = "none";
  expect(node.check("MPI of the step"), Verdict::warning, "none");
  environment["PALS_SPOOL_DIR"] = "/var/spool/slurmd/mpi_cray_shasta/7.0";
  expect(node.check("MPI of the step"), Verdict::ok, "needs Cray's PMI");
  environment.erase("PALS_SPOOL_DIR");
  environment["SLURM_MPI_TYPE"] = "pmi2";
  environment["PMI_FD"] = "20";
  expect(node.check("MPI of the step"), Verdict::ok, "pmi2; Open MPI needs pmix");
}

TEST_CASE("preflight_addresses_and_ports_are_checked") {
  FakeNode node;
  node.around.interfaces = {{"lo", true}};
  expect(node.check("network addresses"), Verdict::warning, "only the loopback");
  node.around.interfaces = {{"eth0", false}};
  expect(node.check("network addresses"), Verdict::failed, "loopback interface is down");
  auto& environment = node.around.environment;
  node.file("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
  environment["MASTER_PORT"] = "29500";
  expect(node.check("MASTER_PORT"), Verdict::ok, "29500 is free");
  environment["MASTER_PORT"] = "40000";
  expect(node.check("MASTER_PORT"), Verdict::warning, "40000 is free, but in");
  for (const char* wrong : {"", "0", "65536", "http", "-1", "123456"}) {
    environment["MASTER_PORT"] = wrong;
    expect(node.check("MASTER_PORT"), Verdict::failed, "is not a port");
  }
  environment["MASTER_PORT"] = "29500";
  node.around.listen_on = [](std::uint16_t port) { return port == 29500 ? EADDRINUSE : 0; };
  expect(node.check("MASTER_PORT"), Verdict::failed, "29500: Address already in use");
  environment["SLURM_PROCID"] = "1";
  expect(node.check("MASTER_PORT"), Verdict::ok, "at the node of rank 0");
}

TEST_CASE("preflight_infiniband_with_missing_parts_fails") {
  FakeNode node;
  node.file("/sys/class/infiniband/mlx5_0/x", "");
  expect(node.check("InfiniBand"), Verdict::failed, "no /dev/infiniband/uverbs0");
  expect(node.check("libibverbs"), Verdict::warning, "missing");
  node.file("/dev/infiniband/uverbs0", "");
  node.denied = {"/dev/infiniband/uverbs0"};
  expect(node.check("InfiniBand"), Verdict::failed, "uverbs0 (Operation not permitted)");
}

TEST_CASE("preflight_fake_slingshot_and_other_fabrics_are_checked") {
  FakeNode node;
  expect(node.check("EFA, Omni-Path, Slingshot"), Verdict::ok, "none");
  node.file("/sys/class/cxi/cxi0/properties", "");
  expect(node.check("EFA, Omni-Path, Slingshot"), Verdict::failed, "cxi0 has no device node");
  CHECK(node.check("EFA, Omni-Path, Slingshot").cure == "modprobe cxi-user on the node");
  node.file("/dev/cxi0", "");
  expect(node.check("EFA, Omni-Path, Slingshot"), Verdict::ok,
         "cxi0: /dev/cxi0; images need libfabric");
  node.denied = {"/dev/cxi0"};
  expect(node.check("EFA, Omni-Path, Slingshot"), Verdict::failed,
         "cxi0: /dev/cxi0: Operation not permitted");
  expect(node.check("InfiniBand"), Verdict::ok, "none");
  node.around.locked_memory = {64 << 10, 64 << 10};
  expect(node.check("locked memory"), Verdict::failed, "0.1 MiB, but the node has a fabric (cxi0)");
}

TEST_CASE("preflight_fake_efa_is_checked") {
  FakeNode node;
  node.file("/sys/class/infiniband/efa_0/x", "");
  node.file("/sys/class/infiniband_verbs/uverbs0/ibdev", "efa_0\n");
  node.file("/dev/infiniband/uverbs0", "");
  expect(node.check("EFA, Omni-Path, Slingshot"), Verdict::ok, "efa_0: /dev/infiniband/uverbs0");
  expect(node.check("InfiniBand"), Verdict::ok, "none");
  node.file("/proc/sys/kernel/yama/ptrace_scope", "1\n");
  expect(node.check("ptrace scope"), Verdict::warning, "1: libfabric's EFA provider");
}

TEST_CASE("preflight_fake_omni_path_is_checked") {
  FakeNode node;
  node.file("/sys/class/infiniband/hfi1_0/x", "");
  std::filesystem::create_directories(node.around.host_root +
                                      "/sys/class/infiniband/hfi1_0/device");
  std::filesystem::create_symlink(
      "../../../bus/pci/drivers/hfi1",
      node.around.host_root + "/sys/class/infiniband/hfi1_0/device/driver");
  node.file("/sys/class/infiniband_verbs/uverbs0/ibdev", "hfi1_0\n");
  node.file("/dev/infiniband/uverbs0", "");  // unused there
  expect(node.check("EFA, Omni-Path, Slingshot"), Verdict::failed, "hfi1_0 has no device node");
  CHECK(node.check("EFA, Omni-Path, Slingshot").cure == "modprobe hfi1 on the node");
  node.file("/dev/hfi1_0", "");
  expect(node.check("EFA, Omni-Path, Slingshot"), Verdict::ok, "hfi1_0: /dev/hfi1_0");
  expect(node.check("InfiniBand"), Verdict::ok, "none");
}

TEST_CASE("preflight_nccl_settings_with_missing_targets_fail") {
  FakeNode node;
  auto& environment = node.around.environment;
  const auto interface = [&](const char* list) {
    environment["NCCL_SOCKET_IFNAME"] = list;
    return node.check("NCCL settings").verdict;
  };
  CHECK(interface("eth") == Verdict::ok);
  CHECK(interface("=eth0") == Verdict::ok);
  CHECK(interface("=eth") == Verdict::failed);
  CHECK(interface("ib,eth") == Verdict::ok);
  CHECK(interface("ib0") == Verdict::failed);
  CHECK(interface("^docker,lo") == Verdict::ok);
  CHECK(interface("^eth,lo") == Verdict::failed);
  environment.erase("NCCL_SOCKET_IFNAME");
  node.file("/etc/nccl.conf", "# site\nNCCL_TOPO_FILE=/etc/nccl/topo.xml\nNCCL_SOCKET_IFNAME=ib\n");
  expect(node.check("NCCL settings"), Verdict::failed,
         "NCCL_TOPO_FILE=/etc/nccl/topo.xml does not exist");
  node.file("/etc/nccl/topo.xml", "<system/>");
  expect(node.check("NCCL settings"), Verdict::failed, "NCCL_SOCKET_IFNAME=ib");
  environment["HOME"] = "/home/alice";
  node.file("/home/alice/.nccl.conf", "NCCL_SOCKET_IFNAME=eth0\n");
  expect(node.check("NCCL settings"), Verdict::ok,
         "/etc/nccl.conf /home/alice/.nccl.conf, NCCL_SOCKET_IFNAME=eth0");
  environment["NCCL_CONF_FILE"] = "/nowhere";
  expect(node.check("NCCL settings"), Verdict::warning, "/nowhere");
}
