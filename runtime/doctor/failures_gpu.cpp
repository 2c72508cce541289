// Failures of GPUs, NCCL, MPI and fabrics.

#include "doctor/diagnose.hpp"

namespace spc {

namespace {

const std::vector<Failure> kGpuFailures{
    // CUDA and NVML. The numbers are those of cudaError_t and CUresult (driver_types.h, cuda.h).
    {.id = "cuda-no-device",
     .says = "CUDA sees no GPU (error 100)",
     .patterns = {{"CUDA_ERROR_NO_DEVICE"},
                  {"no CUDA-capable device"},
                  {"cudaErrorNoDevice"},
                  {"No CUDA GPUs are available"}},
     .cause = "the step has no device node, or its device cgroup denies access",
     .cure = "request GPUs for this step (--gpus-per-task=1, --gres=gpu:1); unset "
             "CUDA_VISIBLE_DEVICES if it is empty",
     .look = "srun ls -l /dev/nvidia*; echo $SLURM_STEP_GPUS $CUDA_VISIBLE_DEVICES "
             "$NVIDIA_VISIBLE_DEVICES",
     .checks = {"GPU nodes", "GPUs of the step", "NVIDIA_VISIBLE_DEVICES"}},
    {.id = "cuda-driver-old",
     .says = "no driver library found, or too old for the program's CUDA (error 35)",
     .patterns = {{"driver version is insufficient"},
                  {"cudaErrorInsufficientDriver"},
                  {"The NVIDIA driver on your system is too old"},
                  {"Found no NVIDIA driver on your system"}},
     .cause = "libcuda.so.1 was not injected (no GPU requested, or the capabilities lack "
              "\"compute\"), or the "
              "node's driver is older than the CUDA of the image",
     .cure = "use --container-gpu; NVIDIA_DRIVER_CAPABILITIES must have compute; otherwise use an "
             "image with an older CUDA, "
             "or one with cuda-compat on a data center GPU",
     .look = "compare the driver in /proc/driver/nvidia/version with the CUDA of the image "
             "(scontainer inspect IMAGE)",
     .checks = {"driver", "NVIDIA_VISIBLE_DEVICES"}},
    {.id = "cuda-stub",
     .says = "the stub of libcuda was found before the driver's (error 34)",
     .patterns = {{"cudaErrorStubLibrary"},
                  {"CUDA_ERROR_STUB_LIBRARY"},
                  {"CUDA driver is a stub library"}},
     .cause =
         "LD_LIBRARY_PATH contains a directory .../stubs: its libcuda.so.1 is for linking only",
     .cure = "remove the directory from LD_LIBRARY_PATH (--container-env=LD_LIBRARY_PATH=...) and "
             "from the image",
     .look = "echo $LD_LIBRARY_PATH in the container",
     .checks = {"stub libraries"}},
    {.id = "cuda-mismatch",
     .says = "libcuda does not match the kernel driver (error 803)",
     .patterns = {{"unsupported display driver"},
                  {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
                  {"cudaErrorSystemDriverMismatch"}},
     .cause = "a libcuda in the image (cuda-compat, or installed with it) precedes the node's, or "
              "the driver was updated "
              "and its module not reloaded",
     .cure = "remove /usr/local/cuda/compat from LD_LIBRARY_PATH; on the node: reload the driver "
             "or reboot",
     .look = "which libcuda.so.1 is loaded (LD_DEBUG=libs); compare its version with "
             "/proc/driver/nvidia/version",
     .checks = {"driver"}},
    {.id = "cuda-compat-unsupported",
     .says = "cuda-compat is not supported on this GPU (error 804)",
     .patterns = {{"forward compatibility was attempted"},
                  {"CUDA_ERROR_COMPAT_NOT_SUPPORTED"},
                  {"cudaErrorCompatNotSupportedOnDevice"}},
     .cause = "the libcuda in the image's compat directory was used on a GPU that is not a data "
              "center GPU",
     .cure = "remove the compat directory from LD_LIBRARY_PATH, or use an image whose CUDA the "
             "node's driver supports",
     .look = "which libcuda.so.1 is loaded (LD_DEBUG=libs): one in a directory compat is the cause",
     .checks = {"driver"}},
    {.id = "cuda-fabric",
     .says = "the GPUs' NVLink fabric is not ready (error 802)",
     .patterns = {{"system not yet initialized"},
                  {"CUDA_ERROR_SYSTEM_NOT_READY"},
                  {"cudaErrorSystemNotReady"}},
     .cause = "the node has NVSwitches, but its fabric manager is not running or not ready",
     .cure =
         "on the node: systemctl status nvidia-fabricmanager; its version must match the driver's",
     .look = "nvidia-smi -q | grep -A2 Fabric on the node",
     .checks = {"fabric manager"},
     .told_by = {"nccl-nvls-bind"}},
    {.id = "cuda-unknown",
     .says = "CUDA fails to initialize, reason unknown (error 999)",
     .patterns = {{"CUDA_ERROR_UNKNOWN"},
                  {"cudaErrorUnknown"},
                  {"CUDA unknown error"},
                  {"cuInit", "unknown error"},
                  {"cuInit", "999"},
                  {"cudaGetDeviceCount", "999"},
                  {"cudaGetDeviceCount", "unknown error"},
                  {"unknown error (999)"},
                  {"CUDA error: unknown error"}},
     .cause = "/dev/nvidia-uvm is missing or not accessible",
     .cure = "on the node: modprobe nvidia-uvm && nvidia-modprobe -u -c0, before slurmd; gres.conf "
             "must not restrict it",
     .look = "ls -l /dev/nvidia-uvm; grep nvidia_uvm /proc/modules",
     .checks = {"nvidia-uvm"}},
    {.id = "nvml-mismatch",
     .says = "the driver's library and kernel module have different versions",
     .patterns = {{"Driver/library version mismatch"}},
     .cause = "the driver was updated while its old module is loaded, or files of the old one are "
              "still in use (a CDI "
              "specification, a library in the image)",
     .cure = "on the node: reload the module or reboot; recreate the CDI specification (scontainer "
             "cdi generate)",
     .look = "cat /sys/module/nvidia/version and ls -l the node's libcuda.so.1",
     .checks = {"driver", "CDI"}},
    {.id = "nvml-lost",
     .says = "GPUs became unavailable during the job",
     .patterns = {{"Failed to initialize NVML: Unknown Error"}},
     .cause = "the rules of the device cgroup were replaced during the job: by systemctl "
              "daemon-reload, or by a container "
              "runtime of the node",
     .cure = "start the job again; on the node: set Delegate=yes in slurmd's unit",
     .look = "the node's journal (journalctl) at that time: was systemd reloaded",
     .checks = {"GPU nodes"}},
    {.id = "libcuda-missing",
     .says = "the loader finds no libcuda.so.1",
     .patterns = {{"error while loading shared libraries: libcuda.so.1"},
                  {"libcuda.so.1: cannot open shared object file"},
                  {"Error loading shared library libcuda.so.1"}},
     .cause = "the driver was not injected: no GPU requested, capabilities with utility only, or "
              "an image based on "
              "musl (Alpine), which cannot load it",
     .cure =
         "use --container-gpu; NVIDIA_DRIVER_CAPABILITIES=compute,utility; use an image with glibc",
     .look = "srun --container-explain shows what the GPU hook found",
     .checks = {"driver", "NVIDIA_VISIBLE_DEVICES"}},

    {.id = "cuda-no-kernel",
     .says = "the program has no code for this GPU (error 209)",
     .patterns = {{"no kernel image is available"},
                  {"cudaErrorNoKernelImageForDevice"},
                  {"CUDA_ERROR_NO_BINARY_FOR_GPU"},
                  {"is not compatible with the current PyTorch installation"}},
     .cause = "the program or PyTorch was built for other GPUs: usually it is older than the GPU",
     .cure = "use an image with a newer CUDA or PyTorch, or build for this GPU: "
             "TORCH_CUDA_ARCH_LIST=9.0 pip install ..., nvcc -arch=sm_90",
     .look = "nvidia-smi --query-gpu=compute_cap --format=csv; python3 -c 'import torch; "
             "print(torch.cuda.get_arch_list())'"},
    {.id = "cuda-ptx",
     .says = "the driver cannot compile the program's PTX (error 222)",
     .patterns = {{"the provided PTX was compiled with an unsupported toolchain"},
                  {"cudaErrorUnsupportedPtxVersion"},
                  {"CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}},
     .cause = "the program was built with a newer CUDA than the node's driver supports",
     .cure =
         "use an image with the CUDA that nvidia-smi prints, or older; on a data center GPU one "
         "with cuda-compat",
     .look = "nvidia-smi | grep CUDA; scontainer inspect IMAGE",
     .checks = {"driver"}},
    {.id = "cuda-memory",
     .says = "the GPU's memory is full (error 2)",
     .patterns = {{"CUDA out of memory"},
                  {"HIP out of memory"},
                  {"CUDA error: out of memory"},
                  {"CUDA error", "out of memory"},
                  {"Cuda failure", "out of memory"},
                  {"cudaErrorMemoryAllocation"},
                  {"CUDA_ERROR_OUT_OF_MEMORY"},
                  {"cudaMalloc", "out of memory"},
                  {"CUBLAS_STATUS_ALLOC_FAILED"},
                  {"RESOURCE_EXHAUSTED", "ut of memory"}},
     .cause = "the model and its batch need more than the GPU has, or another process uses the "
              "same GPU: all ranks of a node on GPU 0, or a process of an ended job",
     .cure =
         "reduce the batch size; let each rank use its GPU (--gpus-per-task=1, or "
         "torch.cuda.set_device(LOCAL_RANK)); PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; "
         "for JAX XLA_PYTHON_CLIENT_MEM_FRACTION=0.8",
     .look = "srun --jobid=JOB --overlap nvidia-smi"},
    {.id = "cuda-busy",
     .says = "the GPU is used by another process (error 46)",
     .patterns = {{"CUDA-capable device(s) is/are busy or unavailable"},
                  {"all CUDA-capable devices are busy or unavailable"},
                  {"cudaErrorDevicesUnavailable"}},
     .cause = "the GPU is in exclusive compute mode and has a process, or is being reset",
     .cure = "start one process per GPU (--ntasks-per-gpu=1), or on the "
             "node: nvidia-smi -c DEFAULT",
     .look = "srun --jobid=JOB --overlap nvidia-smi -q -d COMPUTE,PIDS",
     .checks = {"GPU nodes"}},
    {.id = "cuda-ordinal",
     .says = "the program asks for a GPU that the task does not have (error 101)",
     .patterns = {{"invalid device ordinal"},
                  {"cudaErrorInvalidDevice"},
                  {"CUDA_ERROR_INVALID_DEVICE"}},
     .cause = "the task sees fewer GPUs than the program expects: with --gpus-per-task=1 each task "
              "has one, number 0",
     .cure =
         "use device 0 in each task, or give the step's GPUs to all its tasks: --gpus-per-node=N "
         "with --gpu-bind=none; torchrun: --nproc-per-node=GPUs of the node",
     .look = "srun --label sh -c 'echo $CUDA_VISIBLE_DEVICES $SLURM_LOCALID; nvidia-smi -L'",
     .checks = {"GPUs of the step"}},
    {.id = "gpu-broken",
     .says = "a GPU of the node fails",
     .patterns = {{"uncorrectable ECC error"},
                  {"cudaErrorECCUncorrectable"},
                  {"CUDA_ERROR_ECC_UNCORRECTABLE"},
                  {"has fallen off the bus"},
                  {"GPU is lost"},
                  {"NVRM: Xid"},
                  {"Uncorrectable NVLink error"},
                  {"CUDA_ERROR_NVLINK_UNCORRECTABLE"}},
     .cause = "a hardware error of the GPU, its memory or its link",
     .cure =
         "submit again without the node: sbatch --exclude=NODE; tell the administrator the node "
         "and the line",
     .look = "on the node: dmesg | grep -i xid; nvidia-smi -q -d ECC,ROW_REMAPPER"},
    {.id = "cuda-access",
     .says = "a kernel accessed memory that it may not (error 700)",
     .patterns = {{"an illegal memory access was encountered"},
                  {"cudaErrorIllegalAddress"},
                  {"CUDA_ERROR_ILLEGAL_ADDRESS"},
                  {"device-side assert triggered"}},
     .cause = "an error of the program: an index out of range, or a library for another GPU",
     .cure =
         "CUDA_LAUNCH_BLOCKING=1 shows the kernel, compute-sanitizer PROGRAM the access; on the "
         "CPU an index out of range is named",
     .look = "if it happens on one node only, that GPU may be broken: sbatch --exclude=NODE"},
    {.id = "torch-no-cuda",
     .says = "this PyTorch is built without CUDA",
     .patterns = {{"Torch not compiled with CUDA enabled"}},
     .cause = "pip installed the CPU's wheel, perhaps into ~/.local, which precedes the image's",
     .cure = "PYTHONNOUSERSITE=1 ignores ~/.local; or pip install torch --index-url "
             "https://download.pytorch.org/whl/cu126",
     .look = "python3 -c 'import torch; print(torch.__version__, torch.__file__)'"},
    {.id = "cuda-toolkit",
     .says = "an extension is compiled, and the image has no CUDA compiler",
     .patterns = {{"CUDA_HOME environment variable is not set"},
                  {"CUDA_HOME does not exist, unable to compile"},
                  {"nvcc: command not found"},
                  {"nvcc: not found"},
                  {"No such file or directory: '", "/bin/nvcc'"}},
     .cause = "the image has the CUDA runtime only",
     .cure = "use the image's variant with the compiler (nvidia/cuda:TAG-devel, "
             "pytorch/pytorch:TAG-devel), or a wheel that is compiled already",
     .look = "scontainer inspect IMAGE"},
    {.id = "c-compiler",
     .says = "a kernel is compiled, and the image has no C compiler",
     .patterns = {{"Failed to find C compiler. Please specify via CC"},
                  {"error: command 'gcc' failed: No such file"},
                  {"error: command 'x86_64-linux-gnu-gcc' failed: No such file"},
                  {"InvalidCxxCompiler"}},
     .cause = "Triton, torch.compile or a Python package needs gcc",
     .cure = "use an image with gcc (TAG-devel), or add it: srun --container-remap-root "
             "--container-writable --container-save=new.sqsh apt-get install -y gcc; "
             "TORCHDYNAMO_DISABLE=1 does without",
     .look = "command -v gcc cc in the container"},
    // NCCL
    {.id = "shm-small",
     .says = "/dev/shm is too small",
     .patterns = {{"failed to extend /dev/shm/"},
                  {"Error while creating shared memory segment /dev/shm/nccl-"},
                  {"out of shared memory"},
                  {"insufficient shared memory (shm)"}},
     .cause = "/dev/shm is full, or a small separate file system",
     .cure = "use the node's: drop --container-mounts and namespaces that replace /dev/shm; remove "
             "files left by ended jobs",
     .look = "df -h /dev/shm; ls -l /dev/shm",
     .checks = {"/dev/shm"}},
    {.id = "shm-removed",
     .says = "shared memory was removed while the job used it",
     .patterns = {{"unlink shared memory", "failed"},
                  {"/dev/shm/nccl-", "No such file"},
                  {"No such file", "/dev/shm/nccl-"}},
     .cause =
         "systemd removes a user's shared memory when the last login session ends (RemoveIPC=yes)",
     .cure = "on the node: set RemoveIPC=no in /etc/systemd/logind.conf, then systemctl restart "
             "systemd-logind; until then: "
             "loginctl "
             "enable-linger",
     .look = "grep -r RemoveIPC /etc/systemd/logind.conf*",
     .checks = {"RemoveIPC"}},
    {.id = "ib-none",
     .says = "NCCL finds no InfiniBand device and uses sockets",
     .patterns = {{"NET/IB : No device found"}},
     .cause = "the node has none, or the container has /sys/class/infiniband without "
              "/dev/infiniband/uverbs*, or vice versa",
     .cure = "on a node with InfiniBand: load ib_uverbs; set MELLANOX_VISIBLE_DEVICES=all",
     .look = "ls /sys/class/infiniband /dev/infiniband in the container and on the host",
     .checks = {"InfiniBand"},
     .told_by = {"ib-library"}},
    {.id = "ib-library",
     .says = "the image lacks the InfiniBand library",
     .patterns = {{"Failed to open libibverbs.so"},
                  {"Count not open libibverbs.so"},
                  {"Could not open libibverbs.so"}},
     .cause = "NCCL loads libibverbs.so.1, but the image has no rdma-core",
     .cure = "install it in the image: libibverbs1 and ibverbs-providers (Debian, Ubuntu), "
             "libibverbs (Fedora, Rocky), "
             "rdma-core (SUSE, Arch)",
     .look = "",
     .checks = {"libibverbs"}},
    {.id = "memlock",
     .says = "memory cannot be locked for InfiniBand",
     .patterns = {{"ibv_create_cq", "failed"},
                  {"ibv_create_cq", "Cannot allocate memory"},
                  {"ibv_reg_mr", "Cannot allocate memory"},
                  {"set max locked memory (ulimit -l)"}},
     .cause = "the locked memory limit is too low",
     .cure = "on the node: set LimitMEMLOCK=infinity in slurmd's unit, and "
             "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
     .look = "srun sh -c 'ulimit -l'",
     .checks = {"locked memory"}},
    {.id = "nccl-interface",
     .says = "NCCL finds no network interface for bootstrap",
     .patterns = {{"Bootstrap : no socket interface found"}, {"no socket interface found"}},
     .cause = "NCCL_SOCKET_IFNAME names an interface that this node does not have, or the "
              "container has its own network",
     .cure = "unset NCCL_SOCKET_IFNAME (NCCL chooses the right interface on the node's network) or "
             "correct it, also in "
             "/etc/nccl.conf",
     .look = "ip -brief address on each node of the job",
     .checks = {"network addresses", "NCCL settings"}},
    {.id = "nccl-peer",
     .says = "NCCL lost or cannot reach another rank",
     .patterns = {{"NCCL", "Connection closed by remote peer"},
                  {"NCCL", "Connection refused"},
                  {"NCCL", "Connection reset by peer"},
                  {"socketStartConnect", "failed"},
                  {"socketPollConnect", "timed out"},
                  {"NCCL", "No route to host"},
                  {"ncclRemoteError"}},
     .cause = "another rank exited first, as seen by the others; or a firewall, or an interface "
              "that does not "
              "lead to the other nodes (NCCL_SOCKET_IFNAME)",
     .cure = "check the first error of the rank that failed first; if none failed: let NCCL choose "
             "the interface, and open the "
             "ports between the nodes",
     .look = "srun --label prefixes each line with its task; sort by time to find the first error",
     .checks = {"network addresses", "NCCL settings"},
     .told_by = {"cuda-no-device", "cuda-driver-old", "cuda-fabric", "cuda-unknown", "shm-small",
                 "memlock", "nccl-interface", "nccl-nvls-bind", "nccl-nvls-caps", "nccl-imex"}},
    {.id = "nccl-nvls-bind",
     .says = "NVLink SHARP cannot be set up",
     .patterns = {{"Failed to bind NVLink SHARP"}, {"(NVLS) Multicast", "CUDA error"}},
     .cause = "the fabric manager, the nodes in /dev/nvidia-caps or the IMEX channels are missing "
              "or not ready",
     .cure = "fix what `srun scontainer doctor --job` finds; until then: NCCL_NVLS_ENABLE=0, at "
             "some cost in speed",
     .look = "ls -l /dev/nvidia-caps /dev/nvidia-caps-imex-channels in the container",
     .checks = {"fabric manager", "IMEX channels"}},
    {.id = "nccl-nvls-caps",
     .says = "NVLink SHARP fails with an invalid argument",
     .patterns = {{"nvls.cc", "Cuda failure 1 'invalid argument'"},
                  {"nvls.cc", "Cuda failure 'invalid argument'"}},
     .cause = "/dev/nvidia-caps is not in the container, or its nodes are not accessible",
     .cure = "use --container-gpu; on the node: nvidia-modprobe must create the nodes; until then: "
             "NCCL_NVLS_ENABLE=0",
     .look = "ls -l /dev/nvidia-caps in the container and on the host",
     .checks = {"IMEX channels"}},
    {.id = "nccl-imex",
     .says = "an IMEX channel is not accessible (error 800)",
     .patterns = {{"Cuda failure 800"},
                  {"CUDA_ERROR_NOT_PERMITTED"},
                  {"Cuda failure", "'operation not permitted'"}},
     .cause = "memory is shared between nodes over NVLink, but the job's channel in "
              "/dev/nvidia-caps-imex-channels is missing "
              "or denied",
     .cure = "let Slurm create it (SwitchType=switch/nvidia_imex), or on the node: nvidia-imex and "
             "a channel with mode 0666; until "
             "then: NCCL_MNNVL_ENABLE=0",
     .look = "ls -l /dev/nvidia-caps-imex-channels in the step and in the container",
     .checks = {"IMEX channels"}},
    {.id = "nccl-plugin",
     .says = "a plugin does not match this NCCL",
     .patterns = {{"NET/Plugin: Failed to find", "symbol"},
                  {"NET/Plugin", "symbol"},
                  {"External network plugin", "is unsupported"}},
     .cause = "libnccl-net.so, of the site or of the image, was made for another version of NCCL",
     .cure = "use a plugin for the image's NCCL, or none: NCCL_NET_PLUGIN=none. NCCL then uses its "
             "own code for InfiniBand and "
             "sockets",
     .look = "NCCL_DEBUG=INFO prints NCCL's version and the loaded file; with aws-ofi-nccl and "
             "SHARP their versions",
     .checks = {"NCCL settings"}},
    {.id = "port-taken",
     .says = "the rendezvous port is in use",
     .patterns = {{"Address already in use"}, {"EADDRINUSE"}},
     .cause = "two steps or jobs on a node use the same MASTER_PORT; or a process of the last run "
              "is still running",
     .cure = "set a different MASTER_PORT for one of them, below the range in "
             "/proc/sys/net/ipv4/ip_local_port_range",
     .look = "ss -ltnp on the node of rank 0",
     .checks = {"MASTER_PORT"}},

    {.id = "nccl-duplicate",
     .says = "two ranks use the same GPU",
     .patterns = {{"Duplicate GPU detected"}},
     .cause = "each rank chose GPU 0, or more ranks than GPUs were started",
     .cure = "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before init_process_group; with "
             "srun: --ntasks-per-node=GPUs and LOCAL_RANK=$SLURM_LOCALID",
     .look = "srun --label sh -c 'echo $SLURM_LOCALID $CUDA_VISIBLE_DEVICES'",
     .checks = {"GPUs of the step"}},
    {.id = "ib-retry",
     .says = "InfiniBand or RoCE lost packets to another node",
     .patterns = {{"NET/IB", "Got completion from peer"},
                  {"NET/IB", "Got completion with error"},
                  {"IBV_WC_RETRY_EXC_ERR"},
                  {"IBV_WC_RNR_RETRY_EXC_ERR"},
                  {"ransport retry count exceeded"},
                  {"Receive-no-ready retry count exceeded"},
                  {"UCX", "Endpoint timeout"},
                  {"Remote access error on", "mlx5"}},
     .cause = "the other rank ended first, a link is down, or with RoCE the GID index, VLAN or "
              "flow control is wrong",
     .cure =
         "check the rank that failed first; NCCL_IB_HCA=mlx5_0 (an adapter whose link is up); "
         "RoCE: NCCL_IB_GID_INDEX=3, UCX_IB_GID_INDEX=3; without the fabric: NCCL_IB_DISABLE=1, "
         "UCX_TLS=tcp,self,sm",
     .look = "srun --label sh -c 'ibstat | grep -E \"CA|State|Rate\"'; show_gids; sbatch "
             "--exclude=NODE for a node that is always in it",
     .checks = {"InfiniBand"},
     .told_by = {"host-memory", "cuda-memory", "memlock"}},
    {.id = "nccl-timeout",
     .says = "a collective operation of NCCL did not end in time",
     .patterns = {{"Watchdog caught collective operation timeout"},
                  {"WorkNCCL(", "before timing out"},
                  {"Some NCCL operations have failed or timed out"},
                  {"Heartbeat monitor timed out! Process will be terminated"},
                  {"ProcessGroupNCCL's watchdog got stuck"},
                  {"ProcessGroup abort timed out"},
                  {"watchdog thread terminated with exception", "imeout"}},
     .cause =
         "one rank did not take part: it failed, ran out of memory, reads data slower than the "
         "others or calls another collective; or the network drops packets",
     .cure = "look for the first error of another rank: srun --label; TORCH_NCCL_TRACE_BUFFER_SIZE="
             "2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 names the rank; for long steps "
             "init_process_group(timeout=timedelta(hours=1))",
     .look = "NCCL_DEBUG=INFO; srun --jobid=JOB --overlap --label py-spy dump --pid PID",
     .checks = {"NCCL settings", "network addresses"},
     .told_by = {"host-memory", "cuda-memory", "shm-small", "nccl-peer", "ib-retry", "gpu-broken",
                 "cuda-access", "disk-full", "python-module", "nccl-duplicate"}},
    {.id = "nccl-system",
     .says = "a system call failed in NCCL",
     .patterns = {{"unhandled system error"}, {"ncclSystemError"}},
     .cause = "by frequency: /dev/shm is full, the network interface is wrong, memory cannot be "
              "locked for InfiniBand",
     .cure =
         "run it again with NCCL_DEBUG=WARN and give that output to scontainer doctor: the line "
         "before this one names the call",
     .look = "df -h /dev/shm; ulimit -l; ip -brief address in the task",
     .checks = {"/dev/shm", "locked memory", "network addresses"},
     .told_by = {"shm-small", "shm-removed", "memlock", "nccl-interface", "nccl-peer", "ib-retry",
                 "nccl-imex", "nofile", "nproc"}},
    {.id = "nccl-cuda",
     .says = "a CUDA call failed in NCCL",
     .patterns = {{"unhandled cuda error"}, {"ncclUnhandledCudaError"}},
     .cause = "by frequency: an old driver, no memory left on the GPU, a GPU that others use",
     .cure =
         "run it again with NCCL_DEBUG=WARN and give that output to scontainer doctor: the line "
         "before this one has CUDA's error",
     .look = "nvidia-smi in the task",
     .checks = {"driver", "GPU nodes"},
     .told_by = {"cuda-driver-old", "cuda-memory", "cuda-unknown", "cuda-mismatch", "cuda-busy",
                 "cuda-fabric", "cuda-no-kernel", "cuda-access", "gpu-broken", "nccl-nvls-bind",
                 "nccl-nvls-caps", "nccl-imex", "shm-small"}},
    // MPI, PMIx and UCX
    {.id = "pmix-network",
     .says = "PMIx finds no network interface",
     .patterns = {{"pmix_ifinit: unable to find network interfaces"}},
     .cause = "the container has its own network namespace: Slurm's PMIx server listens on the "
              "node's loopback",
     .cure = "drop --container-unshare=net: MPI between tasks needs the node's network",
     .look = "",
     .checks = {"network addresses"}},
    {.id = "pmix-variables",
     .says = "PMIx does not know its task",
     .patterns = {{"INVALID-NAMESPACE"}, {"PMIX_ERR_INVALID_NAMESPACE"}},
     .cause = "PMIX_NAMESPACE or PMIX_RANK did not reach the program",
     .cure = "do not clear the environment in a wrapper; do not set PMIX_* in the image or with "
             "--container-env",
     .look = "srun --mpi=pmix env | grep PMIX_",
     .checks = {"PMIx"}},
    {.id = "pmix-security",
     .says = "PMIx is configured for an authentication that the image lacks",
     .patterns = {{"Component:", "munge"}, {"psec", "munge", "not found"}},
     .cause = "PMIX_MCA_psec names munge, but the image's PMIx was built without it",
     .cure = "unset PMIX_MCA_psec, and do not keep it with --container-env: client and server "
             "negotiate",
     .look = "srun env | grep PMIX_MCA",
     .checks = {"PMIx"}},
    {.id = "pmix-data",
     .says = "PMIx cannot use the shared memory of its server",
     .patterns = {{"gds_ds12_lock"},
                  {"gds_ds21_lock"},
                  {"GDS framework"},
                  {"gds_shmem", "FILE-OPEN-FAILURE"},
                  {"gds_shmem", "FILE_OPEN_FAILURE"}},
     .cause = "the server's directory (PMIX_SERVER_TMPDIR) is not visible in the container, or "
              "PMIX_MCA_gds requires a "
              "component that "
              "image and Slurm do not share",
     .cure = "unset PMIX_MCA_gds; do not mount anything over Slurm's spool directory or over "
             "PMIx's directory in /tmp",
     .look = "ls -ld $PMIX_SERVER_TMPDIR in the task",
     .checks = {"PMIx"}},
    {.id = "pmi-none",
     .says = "Open MPI cannot reach Slurm's PMI",
     .patterns = {{"OPAL ERROR: Unreachable", "ext3x_client"},
                  {"not built with SLURM's PMI support"},
                  {"PMIX ERROR", "UNREACHABLE"},
                  {"direct launched using \"srun\""}},
     .cause =
         "by frequency: the step has no PMIx (no --mpi=pmix); the user in the container differs "
         "(--container-remap-root), which the server rejects; the container has its own network; "
         "PMIX_* is missing",
     .cure = "srun --mpi=pmix; --container-remap-root needs munged on the node and libmunge.so.2 "
             "in the image, or "
             "PMIxEnv=PMIX_MCA_psec=none in mpi.conf (the server then trusts every local user)",
     .look = "srun --mpi=list; echo $SLURM_MPI_TYPE $PMIX_NAMESPACE in the task",
     .checks = {"MPI of the step", "PMIx", "network addresses"},
     .told_by = {"pmix-network", "pmix-variables", "pmix-security"}},
    {.id = "cma-namespaces",
     .says = "ranks on one node are in different user namespaces",
     .patterns = {{"cma-different-user-namespace"},
                  {"not available due to different user namespaces"},
                  {"different user namespaces"}},
     .cause = "each rank has its own container, so the kernel denies access to other ranks' "
              "memory; messages of 4 MiB "
              "and more hang",
     .cure = "use one container per node and step, as with --container-image: start the ranks with "
             "srun, "
             "without another runtime in it. Otherwise: "
             "OMPI_MCA_btl_vader_single_copy_mechanism=none, UCX_TLS=^cma",
     .look = "readlink /proc/self/ns/user in each task",
     .checks = {"ptrace scope"}},
    {.id = "ucx-unreachable",
     .says = "UCX cannot reach a rank",
     .patterns = {{"pml_ucx", "unreachable"},
                  {"UCX", "no such device"},
                  {"UCX", "Destination is unreachable"},
                  {"UCX", "no active messages transport"}},
     .cause = "ranks on one node do not share IPC or PID namespaces or /dev/shm, or "
              "UCX_NET_DEVICES or UCX_TLS names something "
              "that does not exist. A latency above 100 us within a node has the same cause: UCX "
              "fell back to TCP",
     .cure = "let the ranks on a node share the container and its namespaces (the default); unset "
             "UCX_TLS and UCX_NET_DEVICES",
     .look = "UCX_LOG_LEVEL=info shows the transports in use; readlink /proc/self/ns/{ipc,pid} in "
             "each task",
     .checks = {"/dev/shm", "InfiniBand"}},
    {.id = "mpi-unreachable",
     .says = "Open MPI has no transport between two ranks",
     .patterns = {{"unreachable proc"},
                  {"pml-add-procs"},
                  {"processes are unable to reach each other for"}},
     .cause = "ranks on one node have different /dev/shm, or the fabric that the image's Open MPI "
              "was built for is missing",
     .cure = "share /dev/shm (the default); make the fabric available, or set "
             "OMPI_MCA_btl=self,vader,tcp OMPI_MCA_pml=ob1",
     .look = "stat -c %d /dev/shm in each task",
     .checks = {"/dev/shm", "InfiniBand"},
     .told_by = {"ucx-unreachable"}},

    {.id = "mpi-srun",
     .says = "mpirun in the container does not find srun",
     .patterns = {{"SLURM process starter for", "was unable to locate"},
                  {"usable \"srun\" command in its path"},
                  {"unable to locate srun"},
                  {"plm:slurm", "srun", "not found"}},
     .cause = "mpirun of a step on several nodes starts its daemons with srun, which is not in the "
              "image",
     .cure =
         "let srun start the ranks: srun -N2 -n8 --mpi=pmix --container-image=IMAGE PROGRAM; or "
         "keep mpirun and add --container-slurm; on one node: mpirun --mca plm isolated",
     .look = "srun --mpi=list"},
    {.id = "mpi-slots",
     .says = "mpirun has fewer slots than ranks",
     .patterns = {{"There are not enough slots available in the system"}},
     .cause = "mpirun counts the step's tasks: with srun -n1 mpirun -n 4 that is one",
     .cure =
         "let srun start the ranks: srun -n4 --mpi=pmix PROGRAM; or mpirun --oversubscribe -n 4",
     .look = "echo $SLURM_NTASKS $SLURM_CPUS_PER_TASK"},
    {.id = "mpi-root",
     .says = "mpirun refuses to run as root",
     .patterns = {{"has detected an attempt to run as root"}},
     .cause = "with --container-remap-root the user is root in the container",
     .cure = "drop --container-remap-root, or set OMPI_ALLOW_RUN_AS_ROOT=1 "
             "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
     .look = "id -u in the container"},
    {.id = "mpi-daemon",
     .says = "mpirun lost or cannot start its daemon on another node",
     .patterns = {{"ORTE was unable to reliably start one or more daemons"},
                  {"PRTE was unable to reliably start one or more daemons"},
                  {"ORTE has lost communication with a remote daemon"},
                  {"PRTE has lost communication with a remote daemon"},
                  {"An ORTE daemon has unexpectedly failed after launch"},
                  {"An ORTE daemon failed"},
                  {"daemon (pid", "died unexpectedly"},
                  {"unable to launch the specified application", "could not access"}},
     .cause = "mpirun starts orted or prted on the other nodes outside of the container, where it "
              "does not exist",
     .cure = "let srun start the ranks in the container: srun -N2 -n8 --mpi=pmix "
             "--container-image=IMAGE PROGRAM",
     .look = "srun --mpi=list; ompi_info --parsable --version in the container",
     .told_by = {"mpi-srun", "lib-missing", "mpi-missing"}},
    {.id = "mpi-init",
     .says = "MPI_Init fails",
     .patterns = {{"It looks like", "_init failed for some reason"},
                  {"It looks like MPI_INIT failed"},
                  {"OPAL ERROR: Not initialized"},
                  {"Fatal error in", "MPI_Init"},
                  {"Fatal error in", "internal_Init"},
                  {"MPID_Init"},
                  {"PMI2_Init failed"},
                  {"PMI_Init returned"}},
     .cause = "by frequency: the step has another PMI than the image's MPI (Open MPI 4 and 5 need "
              "pmix, MPICH and Intel MPI pmi2), no transport works, /tmp is full",
     .cure = "srun --mpi=pmix (Open MPI), srun --mpi=pmi2 (MPICH, Intel MPI); rule out the fabric: "
             "OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp, FI_PROVIDER=tcp",
     .look = "srun --mpi=list; scontainer inspect IMAGE prints the MPI and its PMIx",
     .checks = {"MPI of the step", "PMIx"},
     .told_by = {"pmi-none", "pmix-network", "pmix-variables", "pmix-security", "pmix-data",
                 "pmix-prefix", "ucx-unreachable", "mpi-unreachable", "libfabric-none", "intel-pmi",
                 "mpi-shm", "ucx-shm", "disk-full", "ofi-transport"}},
    {.id = "mpi-shm",
     .says = "Open MPI cannot create its shared memory",
     .patterns = {{"A system call failed during shared memory initialization"},
                  {"not enough space for", "shared-memory backing"},
                  {"not enough space for", "shared memory backing"},
                  {"PMIX ERROR", "OUT-OF-RESOURCE"},
                  {"PMIX ERROR", "NO-PERMISSIONS"}},
     .cause = "/dev/shm or /tmp, where it keeps its session directory, is full, read-only or of "
              "another user",
     .cure =
         "TMPDIR=/dev/shm or a directory of yours; OMPI_MCA_btl_vader_backing_directory=/dev/shm",
     .look = "df -h /tmp /dev/shm; ls -ld /tmp /tmp/ompi.* in the task",
     .checks = {"/dev/shm"},
     .told_by = {"disk-full"}},
    {.id = "mpi-plugin",
     .says = "Slurm does not have the MPI that was asked for",
     .patterns = {{"Invalid MPI type"},
                  {"invalid MPI type"},
                  {"cannot find mpi plugin"},
                  {"plugin name for mpi/"},
                  {"MPI: Cannot create context for"}},
     .cause = "--mpi names a plugin that this site's Slurm was not built with, or whose library is "
              "missing on the node",
     .cure =
         "choose one of srun --mpi=list, such as --mpi=pmi2; without PMIx Open MPI 5 runs on one "
         "node by mpirun",
     .look = "srun --mpi=list"},
    {.id = "ucx-shm",
     .says = "UCX cannot use the shared memory of another rank",
     .patterns = {{"mm_posix.c", "failed"},
                  {"mm_sysv.c", "failed"},
                  {"mm ep failed to connect to remote FIFO"},
                  {"ucp_ep_create", "Shared memory error"}},
     .cause = "the ranks have different PID, IPC or user namespaces: each was started in a "
              "container of its own",
     .cure = "start the ranks with srun --container-image, one container per node; otherwise "
             "UCX_POSIX_USE_PROC_LINK=n, or UCX_TLS=tcp,self",
     .look = "srun --label readlink /proc/self/ns/pid /proc/self/ns/ipc /proc/self/ns/user",
     .checks = {"/dev/shm", "ptrace scope"}},
    {.id = "ucx-device",
     .says = "UCX is told to use a device or transport that is not there",
     .patterns = {{"UCX", "network device", "is not available"},
                  {"UCX", "transport", "is not available"},
                  {"UCX", "no usable transports/devices"},
                  {"UCX", "no supported transports found"}},
     .cause = "UCX_NET_DEVICES or UCX_TLS was set for other nodes, or the image's UCX lacks the "
              "transport",
     .cure =
         "unset UCX_NET_DEVICES UCX_TLS, also in the job script and in /etc/ucx/ucx.conf; or name "
         "one of ucx_info -d",
     .look = "srun --label sh -c 'env | grep ^UCX; ls /sys/class/infiniband'; ucx_info -d",
     .checks = {"InfiniBand"}},
    // fabrics
    {.id = "intel-pmi",
     .says = "Intel MPI does not find Slurm's PMI",
     .patterns = {{"PMI server not found", "I_MPI_PMI_LIBRARY"}},
     .cause = "I_MPI_PMI_LIBRARY is not set, or names a file of the host that the container does "
              "not have",
     .cure = "srun --mpi=pmi2 on a node with Slurm's libpmi2.so.0, which is then added; or set "
             "I_MPI_PMI_LIBRARY to the image's",
     .look = "echo $SLURM_MPI_TYPE $I_MPI_PMI_LIBRARY in the task",
     .checks = {"MPI of the step"}},
    {.id = "libfabric-none",
     .says = "libfabric finds no provider for the fabric",
     .patterns = {{"OFI addrinfo() failed"},
                  {"fi_getinfo", "No data available"},
                  {"fi_getinfo: -61"},
                  {"NET/OFI", "No eligible providers"}},
     .cause = "the image's libfabric was built without the provider (efa, cxi, opx, psm2, verbs), "
              "a library that the provider needs is "
              "missing, or FI_PROVIDER names another one",
     .cure = "use an image with the vendor's libfabric, or let the site name the node's in "
             "fabric_libraries; unset FI_PROVIDER",
     .look = "FI_LOG_LEVEL=info in the task; fi_info -l; --container-explain says what was left "
             "out and why",
     .checks = {"EFA, Omni-Path, Slingshot", "InfiniBand"}},
    {.id = "ofi-plugin",
     .says = "NCCL does not find its plugin for libfabric",
     .patterns = {{"network AWS Libfabric not found"}, {"NET/Plugin: Could not find"}},
     .cause = "NCCL_NET or NCCL_NET_PLUGIN asks for aws-ofi-nccl, and neither the image nor "
              "fabric_libraries has libnccl-net.so, or it "
              "could not be loaded",
     .cure = "use an image with aws-ofi-nccl, or let the site name the node's in fabric_libraries: "
             "under the name that "
             "NCCL_NET_PLUGIN=NAME asks for, libnccl-net-NAME.so",
     .look = "NCCL_DEBUG=INFO; --container-explain says what was left out and why",
     .checks = {"NCCL settings", "EFA, Omni-Path, Slingshot"}},
    {.id = "cudart-missing",
     .says = "a library needs a CUDA runtime that the image does not have",
     .patterns = {{"libcudart.so", "cannot open shared object file"},
                  {"libcudart.so", "could not be found"}},
     .cause = "a plugin of the node was built for another release of CUDA than the image's",
     .cure = "let jobs choose a plugin by their CUDA with --container-device (a CDI file for "
             "each); or use an image with this release",
     .look = "ldd on the library in the container",
     .checks = {}},
    {.id = "cray-gtl",
     .says = "Cray MPICH is asked to use GPUs without its GTL library",
     .patterns = {{"GTL library is not linked"}},
     .cause = "MPICH_GPU_SUPPORT_ENABLED=1, and libmpi_gtl_cuda or libmpi_gtl_hsa is not loaded",
     .cure = "the site adds it: mpi_dependencies with the library, mpi_env with "
             "LD_PRELOAD=libmpi_gtl_cuda.so.0",
     .look = "",
     .checks = {}},
    {.id = "psm2",
     .says = "PSM2 cannot open the Omni-Path adapter",
     .patterns = {{"hfi_userinit"}, {"PSM2 can't open hfi unit"}, {"psm2_ep_open", "failed"}},
     .cause = "/dev/hfi1_* is missing or not accessible, all its contexts are in use, or memory "
              "cannot be locked",
     .cure = "check the mode and the device cgroup; with many ranks per node let them share "
             "contexts: PSM2_MAX_CONTEXTS_PER_JOB",
     .look = "ls -l /dev/hfi1_*; ulimit -l in the task",
     .checks = {"EFA, Omni-Path, Slingshot", "locked memory"}},
    {.id = "pmix-prefix",
     .says = "Open MPI 4 and its PMIx are told different places",
     .patterns = {{"help-pmix-pmix3x", "evars"}, {"PMIX_INSTALL_PREFIX", "OPAL_PREFIX"}},
     .cause = "PMIX_INSTALL_PREFIX differs from OPAL_PREFIX, or one of the two is set alone",
     .cure = "set both in the image, or neither; unload the host's MPI module before the job is "
             "submitted",
     .look = "env | grep -E 'OPAL_PREFIX|PMIX_INSTALL_PREFIX' in the task",
     .checks = {"PMIx"}},
    {.id = "ib-provider",
     .says = "libibverbs cannot load the provider of the adapter",
     .patterns = {{"couldn't load driver"}, {"no userspace device-specific driver found"}},
     .cause = "the image's libibverbs and its provider are of different releases, or the provider "
              "is missing",
     .cure = "install ibverbs-providers of the same release in the image; a site that adds a "
             "provider adds its libibverbs, too",
     .look = "ls /etc/libibverbs.d /usr/lib*/libibverbs /usr/lib/*/libibverbs in the task",
     .checks = {"libibverbs"}},
    {.id = "ofi-transport",
     .says = "libfabric failed to send or to open its endpoint",
     .patterns = {{"OFI poll failed"},
                  {"MPIDI_OFI_handle_cq_error"},
                  {"OFI endpoint open failed"},
                  {"OFI domain creation failed"},
                  {"OFI fi_open domain failed"},
                  {"OFI", "fi_domain", "failed"},
                  {"OFI", "fi_endpoint", "failed"},
                  {"NET/OFI", "completed with error"}},
     .cause = "another rank ended first, or the provider chose an interface that does not lead to "
              "the other nodes, or it ran out of a resource of the adapter",
     .cure =
         "check the rank that failed first; name the interface: FI_TCP_IFACE=eth0 or "
         "FI_PROVIDER=tcp; Slingshot: FI_CXI_RX_MATCH_MODE=software, FI_MR_CACHE_MONITOR=memhooks",
     .look = "FI_LOG_LEVEL=warn in the task; fi_info -l",
     .checks = {"EFA, Omni-Path, Slingshot", "network addresses"},
     .told_by = {"libfabric-none", "host-memory"}},
};

}  // namespace

const std::vector<Failure>& gpu_failures() { return kGpuFailures; }

}  // namespace spc
