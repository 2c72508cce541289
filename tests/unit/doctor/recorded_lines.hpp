#pragma once

#include <string>
#include <vector>

// --- recorded lines ---

/// A real output line of a program, and the failures that it identifies. The source is named where
/// the line does not show it.
struct Line {
  const char* text;
  std::vector<std::string> failures;
};

inline const std::vector<Line>& lines() {
  static const std::vector<Line> kLines{
      // CUDA: its runtime, its driver API and PyTorch
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
      // CUDA and PyTorch: more of their errors
      {"RuntimeError: CUDA error: no kernel image is available for execution on the device",
       {"cuda-no-kernel"}},
      {"NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current "
       "PyTorch installation.",
       {"cuda-no-kernel"}},
      {"cuModuleLoadData failed: CUDA_ERROR_NO_BINARY_FOR_GPU", {"cuda-no-kernel"}},
      {"RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
       {"cuda-ptx"}},
      {"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total "
       "capacity of 79.10 GiB of which 14.25 MiB is free.",
       {"cuda-memory"}},
      {"torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB",
       {"cuda-memory"}},
      {"RuntimeError: CUDA error: out of memory", {"cuda-memory"}},
      {"node01:7:7 [3] include/alloc.h:103 NCCL WARN Cuda failure 2 'out of memory'",
       {"cuda-memory"}},
      {"jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
       "allocate 1073741824 bytes.",
       {"cuda-memory"}},
      {"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
       {"cuda-memory"}},
      {"RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
       {"cuda-busy"}},
      {"all CUDA-capable devices are busy or unavailable", {"cuda-busy"}},
      {"RuntimeError: CUDA error: invalid device ordinal", {"cuda-ordinal"}},
      {"RuntimeError: CUDA error: uncorrectable ECC error encountered", {"gpu-broken"}},
      {"Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.  Reboot the system "
       "to recover this GPU",
       {"gpu-broken"}},
      {"[83011.2] NVRM: Xid (PCI:0000:41:00): 79, pid=8123, GPU has fallen off the bus.",
       {"gpu-broken"}},
      {"RuntimeError: CUDA error: an illegal memory access was encountered", {"cuda-access"}},
      {"RuntimeError: CUDA error: device-side assert triggered", {"cuda-access"}},
      {"AssertionError: Torch not compiled with CUDA enabled", {"torch-no-cuda"}},
      {"OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install "
       "root.",
       {"cuda-toolkit"}},
      {"/bin/sh: 1: nvcc: not found", {"cuda-toolkit"}},
      {"FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'",
       {"cuda-toolkit"}},
      {"RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
       {"c-compiler"}},
      {"error: command 'gcc' failed: No such file or directory", {"c-compiler"}},
      // NCCL: init.cc and net_ib.cc of 2.18 to 2.28; ProcessGroupNCCL.cpp of PyTorch 2.0 to 2.6
      {"node01:1583:1585 [0] init.cc:738 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both "
       "on CUDA device 41000",
       {"nccl-duplicate"}},
      // github.com/NVIDIA/nccl/issues/1405
      {"node02:3468:3905 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer "
       "10.216.210.236<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv)",
       {"ib-retry"}},
      {"[1676.1] [node02:99:0] ib_mlx5_log.c:177  UCX  ERROR Transport retry count exceeded on "
       "mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)",
       {"ib-retry"}},
      {"[rank3]:[E1218 20:27:21.433063423 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught "
       "collective operation timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=131072000, "
       "NumelOut=131072000, Timeout(ms)=600000) ran for 600081 milliseconds before timing out.",
       {"nccl-timeout"}},
      {"[E ProcessGroupNCCL.cpp:456] Some NCCL operations have failed or timed out. Due to the "
       "asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted "
       "data.",
       {"nccl-timeout"}},
      {"[rank1]:[F1119 ProcessGroupNCCL.cpp:1447] [PG ID 0 PG GUID 0(default_pg) Rank 1] [PG 0] "
       "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in "
       "monitoring enqueued collectives.",
       {"nccl-timeout"}},
      {"[rank2]: Future for ProcessGroup abort timed out after 600000 ms", {"nccl-timeout"}},
      {"[rank1]: torch.distributed.DistBackendError: NCCL error in: "
       "../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, unhandled system error (run with "
       "NCCL_DEBUG=INFO for details), NCCL version 2.21.5",
       {"nccl-system"}},
      {"ncclSystemError: System call (e.g. socket, malloc) or external library call failed or "
       "device "
       "error.",
       {"nccl-system"}},
      {"node01: Test NCCL failure common.cu:1279 'unhandled cuda error (run with NCCL_DEBUG=INFO "
       "for "
       "details) / '",
       {"nccl-cuda"}},
      // Open MPI 4 and 5: help-plm-slurm.txt, help-errmgr-base.txt, help-mpi-btl-sm.txt
      {"The SLURM process starter for OpenMPI was unable to locate a", {"mpi-srun"}},
      {"usable \"srun\" command in its path. Please check your path", {"mpi-srun"}},
      {"The SLURM process starter for PRTE was unable to locate a", {"mpi-srun"}},
      {"There are not enough slots available in the system to satisfy the 4", {"mpi-slots"}},
      {"mpirun has detected an attempt to run as root.", {"mpi-root"}},
      {"prterun has detected an attempt to run as root.", {"mpi-root"}},
      {"ORTE was unable to reliably start one or more daemons.", {"mpi-daemon"}},
      {"PRTE has lost communication with a remote daemon.", {"mpi-daemon"}},
      {"It looks like orte_init failed for some reason; your parallel process is", {"mpi-init"}},
      {"It looks like MPI_INIT failed for some reason; your parallel process is", {"mpi-init"}},
      {"Abort(1090831) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init_thread: Other MPI "
       "error, error stack:",
       {"mpi-init"}},
      {"[node01:00612] OPAL ERROR: Not initialized in file pmix2x_client.c at line 112",
       {"mpi-init"}},
      {"A system call failed during shared memory initialization that should", {"mpi-shm"}},
      {"It appears as if there is not enough space for /tmp/ompi.node01.1000/pid.7/1/"
       "vader_segment.node01.1 (the shared-memory backing",
       {"mpi-shm"}},
      {"[node01:00612] PMIX ERROR: OUT-OF-RESOURCE in file dstore_segment.c at line 213",
       {"mpi-shm"}},
      // github.com/pyiron/executorlib/pull/761, github.com/geoschem/geos-chem/issues/822
      {"srun: error: Invalid MPI type 'pmix_v5', --mpi=list for acceptable types", {"mpi-plugin"}},
      {"srun: error: \"--mpi=pmix\" -- long invalid MPI type, --mpi=list for acceptable types.",
       {"mpi-plugin"}},
      {"srun: error: Couldn't load specified plugin name for mpi/pmix: Plugin init() callback "
       "failed",
       {"mpi-plugin"}},
      // github.com/openucx/ucx/issues/8511 and pull/4511
      {"[1662593980.9] [node01:25595:0] mm_posix.c:207  UCX  ERROR   "
       "open(file_name=/proc/25599/fd/35 "
       "flags=0x0) failed: No such file or directory",
       {"ucx-shm"}},
      {"[c7:2019617] pml_ucx.c:424  Error: ucp_ep_create(proc=1) failed: Shared memory error",
       {"ucx-shm"}},
      {"[1700000000.1] [node01:99:0] ucp_context.c:774  UCX  WARN  network device 'mlx5_9:1' is "
       "not "
       "available, please use one or more of: 'mlx5_0:1'(IB), 'eth0'(tcp)",
       {"ucx-device"}},
      {"[1700000000.1] [node01:99:0] ucp_context.c:1411 UCX  WARN  transport 'ib' is not available",
       {"ucx-device"}},
      {"MPIDI_OFI_handle_cq_error(1042): OFI poll failed "
       "(ofi_events.c:1042:MPIDI_OFI_handle_cq_error:Input/output error)",
       {"ofi-transport"}},
      {"create_vni_context(954): OFI endpoint open failed "
       "(ofi_init.c:954:create_vni_context:Invalid "
       "argument)",
       {"ofi-transport"}},
      // Slurm: slurmstepd/req.c, task_cgroup_memory.c, plugstack.c, step_launch.c
      {"slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes may "
       "have been killed by the cgroup out-of-memory handler.",
       {"host-memory"}},
      {"[2026-09-14T17:14:38.784] error: Detected 4 oom_kill events in StepId=22035606.1. Some of "
       "the step tasks have been OOM Killed.",
       {"host-memory"}},
      {"srun: error: node01: tasks 0-2,5: Out Of Memory", {"host-memory"}},
      {"slurmstepd: error: StepId=7.batch exceeded memory limit (734003200 > 52428800), being "
       "killed",
       {"host-memory"}},
      {"numpy.core._exceptions._ArrayMemoryError: Unable to allocate 74.5 GiB for an array",
       {"allocation"}},
      {"terminate called after throwing an instance of 'std::bad_alloc'", {"allocation"}},
      {"slurmstepd: error: *** STEP 123.0 ON node01 CANCELLED AT 2026-11-27T06:00:00 DUE TO TIME "
       "LIMIT ***",
       {"time-limit"}},
      {"slurmstepd: error: *** JOB 9 ON node[01-03] CANCELLED AT 2026-11-27T06:00:00 DUE TO "
       "PREEMPTION ***",
       {"preempted"}},
      {"slurmstepd: error: *** JOB 9 ON node01 CANCELLED AT 2026-11-27T06:00:00 DUE TO JOB REQUEUE "
       "***",
       {"preempted"}},
      {"slurmstepd: error: *** JOB 9 ON node01 CANCELLED AT 2026-11-27T06:00:00 DUE TO NODE "
       "FAILURE, "
       "SEE SLURMCTLD LOG FOR DETAILS ***",
       {"node-failed"}},
      {"slurmstepd: error: *** STEP 9.2 ON node01 CANCELLED AT 2026-11-27T06:00:00 ***",
       {"cancelled"}},
      {"slurmstepd: error: *** STEP 9.2 ON node01 CANCELLED AT 2026-11-27T06:00:00 DUE TO A REASON "
       "OF "
       "A LATER SLURM ***",
       {"cancelled"}},
      {"slurmstepd: error: *** JOB 6847502 STEPD TERMINATED ON node12 AT 2026-11-07T02:10:11 DUE "
       "TO "
       "JOB NOT ENDING WITH SIGNALS ***",
       {"unkillable"}},
      {"srun: error: Unable to create step for job 42: Memory required by task is not available",
       {"step-resources"}},
      {"srun: unrecognized option '--container-images=debian:12'", {"slurm-plugin"}},
      {"error: Warning: SPANK plugin \"pyxis\" option \"container-image\" not found",
       {"slurm-plugin"}},
      {"srun: option '--container-mount=/x' is ambiguous; possibilities: '--container-mounts' "
       "'--container-mount-home'",
       {"option-ambiguous"}},
      {"srun: error: spank-container: ignoring --container-mounts because neither "
       "--container-image "
       "nor --container-name is set",
       {"no-container"}},
      {"slurmstepd: error: execve(): /home/alice/data:/data: No such file or directory",
       {"srun-volume"}},
      {"slurmstepd: error: execve(): download_sra.sh: Permission denied", {"not-executable"}},
      {"slurmstepd: error: execve(): diann: No such file or directory", {"exec-missing"}},
      {"slurmstepd: error: couldn't chdir to `/scratch/alice': No such file or directory: going to "
       "/tmp "
       "instead",
       {"workdir-missing"}},
      {"srun: error: Unable to contact slurm controller (connect failure)", {"slurm-controller"}},
      {"srun: fatal: Could not establish a configuration source", {"slurm-controller"}},
      {"srun: error: Munge encode failed: Failed to access \"/run/munge/munge.socket.2\": No such "
       "file "
       "or directory",
       {"munge"}},
      {"/var/spool/slurmd/job00042/slurm_script: line 7: srun: command not found",
       {"slurm-commands"}},
      {"sh: 1: squeue: not found", {"slurm-commands"}},
      {"FileNotFoundError: [Errno 2] No such file or directory: 'scontrol'", {"slurm-commands"}},
      {"bash: line 1: mpirun: command not found", {"mpirun-missing"}},
      {"slurmstepd: error: execve(): mpiexec: No such file or directory", {"mpirun-missing"}},
      // programs and the loader
      {"bash: line 1: python: command not found", {"python-name"}},
      {"/usr/bin/env: 'python': No such file or directory", {"python-name"}},
      {"/bin/sh: 1: pip: not found", {"python-name"}},
      {"spank-container: execute \"pyhton3\": image \"debian:12\" has no such program along PATH "
       "(hint: PATH is /usr/bin:/bin)",
       {"no-program"}},
      {"./run.sh: line 3: module: command not found", {"command-missing"}},
      {"/bin/sh: 1: cmake: not found", {"command-missing"}},
      {"python3: can't open file '/workspace/train.py': [Errno 2] No such file or directory",
       {"script-missing"}},
      {"FileNotFoundError: [Errno 2] No such file or directory: '/data/train.csv'",
       {"file-missing"}},
      {"bash: ./x.sh: /opt/no/shell: bad interpreter: No such file or directory", {"interpreter"}},
      {"bash: ./solver: cannot execute: required file not found", {"interpreter"}},
      {"slurmstepd: error: execve(): /opt/app/solver: Exec format error", {"exec-format"}},
      {"exec /usr/bin/sh: exec format error", {"exec-format"}},
      {"srun: error: node01: task 0: Illegal instruction (core dumped)", {"illegal-instruction"}},
      {"Fatal Python error: Illegal instruction", {"illegal-instruction"}},
      {"srun: error: node01: tasks 0-3: Bus error", {"bus-error"}},
      {"[node01:04711] Signal: Bus error (7)", {"bus-error"}},
      {"srun: error: node01: task 2: Segmentation fault (core dumped)", {"segfault"}},
      {"./solver: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by "
       "./solver)",
       {"glibc-old"}},
      {"ImportError: /lib64/libstdc++.so.6: version `GLIBCXX_3.4.29' not found (required by "
       "/opt/x.so)",
       {"libstdcxx-old"}},
      {"ImportError: /usr/lib/libssl.so.3: version `OPENSSL_3.2.0' not found (required by x.so)",
       {"symbol-missing"}},
      {"ImportError: /opt/libtorch_cuda.so: undefined symbol: ncclCommRegister",
       {"symbol-missing"}},
      {"./solver: symbol lookup error: ./solver: undefined symbol: ompi_mpi_comm_null",
       {"symbol-missing"}},
      {"./solver: error while loading shared libraries: libmpi.so.40: cannot open shared object "
       "file: No such file or directory",
       {"mpi-missing"}},
      {"ImportError: libmpi_cxx.so.1: cannot open shared object file: No such file or directory",
       {"mpi-missing"}},
      {"Error loading shared library libmpi.so.12: No such file or directory (needed by ./solver)",
       {"mpi-missing"}},
      {"ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
       {"libgl-missing"}},
      {"Could not load library libcudnn_ops_infer.so.8. Error: libcudnn_ops_infer.so.8: cannot "
       "open "
       "shared object file",
       {"cudnn-missing"}},
      {"Unable to load any of {libcudnn_graph.so.9.1.0, libcudnn_graph.so.9}", {"cudnn-missing"}},
      {"./solver: error while loading shared libraries: libhdf5.so.310: cannot open shared object "
       "file: No such file or directory",
       {"lib-missing"}},
      {"Error loading shared library libgcc_s.so.1: No such file or directory (needed by ./a)",
       {"lib-missing"}},
      {"ImportError: /opt/libgomp.so.1: cannot allocate memory in static TLS block",
       {"static-tls"}},
      // files
      {"OSError: [Errno 28] No space left on device: '/out/model.pt'", {"disk-full"}},
      {"tar: x/y: Cannot write: No space left on device", {"disk-full"}},
      {"OSError: [Errno 122] Disk quota exceeded: '/home/alice/.cache/x'", {"quota"}},
      {"cp: error writing '/scratch/x': Disk quota exceeded", {"quota"}},
      {"There was a problem when trying to write in your cache folder "
       "(/home/alice/.cache/huggingface/hub). You should set the environment variable "
       "TRANSFORMERS_CACHE to a writable directory.",
       {"cache-unwritable"}},
      {"PermissionError: [Errno 13] Permission denied: '/.cache'", {"cache-unwritable"}},
      {"OSError: [Errno 30] Read-only file system: '/opt/huggingface/hub'", {"cache-unwritable"}},
      {"PermissionError: [Errno 13] Permission denied: '/root/.cache/torch'", {"cache-unwritable"}},
      {"FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp', "
       "'/usr/tmp', '/workspace']",
       {"tmp-unwritable"}},
      {"bash: cannot create temp file for here-document: Read-only file system",
       {"tmp-unwritable"}},
      {"mktemp: failed to create file via template '/tmp/tmp.XXXXXXXXXX': Permission denied",
       {"tmp-unwritable"}},
      {"touch: cannot touch '/home/alice/x': Read-only file system", {"home-readonly"}},
      {"OSError: [Errno 30] Read-only file system: '/data/out'", {"read-only"}},
      {"touch: cannot touch '/data/x': Permission denied", {"permission"}},
      {"PermissionError: [Errno 13] Permission denied: '/data/x'", {"permission"}},
      {"bash: line 1: /data/x: Permission denied", {"permission"}},
      {"OSError: [Errno 116] Stale file handle: '/home/alice/x.so'", {"stale"}},
      {"ls: cannot access '/lustre/x': Transport endpoint is not connected", {"file-system-gone"}},
      {"cat: /lustre/x: Input/output error", {"file-system-gone"}},
      {"OSError: [Errno 24] Too many open files", {"nofile"}},
      {"RuntimeError: can't start new thread", {"nproc"}},
      {"OpenBLAS blas_thread_init: pthread_create failed for thread 63 of 64: Resource temporarily "
       "unavailable",
       {"nproc"}},
      {"bash: fork: retry: Resource temporarily unavailable", {"nproc"}},
      {"libgomp: Thread creation failed: Resource temporarily unavailable", {"nproc"}},
      {"fuse: device not found, try 'modprobe fuse' first", {"fuse-missing"}},
      {"dlopen(): error loading libfuse.so.2", {"fuse-missing"}},
      // root and packages
      {"sudo: The \"no new privileges\" flag is set, which prevents sudo from running as root.",
       {"sudo"}},
      {"bash: line 1: sudo: command not found", {"sudo"}},
      {"E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)",
       {"package-root"}},
      {"E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), are you root?",
       {"package-root"}},
      {"E: setgroups 65534 failed - setgroups (1: Operation not permitted)", {"package-root"}},
      {"E: Unable to locate package htop", {"package-lists"}},
      {"error: externally-managed-environment", {"pip-managed"}},
      {"ModuleNotFoundError: No module named 'einops'", {"python-module"}},
      {"/usr/bin/python3: No module named torch.distributed.run", {"python-module"}},
      {"ERROR: No matching distribution found for flash-attn==2.9", {"pip-none"}},
      {"ValueError: numpy.dtype size changed, may indicate binary incompatibility", {"numpy-abi"}},
      {"KeyError: 'getpwuid(): uid not found: 61234'", {"no-user"}},
      {"fatal: detected dubious ownership in repository at '/srv/app'", {"git-owner"}},
      {"Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon "
       "running?",
       {"docker"}},
      {"_tkinter.TclError: no display name and no $DISPLAY environment variable", {"display"}},
      {"qt.qpa.xcb: could not connect to display", {"display"}},
      {"bash: warning: setlocale: LC_ALL: cannot change locale (de_DE.UTF-8)", {"locale"}},
      {"perl: warning: Setting locale failed.", {"locale"}},
      {"locale.Error: unsupported locale setting", {"locale"}},
      // network and rendezvous
      {"socket.gaierror: [Errno -3] Temporary failure in name resolution", {"name-resolution"}},
      {"curl: (6) Could not resolve host: pypi.org", {"name-resolution"}},
      {"ssh: Could not resolve hostname node07: Name or service not known", {"name-resolution"}},
      {"OSError: [Errno 101] Network is unreachable", {"network-none"}},
      {"OSError: We couldn't connect to 'https://huggingface.co' to load the files",
       {"network-none"}},
      {"huggingface_hub.utils._errors.LocalEntryNotFoundError: An error happened while trying to "
       "locate the file on the Hub",
       {"network-none"}},
      {"requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://x",
       {"rate-limit"}},
      {"toomanyrequests: You have reached your unauthenticated pull rate limit.", {"rate-limit"}},
      {"urllib.error.HTTPError: HTTP Error 429: Too Many Requests", {"rate-limit"}},
      {"OSError: You are trying to access a gated repo.", {"hf-gated"}},
      {"401 Client Error: Unauthorized for url: https://huggingface.co/meta-llama/x/resolve/main/c",
       {"hf-gated"}},
      {"ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
       "unable to get local issuer certificate (_ssl.c:1006)",
       {"certificate"}},
      {"curl: (60) SSL certificate problem: self-signed certificate in certificate chain",
       {"certificate"}},
      {"x509: certificate signed by unknown authority", {"certificate"}},
      {"torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while "
       "trying to connect to (node01, 29500).",
       {"rendezvous"}},
      {"[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to "
       "connect "
       "to 192.0.0.1:1234",
       {"rendezvous"}},
      {"torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/4 "
       "clients joined.",
       {"rendezvous"}},
      {"torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the "
       "C10d store has failed. See inner exception for details.",
       {"rendezvous"}},
      {"RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != "
       "nullptr. Unable to find address for: eth7",
       {"gloo-interface"}},
      {"RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:208] rp != nullptr. Unable to "
       "resolve hostname to a (local) address",
       {"gloo-interface"}},
      {"RuntimeError: Gloo connectFullMesh failed with "
       "[../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
       {"gloo-peer"}},
      {"RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by "
       "peer "
       "[10.0.0.7]:21345",
       {"gloo-peer"}},
      // messages of this project
      {"spank-container: --container-mounts: \"~/data:/data\": mount source must be a relative "
       "path "
       "(beginning with .), an absolute path, \"tmpfs\" or \"umount\" (hint: did you mean "
       "\"./~/data\"?)",
       {"mount-tilde"}},
      {"srun: error: spank-container: --container-mounts: \"$HOME/data:/data\": mount source must "
       "be "
       "a relative path (hint: did you mean \"./$HOME/data\"?)",
       {"mount-variable"}},
      {"spank-container: --container-mounts: \"z\": mount source must be a relative path (hint: "
       "did "
       "you mean \"./z\"?)",
       {"mount-docker"}},
      {"spank-container: --container-mounts: \"/a:/b;/x:/y\": unknown flag \"/y\" (hint: flags, "
       "joined "
       "by +: ro, rw, noexec, nofail, sqsh)",
       {"mount-separator"}},
      {"spank-container: --container-image: image: unknown scheme \"library:\" (hint: NAME)",
       {"image-library"}},
      {"scontainer: pull image \"docker.io/library/env:latest\": fetch manifest: repository \"x\" "
       "does not exist (hint: check the spelling)",
       {"image-command"}},
      {"spank-container: --container-name: a container with name \"w\" does not exist, and "
       "--container-image is not set",
       {"named-elsewhere"}},
      {"spank-container: --container-name: \"exec\" flag was passed: the container \"x\" is not "
       "running",
       {"container-name"}},
      {"pyxis: --container-mounts: source path does not exist: /no/such", {"mount-source"}},
      {"pyxis: couldn't chdir to /no/such: No such file or directory", {"workdir"}},
      {"srun: error: spank-container: --container-image specified multiple times",
       {"options-contradict"}},
      {"spank-container: both --container-writable and --container-readonly were specified",
       {"options-contradict"}},
      {"srun: error: spank-container: --container-image: argument required", {"option-empty"}},
      {"spank-container: --container-image: image \"r:99999/b\": port \"99999\" is not a number "
       "from 1 "
       "to 65535",
       {"image-name"}},
      {"spank-container: configuration \"/etc/spank-container/config.toml\", line 1: writeable: "
       "unknown key (hint: did you mean \"writable\"?)",
       {"site-config"}},
      {"spank-container: --container-save: target is a directory", {"save-directory"}},
      {"spank-container: --container-mounts: \"/x:/\": cannot mount on the container's root",
       {"mount-root"}},
      {"spank-container: set up the container: the leader exited unexpectedly", {"helper-ended"}},
      {"spank-container: node[01-02]: pull image \"registry:5000/pytoch:1.13\": repository "
       "\"pytoch\" "
       "does not exist (hint: check the spelling; for a private one, log in: scontainer login "
       "registry:5000)",
       {"own-message"}},
  };
  return kLines;
}

/// Lines that successful jobs print as well. Beside a failure they may be its cause.
inline const std::vector<Line>& passing_lines() {
  static const std::vector<Line> kPassing{
      {"node01:412:498 [0] NCCL INFO NET/IB : No device found.", {"ib-none"}},
      {"node01:412:498 [0] NCCL INFO Failed to open libibverbs.so[.1]", {"ib-library"}},
      {"node01:412:498 [0] NCCL INFO Count not open libibverbs.so", {"ib-library"}},
      {"NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.", {"nccl-plugin"}},
      {"NCCL INFO External network plugin libnccl-net.so is unsupported", {"nccl-plugin"}},
      {"node01:1:9 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net-ofi.so. Using internal "
       "network plugin.",
       {"ofi-plugin"}},
      {"srun: Job step creation temporarily disabled, retrying (Requested nodes are busy)",
       {"step-resources"}},
      {"WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError(': "
       "Failed "
       "to establish a new connection: [Errno 101] Network is unreachable')': /simple/pip/",
       {"network-none"}},
      {"HTTP Error 429 thrown while requesting GET https://huggingface.co/x. Retrying in 1s [Retry "
       "1/5].",
       {"rate-limit"}},
      {"[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - "
       "Address already in use).",
       {"port-taken"}},
      // github.com/pytorch/pytorch, TCPStore.cpp
      {"[W728 15:01:59.562622567 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to "
       "host 127.0.0.1:48315 - retrying (try=0): The client socket has timed out after 600000ms",
       {"rendezvous"}},
      {"2026-11-27 06:00:00 W tensorflow/dso_loader.cc:64] Could not load dynamic library "
       "'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file",
       {"lib-missing"}},
      {"[node01:7] mca_base_component_repository_open: unable to open mca_btl_openib: "
       "librdmacm.so.1: cannot open shared object file: No such file or directory (ignored)",
       {"lib-missing"}},
      {"ERROR: ld.so: object '/opt/x.so' from LD_PRELOAD cannot be preloaded (cannot open shared "
       "object file): ignored.",
       {"lib-missing"}},
      {"No module named 'apex': ModuleNotFoundError: No module named 'apex', falling back to torch",
       {"python-module"}},
      {"2026-11-27 06:00:00,123 INFO server: Address already in use, taking port 6007",
       {"port-taken"}}};
  return kPassing;
}
