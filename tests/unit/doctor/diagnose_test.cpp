#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "doctor/diagnose.hpp"
#include "unit/test.hpp"

using namespace spc;

namespace {

/// What programs really write: each line, and which failures it names.
struct Line {
  const char* text;
  std::vector<std::string> failures;
};

const std::vector<Line>& lines() {
  static const std::vector<Line> kLines{
      // CUDA, by its runtime, its driver API and PyTorch
      {"CUDA error at vectorAdd.cu:63 code=100(cudaErrorNoDevice) \"cudaMalloc\"",
       {"cuda-no-device"}},
      {"RuntimeError: CUDA error: no CUDA-capable device is detected", {"cuda-no-device"}},
      {"RuntimeError: No CUDA GPUs are available", {"cuda-no-device"}},
      {"cuInit failed with CUDA_ERROR_NO_DEVICE", {"cuda-no-device"}},
      {"cudaGetDeviceCount returned 35: CUDA driver version is insufficient for CUDA runtime "
       "version",
       {"cuda-driver-old"}},
      {"RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA "
       "GPU",
       {"cuda-driver-old"}},
      {"RuntimeError: The NVIDIA driver on your system is too old (found version 11040)",
       {"cuda-driver-old"}},
      {"cudaGetDeviceCount returned 34: CUDA driver is a stub library", {"cuda-stub"}},
      {"Failed: cudaErrorStubLibrary", {"cuda-stub"}},
      {"Error 803: system has unsupported display driver / cuda driver combination (function "
       "operator())",
       {"cuda-mismatch"}},
      {"Error 804: forward compatibility was attempted on non supported HW",
       {"cuda-compat-unsupported"}},
      {"Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
       {"cuda-fabric"}},
      {"RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
       {"cuda-unknown"}},
      {"E0000 cuda_driver.cc:271] failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error",
       {"cuda-unknown"}},
      {"cuInit(0) returned 999", {"cuda-unknown"}},
      {"cudaGetDeviceCount returned 999", {"cuda-unknown"}},
      {"no GPU to measure: unknown error (999)", {"cuda-unknown"}},
      {"./a.out: error while loading shared libraries: libcuda.so.1: cannot open shared object "
       "file: No such file or directory",
       {"libcuda-missing"}},
      {"Error loading shared library libcuda.so.1: No such file or directory (needed by ./a.out)",
       {"libcuda-missing"}},
      // NVML
      {"Failed to initialize NVML: Driver/library version mismatch", {"nvml-mismatch"}},
      {"Failed to initialize NVML: Unknown Error", {"nvml-lost"}},
      // NCCL
      {"node01:412:498 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend "
       "/dev/shm/nccl-9q3Iqs to 33030532 bytes, "
       "error: No space left on device (28)",
       {"shm-small"}},
      {"node01:412:498 [0] NCCL WARN Error while creating shared memory segment "
       "/dev/shm/nccl-aB3dEf (size 9637888)",
       {"shm-small"}},
      {"RuntimeError: DataLoader worker (pid 99) is killed by signal: Bus error. It is possible "
       "that dataloader's workers are "
       "out "
       "of shared memory.",
       {"shm-small"}},
      {"node01:412:498 [0] NCCL WARN unlink shared memory /dev/shm/nccl-aB3dEf failed, error: No "
       "such file or directory (2)",
       {"shm-removed"}},
      {"NCCL WARN Call to open failed : No such file or directory /dev/shm/nccl-aB3dEf",
       {"shm-removed"}},
      {"node01:412:498 [0] NCCL INFO NET/IB : No device found.", {"ib-none"}},
      {"node01:412:498 [0] NCCL INFO Failed to open libibverbs.so[.1]", {"ib-library"}},
      {"node01:412:498 [0] NCCL INFO Count not open libibverbs.so", {"ib-library"}},
      {"NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory", {"memlock"}},
      {"ibv_create_cq(cqe=4096) failed: Cannot allocate memory : Please set max locked memory "
       "(ulimit -l) to 'unlimited'",
       {"memlock"}},
      {"NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory", {"memlock"}},
      {"node01:412:412 [0] NCCL WARN Bootstrap : no socket interface found", {"nccl-interface"}},
      {"node02:77:90 [1] NCCL WARN socketStartConnect: Connect to 10.1.0.4<43351> failed : "
       "Connection refused",
       {"nccl-peer"}},
      {"node02:77:90 [1] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote "
       "peer node01<51312>",
       {"nccl-peer"}},
      {"node02:77:90 [1] NCCL WARN socketPollConnect: poll() timed out", {"nccl-peer"}},
      {"node01:1:9 [0] transport/nvls.cc:243 NCCL WARN Failed to bind NVLink SHARP (NVLS) "
       "Multicast memory of size 2097152 : "
       "CUDA "
       "error 401 'the operation cannot be performed in the present state'",
       {"nccl-nvls-bind"}},
      {"Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 802 "
       "'system not yet initialized'",
       {"nccl-nvls-bind", "cuda-fabric"}},
      {"node01:1:9 [0] transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'",
       {"nccl-nvls-caps"}},
      {"node01:1:9 [0] NCCL WARN Cuda failure 800 'operation not permitted'", {"nccl-imex"}},
      {"NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.", {"nccl-plugin"}},
      {"NCCL INFO External network plugin libnccl-net.so is unsupported", {"nccl-plugin"}},
      {"RuntimeError: The server socket has failed to listen on any local network address. The "
       "server socket has failed to bind "
       "to "
       "[::]:29500 (errno: 98 - Address already in use).",
       {"port-taken"}},
      // MPI
      {"[node01:04711] OPAL ERROR: Unreachable in file ext3x_client.c at line 112", {"pmi-none"}},
      {"but OMPI was not built with SLURM's PMI support and therefore cannot", {"pmi-none"}},
      {"[node01:04711] pmix_ifinit: unable to find network interfaces", {"pmix-network"}},
      {"PMIX ERROR: INVALID-NAMESPACE in file client/pmix_client.c at line 420",
       {"pmix-variables"}},
      {"  Component: munge", {"pmix-security"}},
      {"[node01:04711] PMIX ERROR: ERROR in file "
       "../../../../../../src/mca/gds/ds12/gds_ds12_lock_pthread.c at line 169",
       {"pmix-data"}},
      {"unable to find any usable plugins for the GDS framework", {"pmix-data"}},
      {"[node01:04711] 1 more process has sent help message help-btl-vader.txt / "
       "cma-different-user-namespace-warning",
       {"cma-namespaces"}},
      {"not available due to different user namespaces.", {"cma-namespaces"}},
      {"[node01:99] pml_ucx.c:424  Error: ucp_ep_create(proc=1) failed: Destination is unreachable",
       {"ucx-unreachable"}},
      {"[1700000000.1] [node01:99:0] select.c:629  UCX  ERROR no active messages transport to <no "
       "debug data>: posix/memory",
       {"ucx-unreachable"}},
      {"UCX  ERROR mlx5_0:1/IB: no such device", {"ucx-unreachable"}},
      {"[node01:99] 1 more process has sent help message help-mca-bml-r2.txt / unreachable proc",
       {"mpi-unreachable"}},
      {"At least one pair of MPI processes are unable to reach each other for",
       {"mpi-unreachable"}},
      {"[node01:04711] PMIX ERROR: PMIX_ERR_FILE_OPEN_FAILURE in file gds_shmem2.c at line 412: "
       "FILE_OPEN_FAILURE",
       {"pmix-data"}},
      {"[node01:04711] 1 more process has sent help message help-pmix-pmix3x.txt / evars",
       {"pmix-prefix"}},
      {"An environment variable was set: PMIX_INSTALL_PREFIX must be the same as OPAL_PREFIX",
       {"pmix-prefix"}},
      // fabrics
      {"MPI startup(): PMI server not found. Please set I_MPI_PMI_LIBRARY variable if it is not a "
       "singleton case.",
       {"intel-pmi"}},
      {"MPIDI_OFI_mpi_init_hook: OFI addrinfo() failed (ofi_init.c:1577:MPIDI_OFI_mpi_init_hook:No "
       "data available)",
       {"libfabric-none"}},
      {"fi_getinfo: -61 (No data available)", {"libfabric-none"}},
      {"node01:1:9 [0] nccl_net_ofi_rdma_init:7837 NCCL WARN NET/OFI OFI fi_getinfo() call failed: "
       "No eligible providers were found",
       {"libfabric-none"}},
      {"node01:1:9 [0] NCCL WARN Error: network AWS Libfabric not found.", {"ofi-plugin"}},
      {"node01:1:9 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net-ofi.so. Using internal "
       "network plugin.",
       {"ofi-plugin"}},
      {"libcudart.so.12: cannot open shared object file: No such file or directory",
       {"cudart-missing"}},
      {"NET/Plugin: Plugin load returned 2: libcudart.so.11.0 could not be found",
       {"cudart-missing"}},
      {"MPIDI_CRAY_init: GPU_SUPPORT_ENABLED is requested, but GTL library is not linked",
       {"cray-gtl"}},
      {"node01.12hfi_userinit: assign_context command failed: Device or resource busy", {"psm2"}},
      {"PSM2 was unable to open an endpoint: psm2_ep_open() failed with PSM2_EP_DEVICE_FAILURE",
       {"psm2"}},
      {"node01.12PSM2 can't open hfi unit: -1 (err=23)", {"psm2"}},
      {"libibverbs: Warning: couldn't load driver 'libmlx5-rdmav34.so': libmlx5-rdmav34.so: cannot "
       "open shared object file",
       {"ib-provider"}},
      {"libibverbs: Warning: no userspace device-specific driver found for "
       "/sys/class/infiniband_verbs/uverbs0",
       {"ib-provider"}},
      {"[node01:99] help-mpi-runtime.txt / mpi_init:startup:pml-add-procs", {"mpi-unreachable"}},
  };
  return kLines;
}

std::vector<std::string> ids(const std::vector<Recognised>& findings) {
  std::vector<std::string> ids;
  for (const Recognised& one : findings) ids.emplace_back(one.failure->id);
  return ids;
}

}  // namespace

TEST_CASE("each real line is recognised as what it is and nothing else") {
  for (const Line& line : lines()) {
    INFO(line.text);
    CHECK(ids(diagnose(line.text)) == line.failures);
  }
}

TEST_CASE("each known failure has a real line here") {
  std::set<std::string> shown;
  for (const Line& line : lines()) shown.insert(line.failures.begin(), line.failures.end());
  std::set<std::string> known;
  for (const Failure* failure : known_failures()) CHECK(known.insert(failure->id).second);
  CHECK(shown == known);
}

TEST_CASE("each known failure says its cause and cure, and names others that exist") {
  std::set<std::string> known;
  for (const Failure* failure : known_failures()) known.insert(failure->id);
  for (const Failure* failure : known_failures()) {
    INFO(failure->id);
    CHECK(std::string(failure->says).size() > 10);
    CHECK(std::string(failure->cause).size() > 10);
    CHECK(std::string(failure->cure).size() > 10);
    for (const char* other : failure->told_by) CHECK(known.count(other) == 1);
    for (const Pattern& pattern : failure->patterns) {
      REQUIRE(!pattern.empty());
      for (const auto piece : pattern) CHECK(piece.size() >= 3);
    }
  }
}

TEST_CASE("what jobs write when nothing is wrong is not a failure") {
  CHECK(diagnose("epoch 1: loss 0.25\nunknown error rate 0.1\nno such device in the "
                 "catalogue\nUsing 4 GPUs\n"
                 "NCCL INFO Using network Socket\nNCCL INFO NET/IB : Using [0]mlx5_0:1/IB\n"
                 "libcuda.so.1 => /usr/lib/x86_64-linux-gnu/libcuda.so.1\nport 999 of cu\n")
            .empty());
}

TEST_CASE("the first line, its task and the number of lines are said") {
  const auto findings = diagnose(
      "0: starting\n"
      "3: RuntimeError: No CUDA GPUs are available\r\n"
      "1: RuntimeError: No CUDA GPUs are available\n"
      "\x1b[31m12: \x1b[0mAddress already in use\n");
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].line == 2);
  CHECK(findings[0].times == 2);
  CHECK(findings[0].task == "3");
  CHECK(findings[0].text == "3: RuntimeError: No CUDA GPUs are available");
  CHECK(findings[1].line == 4);
  CHECK(findings[1].task.empty());
  CHECK(findings[1].text == "12: Address already in use");
}

TEST_CASE("what Open MPI 4.1.4 writes without PMIx is one failure") {
  const auto findings = diagnose(
      "[vm:18132] OPAL ERROR: Unreachable in file ext3x_client.c at line 112\n"
      "--------------------------------------------------------------------------\n"
      "The application appears to have been direct launched using \"srun\",\n"
      "but OMPI was not built with SLURM's PMI support and therefore cannot\n"
      "execute. There are several options for building PMI support under\n"
      "SLURM, depending upon the SLURM version you are using:\n");
  CHECK(ids(findings) == std::vector<std::string>{"pmi-none"});
  CHECK(findings[0].times == 3);
}

TEST_CASE("causes come before what they bring about, whichever was written first") {
  const auto findings = diagnose(
      "NCCL WARN Connection closed by remote peer node01<1>\n"
      "RuntimeError: No CUDA GPUs are available\n");
  CHECK(ids(findings) == std::vector<std::string>{"cuda-no-device", "nccl-peer"});
  CHECK_FALSE(findings[0].consequence);
  CHECK(findings[1].consequence);
  CHECK_FALSE(diagnose("NCCL WARN Connection closed by remote peer node01<1>\n")[0].consequence);
}

TEST_CASE("it does not matter in which pieces a text arrives") {
  std::string text;
  for (const Line& line : lines()) text += std::string(line.text) + "\n";
  const auto whole = diagnose(text);
  for (const auto step : std::to_array<std::size_t>({1, 7, 4096})) {
    Diagnosis diagnosis;
    for (std::size_t at = 0; at < text.size(); at += step)
      diagnosis.read(std::string_view(text).substr(at, step));
    const auto parts = diagnosis.findings();
    REQUIRE(ids(parts) == ids(whole));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      CHECK(parts[i].line == whole[i].line);
      CHECK(parts[i].times == whole[i].times);
      CHECK(parts[i].text == whole[i].text);
    }
    CHECK(diagnosis.lines() == lines().size());
  }
}

TEST_CASE("a line without end is looked at part by part and counts once") {
  const std::string filler(10'000, 'x');
  for (std::size_t shift = 0; shift < 64; ++shift) {
    const std::string line = std::string(8192 - 32 + shift - 16, 'y') + "no CUDA-capable device" +
                             filler + "no CUDA-capable device" + filler;
    const auto findings = diagnose("first\n" + line + "\nNCCL WARN Connection refused");
    REQUIRE(ids(findings) == std::vector<std::string>{"cuda-no-device", "nccl-peer"});
    CHECK(findings[0].times == 1);
    CHECK(findings[0].line == 2);
    CHECK(findings[0].text.find("no CUDA-capable device") != std::string::npos);
    CHECK(findings[1].line == 3);
  }
}

TEST_CASE("what is shown of a text is short and safe for a terminal") {
  const auto findings = diagnose("\x1b[31m\x07" + std::string(5000, 'a') +
                                 "Address already in use\x1b]0;title\x07\x80\n");
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].text.size() <= 300);
  CHECK(std::all_of(findings[0].text.begin(), findings[0].text.end(),
                    [](char c) { return c >= 0x20 && c < 0x7f; }));
  CHECK(findings[0].text.find("Address already in use") != std::string::npos);
}
