#include "doctor/failure.hpp"

namespace spc {

const std::vector<Failure>& mpi_failures() {
  static const std::vector<Failure> kFailures{
      {.id = "pmix-network",
       .says = "PMIx finds no network interface",
       .patterns = {{"pmix_ifinit: unable to find network interfaces"}},
       .cause = "the container has a network namespace of its own: Slurm's PMIx server listens on the node's loopback",
       .cure = "leave the network namespace out: MPI between tasks needs the node's network",
       .look = "",
       .checks = {"network addresses"}},
      {.id = "pmix-variables",
       .says = "PMIx was not told which task it is",
       .patterns = {{"INVALID-NAMESPACE"}, {"PMIX_ERR_INVALID_NAMESPACE"}},
       .cause = "PMIX_NAMESPACE or PMIX_RANK has been lost on the way to the program",
       .cure = "do not clear the environment in a wrapper; do not set PMIX_* in the image or with --container-env",
       .look = "srun --mpi=pmix env | grep PMIX_",
       .checks = {"PMIx"}},
      {.id = "pmix-security",
       .says = "PMIx is forced to a way of authentication that the image does not have",
       .patterns = {{"Component:", "munge"}, {"psec", "munge", "not found"}},
       .cause = "PMIX_MCA_psec names munge, and the image's PMIx was built without it",
       .cure = "unset PMIX_MCA_psec, and do not keep it with --container-env: client and server agree by themselves",
       .look = "srun env | grep PMIX_MCA",
       .checks = {"PMIx"}},
      {.id = "pmix-data",
       .says = "PMIx cannot use the shared memory of its server",
       .patterns = {{"gds_ds12_lock"}, {"gds_ds21_lock"}, {"GDS framework"}, {"gds_shmem", "FILE-OPEN-FAILURE"}},
       .cause = "the server's directory (PMIX_SERVER_TMPDIR) is not visible in the container, or PMIX_MCA_gds forces a way that "
                "image and Slurm do not share",
       .cure = "unset PMIX_MCA_gds; do not mount anything over Slurm's spool directory or over PMIx's directory in /tmp",
       .look = "ls -ld $PMIX_SERVER_TMPDIR in the task",
       .checks = {"PMIx"}},
      {.id = "pmi-none",
       .says = "OpenMPI does not reach Slurm's PMI",
       .patterns = {{"OPAL ERROR: Unreachable", "ext3x_client"},
                    {"not built with SLURM's PMI support"},
                    {"PMIX ERROR", "UNREACHABLE"},
                    {"direct launched using \"srun\""}},
       .cause = "in order of frequency: the step has no PMIx (no --mpi=pmix); the user inside is another one "
                "(--container-remap-root), which the server refuses; the container has its own network; PMIX_* is missing",
       .cure = "srun --mpi=pmix; --container-remap-root needs munged on the node and libmunge.so.2 in the image, or "
               "PMIxEnv=PMIX_MCA_psec=none in mpi.conf (the server then trusts every local user)",
       .look = "srun --mpi=list; echo $SLURM_MPI_TYPE $PMIX_NAMESPACE in the task",
       .checks = {"MPI of the step", "PMIx", "network addresses"},
       .told_by = {"pmix-network", "pmix-variables", "pmix-security"}},
      {.id = "cma-namespaces",
       .says = "ranks of one node are in different user namespaces",
       .patterns = {{"cma-different-user-namespace"},
                    {"not available due to different user namespaces"},
                    {"different user namespaces"}},
       .cause = "each rank has a container of its own, so that the kernel lets none read another's memory; messages of 4 MiB "
                "and more then hang",
       .cure =
           "one container for all tasks of a node and step, which is what --container-image makes: start the ranks with srun, "
           "without a runtime of their own inside. Else: OMPI_MCA_btl_vader_single_copy_mechanism=none, UCX_TLS=^cma",
       .look = "readlink /proc/self/ns/user in each task",
       .checks = {"ptrace scope"}},
      {.id = "ucx-unreachable",
       .says = "UCX does not reach a rank",
       .patterns = {{"pml_ucx", "unreachable"},
                    {"UCX", "no such device"},
                    {"UCX", "Destination is unreachable"},
                    {"UCX", "no active messages transport"}},
       .cause = "ranks of one node do not share IPC or process namespaces or /dev/shm, or UCX_NET_DEVICES or UCX_TLS names what "
                "is not there. A latency above 100 us within a node has the same cause: UCX has gone over to TCP",
       .cure =
           "share the container and its namespaces among the ranks of a node (the default); unset UCX_TLS and UCX_NET_DEVICES",
       .look = "UCX_LOG_LEVEL=info says which transports are used; readlink /proc/self/ns/{ipc,pid} in each task",
       .checks = {"/dev/shm", "InfiniBand"}},
      {.id = "mpi-unreachable",
       .says = "OpenMPI has no way between two ranks",
       .patterns = {{"unreachable proc"}, {"pml-add-procs"}, {"processes are unable to reach each other for"}},
       .cause = "ranks of one node have different /dev/shm, or the fabric that the image's OpenMPI was built for is not there",
       .cure = "share /dev/shm (the default); let the fabric into the container, or OMPI_MCA_btl=self,vader,tcp OMPI_MCA_pml=ob1",
       .look = "stat -c %d /dev/shm in each task",
       .checks = {"/dev/shm", "InfiniBand"},
       .told_by = {"ucx-unreachable"}},
  };
  return kFailures;
}

}  // namespace spc
