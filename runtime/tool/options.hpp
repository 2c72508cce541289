#pragma once

#include <array>

#include "tool/command.hpp"

// Options and help texts of each command.

namespace spc::tool {

inline constexpr std::array<OptionRow, 0> kNoOptions{};

inline constexpr OptionRow kPullOptions[] = {
    {"--platform", "OS/ARCH[/VARIANT]", "select this platform instead of this machine's"},
    {"--pull", "newer|missing|always|never",
     "when to query the registry for an image that is in the store"},
    {"--digest", nullptr, "print the digest the registry has now, without pulling"},
    {"--shared", nullptr, "pull into the site's shared store only: as root or the service user"},
    {"-o,--output", "FILE", "write an oras:// or https:// image unchanged to FILE"},
    {"-f,--force", nullptr, "overwrite FILE"},
    {"-q,--quiet", nullptr, "print only the digest"},
    {"-v,--verbose", nullptr, "print a timing breakdown"},
};
inline constexpr char kPullHelp[] =
    "Images of a user go to ~/.local/share/spank-container, images of root to the node's store.\n"
    "Prints the digest of each image. With --shared nodes find it in the shared store: public "
    "images only.\n"
    "IMAGE can also be a SIF or squashfs file: oras://NAME (a registry artifact) or "
    "https://HOST/FILE[#sha256=HEX]. The server is not\n"
    "queried again except with --pull=always. For use in jobs, write the file with --output.\n\n"
    "examples:\n"
    "  scontainer pull debian:12\n"
    "  scontainer pull registry.example.org/team/app:1.4 nvcr.io/nvidia/pytorch:24.03-py3\n"
    "  scontainer pull --platform=linux/arm64 debian:12\n"
    "  scontainer pull --output=lolcow.sif oras://ghcr.io/apptainer/lolcow\n";

inline constexpr OptionRow kImagesOptions[] = {
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kImagesHelp[] =
    "STORE is \"own\" for the user's images, \"site\" for those of the node. Only root sees the "
    "node's private images, and\n"
    "the tags that users have asked for, which scontainer rm takes.\n"
    "For root and the service user also \"shared\": those of the shared store, by the repository "
    "they came from.\n";

inline constexpr OptionRow kCatalogueOptions[] = {
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kCatalogueHelp[] =
    "With NAME, prints only its image.\n\n"
    "examples:\n"
    "  scontainer catalogue\n"
    "  srun --container-image=\"$(scontainer catalogue pytorch)\" python3 train.py\n";

inline constexpr OptionRow kInspectOptions[] = {
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kInspectHelp[] =
    "IMAGE is a name, the prefix of a digest, or the path of a .sqsh or .sif file or a directory. "
    "Shows the configuration, labels,\n"
    "layers, and versions found in the image's files: operating system, libc, CUDA and the driver "
    "it needs, MPI, PMIx, UCX, NCCL,\n"
    "ROCm, Python, frameworks. Nothing in the image is executed. Of an image that is not pulled, "
    "what its configuration says.\n\n"
    "examples:\n"
    "  scontainer inspect nvcr.io/nvidia/pytorch:24.03-py3\n"
    "  scontainer inspect --json debian:12 | jq .facts.os\n";

inline constexpr OptionRow kRmOptions[] = {
    {"-f,--force", nullptr, "ignore images that do not exist"},
};
inline constexpr char kRmHelp[] =
    "IMAGE is a name, or the prefix of a digest, which removes all its names.\n"
    "Layers of other images or running containers are kept.\n";

inline constexpr OptionRow kGcOptions[] = {
    {"-y,--yes", nullptr, "remove them; by default only list what would be removed"},
    {"--shared", nullptr, "clean the site's shared store instead: as root or the service user"},
    {"--older", "DAYS", "with --shared: also what nobody has used for so many days"},
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kGcHelp[] =
    "Lists layers that belong to no image and are older than a day, and images with missing "
    "layers. Layers in use are kept.\n"
    "For root, also containers of --container-name that nobody has used for container_ttl seconds: "
    "see spank-container.conf(5).\n"
    "With --shared: of the shared store what exceeds max_size, the least recently used first, and "
    "files of nodes that died.\n\n"
    "examples:\n"
    "  scontainer gc --yes\n"
    "  scontainer gc --shared --older=30 --yes\n";

inline constexpr OptionRow kContainersOptions[] = {
    {"--node", "NODE", "select containers on this node"},
    {"--job", "JOB", "select the container of this job (container_scope)"},
    {"-f,--force", nullptr, "remove a container in use (root), replace an existing file"},
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kContainersHelp[] =
    "list            the containers of --container-name and, on this node, of steps that run; for "
    "root, those of all users in this\n"
    "                node's store, with the size of their changes on the disk; for everybody, also "
    "those of scontainer run\n"
    "inspect NAME    one of them as JSON\n"
    "rm NAME...      remove containers; the files of one in use are removed when its last step "
    "ends\n"
    "export NAME FILE  write a container to a squashfs file\n\n"
    "For users, rm and export run a step on the container's node: in the current job if it has "
    "that node, otherwise in a new job.\n"
    "For root, NAME can be USER/NAME.\n\n"
    "examples:\n"
    "  scontainer containers\n"
    "  scontainer containers rm tools --node=node01\n"
    "  scontainer containers export tools tools.sqsh\n";

inline constexpr char kRunHelp[] =
    "Without COMMAND, run the image's entrypoint and command; with it, run COMMAND alone, as in a "
    "job.\n"
    "The container keeps the user, groups, network and devices, /tmp is private, and the image's "
    "variables override the user's.\n"
    "Users need no privileges: the container uses a user namespace and FUSE. Root gets the "
    "container of a job of root.\n\n"
    "The exit status is the command's, 128 + N if signal N killed it, 125 if the container could "
    "not be set up,\n"
    "126 if the command cannot be executed, 127 if it is not found.\n\n"
    "examples:\n"
    "  scontainer run debian:12 cat /etc/os-release\n"
    "  scontainer run --mounts=./data:/data:ro,/scratch --env=OMP_NUM_THREADS=4 app:1.4 "
    "/opt/app/run\n"
    "  scontainer run --remap-root --changes=./with-git debian:12 apt-get install -y git\n"
    "  scontainer run --changes=./with-git --readonly debian:12 git --version\n"
    "  mpirun -n 4 scontainer run app:1.4 /opt/app/solver\n\n"
    "Equivalent options of Apptainer, docker and podman are accepted: -B, -v, -w, -e, -H, -c, -it, "
    "--rm, --nv, --gpus all, --pwd,\n"
    "--writable-tmpfs, --fakeroot.\n";
inline constexpr char kShellHelp[] =
    "The user's shell if the image has it, otherwise bash or sh. Takes the options of run.\n\n"
    "examples:\n"
    "  scontainer shell --mount-home debian:12\n";
inline constexpr OptionRow kExecOptions[] = {
    {"--env", "NAME|NAME=VALUE", "pass this host variable, or set NAME=VALUE"},
};
inline constexpr char kExecHelp[] =
    "CONTAINER is the name given with run --name, or a process ID. COMMAND runs with the "
    "environment and work directory of the\n"
    "container's own command. It can also be JOB or JOB.STEP: srun then runs COMMAND in the step's "
    "container, on its first node\n"
    "(default: the job's latest step).\n\n"
    "examples:\n"
    "  scontainer run -d --name=db postgres:16; scontainer exec db ps aux\n"
    "  scontainer exec 4711.0 nvidia-smi\n";
inline constexpr char kAttachHelp[] =
    "As scontainer exec JOB[.STEP] with a shell: bash if the image has it, otherwise sh. Run it "
    "where jobs are submitted.\n\n"
    "examples:\n"
    "  scontainer attach 4711\n";
inline constexpr char kStopHelp[] =
    "CONTAINER is a container of scontainer run, as for scontainer exec. Sends SIGTERM, and "
    "SIGKILL after ten seconds.\n\n"
    "examples:\n"
    "  scontainer stop db\n";

inline constexpr OptionRow kImportOptions[] = {
    {"-q,--quiet", nullptr, "print only the digest"},
};
inline constexpr char kImportHelp[] =
    "FILE is a .sqsh file of scontainer or enroot, oci-archive:FILE, docker-archive:FILE, oci:DIR, "
    "or a tar archive of these.\n"
    "It is copied and can be removed afterwards.\n\n"
    "examples:\n"
    "  scontainer import ./app.sqsh app:1\n"
    "  scontainer import oci-archive:app.tar team/app:1.4\n";

inline constexpr OptionRow kExportOptions[] = {
    {"--changes", "DIR", "include the changes kept by run --changes=DIR"},
    {"-f,--force", nullptr, "overwrite FILE"},
};
inline constexpr char kExportHelp[] =
    "IMAGE is an image of the user's store, or a path. FILE is a squashfs for --container-image, "
    "scontainer run and enroot;\n"
    "with the prefix oci-archive: or the ending .tar an OCI archive with one layer, for skopeo, "
    "podman and docker; with the ending .sif\n"
    "a SIF for Apptainer. FILE appears when it is complete.\n\n"
    "examples:\n"
    "  scontainer export debian:12 debian.sqsh\n"
    "  scontainer export debian:12 debian.sif\n"
    "  scontainer export debian:12 oci-archive:debian.tar\n";

inline constexpr OptionRow kPushOptions[] = {
    {"--flatten", nullptr, "push the image's files as one layer, with a digest of its own"},
    {"--platform", "OS/ARCH[/VARIANT]", "select this platform in a multi-platform archive"},
    {"-q,--quiet", nullptr, "print only the digest"},
};
inline constexpr char kPushHelp[] =
    "IMAGE is an image of the user's store or of the node's public ones, an archive "
    "(oci-archive:FILE, docker-archive:FILE, oci:DIR,\n"
    "podman://NAME), or a .sqsh or .sif file or a directory. NAME is its name in the registry "
    "(default: IMAGE).\n"
    "Existing blobs are not uploaded, and interrupted uploads are resumed. Prints the digest.\n\n"
    "The digest of registry images and archives is kept: an image in the store is copied from the "
    "registry it came from.\n"
    "Files, directories and images imported from them are pushed as one layer, as with "
    "--flatten.\n\n"
    "examples:\n"
    "  scontainer push ./app.sqsh registry.example.org/team/app:1.4\n"
    "  scontainer push debian:12 registry.example.org/mirror/debian:12\n";

inline constexpr OptionRow kLoginOptions[] = {
    {"-u,--username", "USER", "user name (default: prompt)"},
    {"--no-check", nullptr, "store the credentials without checking them"},
};
inline constexpr char kLoginHelp[] =
    "The password is prompted for, or read as the first line of standard input; it is never an "
    "argument.\n"
    "It is checked with the registry and stored where docker and podman look for it, or by their "
    "credential helper.\n\n"
    "examples:\n"
    "  scontainer login nvcr.io --username='$oauthtoken'\n"
    "  scontainer login registry.example.org -u alice < token\n";

inline constexpr OptionRow kInfoOptions[] = {
    {"--json", nullptr, "print JSON"},
};

inline constexpr OptionRow kDoctorOptions[] = {
    {"--job", nullptr,
     "check what GPUs, NCCL and MPI need on this node; run it in a step: srun scontainer doctor "
     "--job"},
    {"--node", nullptr,
     "check only what containers of jobs need on this node, for Slurm's HealthCheckProgram"},
    {"-q,--quiet", nullptr,
     "with --node: print only what is wrong, on standard error, a line each"},
    {"--json", nullptr, "print JSON"},
    {"--registry", "HOST[:PORT]", "check this registry instead of the default one"},
};
inline constexpr char kDoctorHelp[] =
    "With FILE (- is standard input), explain the output of a failed job: known failures of CUDA, "
    "NVML, NCCL, MPI, PMIx and "
    "UCX,\n"
    "each with its cause, the fix and what to check. Without FILE, check this machine: each check "
    "is ok, a warning (a feature\n"
    "that not everybody needs) or failed, with the fix.\n\n"
    "--job checks GPUs and their driver, limits, /dev/shm, PMIx, addresses, InfiniBand and NCCL "
    "settings, and says where\n"
    "the node gets images from. The permissions of a step are visible only in a step: run it with "
    "srun, without a container and\n"
    "with the options of the failed job. It opens no device and changes nothing.\n\n"
    "--node uses no network and answers in about ten seconds even if a file system hangs. Run it "
    "as root.\n\n"
    "The exit status is 0 if all checks pass or FILE contains no known failure, 1 if a check "
    "failed or FILE contains a known\n"
    "failure, 2 if FILE cannot be read, 3 with --node if there are only warnings: jobs can start "
    "containers.\n\n"
    "examples:\n"
    "  scontainer doctor slurm-4711.out\n"
    "  srun --label ./train.sh 2>&1 | tee job.log; scontainer doctor job.log\n"
    "  srun --label --nodes=2 --ntasks-per-node=1 --gpus-per-task=1 --mpi=pmix scontainer doctor "
    "--job\n";

inline constexpr OptionRow kMetricsOptions[] = {
    {"--log", "FILE", "count also starts, pulls and failures in slurmd's log"},
};
inline constexpr char kMetricsHelp[] =
    "For node_exporter's textfile collector, as root. What each metric counts is in "
    "spank-container-operation(7).\n"
    "Of slurmd's log only whole lines of starts and failures count. They are written by processes "
    "of the users: figures to watch a\n"
    "cluster with, no accounting.\n\n"
    "examples:\n"
    "  scontainer metrics --log=/var/log/slurm/slurmd.log > .new && mv .new spank_container.prom\n";

inline constexpr char kAuditHelp[] =
    "Prints one object per line, for each start and failed start of a container. For which lines "
    "count, and who writes them, see\n"
    "scontainer(1), metrics --log.\n\n"
    "examples:\n"
    "  scontainer audit /var/log/slurm/slurmd.log | jq -r 'select(.pulled) | .image' | sort | uniq "
    "-c\n"
    "  scontainer audit slurmd.log.1 slurmd.log | jq -r 'select(.event == \"failed\") | .kind'\n";

inline constexpr OptionRow kCdiOptions[] = {
    {"--json", nullptr, "list, show: print JSON"},
    {"-o,--output", "FILE", "generate: write to this file, usually in /etc/cdi or /run/cdi"},
    {"--format", "yaml|json", "generate: output format (default: by the suffix of FILE, or yaml)"},
};
inline constexpr char kCdiHelp[] =
    "Container Device Interface: files in /etc/cdi or /run/cdi describe for each device what a "
    "container needs: device nodes,\n"
    "libraries, variables. srun --container-device and scontainer run --device take the device "
    "names.\n\n"
    "list      list the devices of this machine\n"
    "show      show what DEVICE adds to a container\n"
    "generate  print a file for this machine's NVIDIA GPUs, for podman, docker and Apptainer; jobs "
    "do not need it\n\n"
    "Files and the directories above them must be owned by root; a file in /run/cdi takes "
    "precedence over one in /etc/cdi.\n"
    "Other vendors' tools write files for their devices: amd-ctk cdi generate, "
    "intel-cdi-specs-generator.\n\n"
    "examples:\n"
    "  scontainer cdi list\n"
    "  scontainer cdi show nvidia.com/gpu=0\n"
    "  scontainer cdi generate --output=/etc/cdi/nvidia.yaml\n"
    "  scontainer run --device=amd.com/gpu=all rocm/dev-ubuntu rocminfo\n";

inline constexpr char kCompletionHelp[] =
    "SHELL is bash, fish or zsh. The container options of srun, sbatch and salloc are completed as "
    "well, beside Slurm's own.\n\n"
    "examples:\n"
    "  source <(scontainer completion bash)\n"
    "  scontainer completion zsh > ~/.zfunc/_scontainer\n"
    "  scontainer completion fish > ~/.config/fish/completions/scontainer.fish\n"
    "  scontainer completion bash > ~/.local/share/bash-completion/completions/scontainer\n";

}  // namespace spc::tool
