#pragma once

#include <array>

#include "tool/command.hpp"

// Options and the further text of each command's help.

namespace spc {

inline constexpr std::array<OptionRow, 0> kNoOptions{};

inline constexpr OptionRow kPullOptions[] = {
    {"--platform", "OS/ARCH[/VARIANT]", "take the image for another machine than this one"},
    {"--pull", "newer|missing|always|never", "when the registry is asked about an image that is there"},
    {"--digest", nullptr, "print the digest that the image has there now, and fetch nothing"},
    {"-q,--quiet", nullptr, "print nothing but the digest"},
    {"-v,--verbose", nullptr, "say where the time went"},
};
inline constexpr char kPullHelp[] =
    "An ordinary user's images go to ~/.local/share/spank-container, root's to the node's store.\n"
    "The digest of each image is printed.\n\n"
    "examples:\n"
    "  scontainer pull debian:12\n"
    "  scontainer pull registry.example.org/team/app:1.4 nvcr.io/nvidia/pytorch:24.03-py3\n"
    "  scontainer pull --platform=linux/arm64 debian:12\n";

inline constexpr OptionRow kImagesOptions[] = {
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kImagesHelp[] =
    "STORE is \"own\" for your images and \"site\" for those of this node, of which only the public ones are shown.\n";

inline constexpr OptionRow kInspectOptions[] = {
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kInspectHelp[] =
    "IMAGE is a name, or the beginning of a digest. Shows settings, layers, and the versions of what matters for jobs,\n"
    "as far as the files of the image tell: operating system, libc, CUDA, MPI, PMIx, UCX, NCCL. Nothing of the image is run.\n\n"
    "examples:\n"
    "  scontainer inspect nvcr.io/nvidia/pytorch:24.03-py3\n"
    "  scontainer inspect --json debian:12 | jq .facts.os\n";

inline constexpr OptionRow kRmOptions[] = {
    {"-f,--force", nullptr, "an image that is not there is no error"},
};
inline constexpr char kRmHelp[] =
    "IMAGE is a name, or the beginning of a digest, which stands for all its names.\n"
    "Layers that another image has or that a container is using stay.\n";

inline constexpr OptionRow kGcOptions[] = {
    {"-y,--yes", nullptr, "do it; without this, it is only said what would be done"},
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kGcHelp[] =
    "Removes layers that no image has and that are older than a day, and images that lack layers. What is in use stays.\n";

inline constexpr OptionRow kRunOptions[] = {
    {"--mounts", "SRC[:DST[:FLAGS]][,...]", "show a file or directory inside; FLAGS joined by +: ro, bind, noexec"},
    {"--workdir", "PATH", "start in this directory instead of the image's"},
    {"--env", "NAME[,NAME...]|NAME=VALUE", "variables that keep the value they have outside, or get this one"},
    {"--device", "VENDOR/CLASS=NAME[,...]", "add these devices, as this machine's CDI files describe them"},
    {"--mount-home", nullptr, "show your home directory inside"},
    {"--no-mount-home", nullptr, "do not"},
    {"--writable", nullptr, "the container can be written to; what is written goes with it"},
    {"--readonly", nullptr, "it cannot, except /tmp and mounts"},
    {"--changes", "DIR", "keep what is written in this directory, and go on there next time"},
    {"--entrypoint", nullptr, "run COMMAND by the image's entrypoint, too"},
    {"--remap-root", nullptr, "be root inside, as far as your own files go: for apt, dnf and the like"},
    {"--name", "NAME", "name the container for scontainer exec"},
    {"--share", "KEY|no", "be in one container with all who say the same KEY; ranks of one mpirun or srun are anyway"},
    {"--platform", "OS/ARCH[/VARIANT]", "take the image for another machine than this one"},
    {"--pull", "newer|missing|always|never", "when the registry is asked about an image that is there"},
    {"-q,--quiet", nullptr, "do not show how the image is fetched"},
    {"--tty", nullptr, "accepted: the terminal is always passed on"},
};
inline constexpr char kRunHelp[] =
    "Without COMMAND the image's entrypoint and command are run; with it, COMMAND alone, as in a job. As in a job, too, you\n"
    "keep your user, groups, network and devices, /tmp is private, and the image's variables win over yours.\n"
    "An ordinary user needs no privilege: a user namespace and FUSE serve him. Root's container is that of a job of root.\n\n"
    "The exit status is the command's, 128 and the signal's number if it was killed, 125 if there could be no container,\n"
    "126 if the command cannot be executed, 127 if there is none.\n\n"
    "examples:\n"
    "  scontainer run debian:12 cat /etc/os-release\n"
    "  scontainer run --mounts=./data:/data:ro,/scratch --env=OMP_NUM_THREADS=4 app:1.4 /opt/app/run\n"
    "  scontainer run --remap-root --changes=./with-git debian:12 apt-get install -y git\n"
    "  scontainer run --changes=./with-git --readonly debian:12 git --version\n"
    "  mpirun -n 4 scontainer run app:1.4 /opt/app/solver\n";
inline constexpr char kShellHelp[] =
    "Yours if the image has it, else bash or sh. The options are those of run.\n\n"
    "examples:\n"
    "  scontainer shell --mount-home debian:12\n";
inline constexpr OptionRow kExecOptions[] = {
    {"--env", "NAME|NAME=VALUE", "a variable that has the value it has outside, or this one"},
};
inline constexpr char kExecHelp[] =
    "CONTAINER is the name given with run --name, or a process id. COMMAND gets the environment and the work directory of the\n"
    "container's own command.\n\n"
    "examples:\n"
    "  scontainer run --name=db postgres:16 & scontainer exec db ps aux\n";

inline constexpr OptionRow kImportOptions[] = {
    {"-q,--quiet", nullptr, "print nothing but the digest"},
};
inline constexpr char kImportHelp[] =
    "FILE is a .sqsh that we or enroot wrote, oci-archive:FILE, docker-archive:FILE, oci:DIR, or a tar archive of these.\n"
    "It is copied: the file can be removed afterwards.\n\n"
    "examples:\n"
    "  scontainer import ./app.sqsh app:1\n"
    "  scontainer import oci-archive:app.tar team/app:1.4\n";

inline constexpr OptionRow kExportOptions[] = {
    {"--changes", "DIR", "with what run --changes=DIR has kept"},
    {"-f,--force", nullptr, "replace FILE if it exists"},
};
inline constexpr char kExportHelp[] =
    "IMAGE is one of your store, or a path. FILE becomes a squashfs, which --container-image, scontainer run and enroot start;\n"
    "with oci-archive: before its name an OCI archive with one layer, for skopeo, podman and docker. It appears when it is "
    "complete.\n\n"
    "examples:\n"
    "  scontainer export debian:12 debian.sqsh\n"
    "  scontainer export debian:12 oci-archive:debian.tar\n";

inline constexpr OptionRow kLoginOptions[] = {
    {"-u,--username", "USER", "the user name; it is asked for otherwise"},
    {"--no-check", nullptr, "store the credentials without trying them at the registry"},
};
inline constexpr char kLoginHelp[] =
    "The password is asked for on a terminal, or is the first line of standard input; it is never an argument.\n"
    "It is tried at the registry and then stored where docker and podman look for it, too, or by their credential helper.\n\n"
    "examples:\n"
    "  scontainer login nvcr.io --username='$oauthtoken'\n"
    "  scontainer login registry.example.org -u alice < token\n";

inline constexpr OptionRow kInfoOptions[] = {
    {"--json", nullptr, "print JSON"},
};

inline constexpr OptionRow kDoctorOptions[] = {
    {"--job", nullptr, "look at what GPUs, NCCL and MPI need on this node; in a job, as a task: srun scontainer doctor --job"},
    {"--json", nullptr, "print JSON"},
    {"--registry", "HOST[:PORT]", "the registry to be reached, instead of the default one"},
};
inline constexpr char kDoctorHelp[] =
    "With FILE (- is standard input), what a job wrote: the failures of CUDA, NVML, NCCL, MPI, PMIx and UCX that it names, each "
    "with\n"
    "its cause, its cure and what to look at. Without: one line for each check of this machine: ok, warning (something is "
    "missing\n"
    "that not everybody needs) or failed, with the cure.\n\n"
    "--job checks GPUs and their driver, limits, /dev/shm, PMIx, addresses, InfiniBand and the settings of NCCL. What a step may do\n"
    "is known only in a step, so start it by srun, without container and with the options of the job that failed. It opens no\n"
    "device and changes nothing.\n\n"
    "The exit status is 0 if nothing is wrong, or FILE has nothing in it that is known; 1 if a check failed or a failure was\n"
    "recognised; 2 if FILE could not be read.\n\n"
    "examples:\n"
    "  scontainer doctor slurm-4711.out\n"
    "  srun --label ./train.sh 2>&1 | tee job.log; scontainer doctor job.log\n"
    "  srun --label --nodes=2 --ntasks-per-node=1 --gpus-per-task=1 --mpi=pmix scontainer doctor --job\n";

inline constexpr OptionRow kCdiOptions[] = {
    {"--json", nullptr, "list, show: print JSON"},
    {"-o,--output", "FILE", "generate: write this file instead of printing; its directory is /etc/cdi or /run/cdi"},
    {"--format", "yaml|json", "generate: what to write; as FILE's name ends if not given, else yaml"},
};
inline constexpr char kCdiHelp[] =
    "The Container Device Interface: a file in /etc/cdi or /run/cdi says for each device what of the node it needs in a "
    "container:\n"
    "nodes, libraries, variables. --container-device of srun and --device of run take the names.\n\n"
    "list      the devices of this machine\n"
    "show      what a container gets with DEVICE\n"
    "generate  a file for this machine's NVIDIA GPUs, for podman, docker and Apptainer, too; jobs need none\n\n"
    "Files must belong to root, like the directories above them; of two that describe a device the one in /run/cdi counts.\n"
    "Other vendors' tools write files for their devices: amd-ctk cdi generate, intel-cdi-specs-generator.\n\n"
    "examples:\n"
    "  scontainer cdi list\n"
    "  scontainer cdi show nvidia.com/gpu=0\n"
    "  scontainer cdi generate --output=/etc/cdi/nvidia.yaml\n"
    "  scontainer run --device=amd.com/gpu=all rocm/dev-ubuntu rocminfo\n";

inline constexpr char kCompletionHelp[] =
    "SHELL is bash.\n\n"
    "examples:\n"
    "  source <(scontainer completion bash)\n"
    "  scontainer completion bash > ~/.local/share/bash-completion/completions/scontainer\n";

}  // namespace spc
