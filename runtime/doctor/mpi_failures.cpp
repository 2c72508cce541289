#include "doctor/failure.hpp"

namespace spc {
namespace {

const std::vector<Failure> kMpiFailures{
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
};

}  // namespace

const std::vector<Failure>& mpi_failures() { return kMpiFailures; }

}  // namespace spc
