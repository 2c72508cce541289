#include "doctor/failure.hpp"

namespace spc {
namespace {

const std::vector<Failure> kNcclFailures{
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
                  {"No such file", "nccl-"}},
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
};

}  // namespace

const std::vector<Failure>& nccl_failures() { return kNcclFailures; }

}  // namespace spc
