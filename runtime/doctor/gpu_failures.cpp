#include "doctor/failure.hpp"

namespace spc {
namespace {

// The numbers are those of cudaError_t and CUresult (driver_types.h, cuda.h).
const std::vector<Failure> kGpuFailures{
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
};

}  // namespace

const std::vector<Failure>& gpu_failures() { return kGpuFailures; }

}  // namespace spc
