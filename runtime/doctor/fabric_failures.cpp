#include "doctor/failure.hpp"

namespace spc {
namespace {

const std::vector<Failure> kFabricFailures{
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
};

}  // namespace

const std::vector<Failure>& fabric_failures() { return kFabricFailures; }

}  // namespace spc
