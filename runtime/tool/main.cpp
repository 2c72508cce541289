#include <grp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.hpp"
#include "base/log.hpp"
#include "base/process/child.hpp"
#include "base/result.hpp"
#include "base/text.hpp"
#include "protocol/submit.hpp"
#include "tool/command.hpp"
#include "tool/containers/detached.hpp"
#include "tool/surroundings/terminal.hpp"

// --- options ---

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
    "queried again except with --pull=always. Jobs accept these names as well.\n\n"
    "examples:\n"
    "  scontainer pull debian:12\n"
    "  scontainer pull registry.example.org/app:1.4 nvcr.io/nvidia/pytorch:24.03-py3\n"
    "  scontainer pull --platform=linux/arm64 debian:12\n"
    "  scontainer pull --output=lolcow.sif oras://ghcr.io/apptainer/lolcow\n";

inline constexpr OptionRow kImagesOptions[] = {
    {"--digests", nullptr, "print whole digests"},
    {"--format", "FORMAT", "print each image in this form: {{.Name}} {{.Size}}, or json"},
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kImagesHelp[] =
    "STORE is \"own\" for the user's images, \"site\" for those of the node. Only root sees the "
    "node's private images, and\n"
    "the tags that users have asked for, which scontainer rm takes.\n"
    "On a terminal long names are cut. Fields of FORMAT: Name, Repository, Tag, ID, Digest, "
    "Platform, Size, Age, Store, Description.\n"
    "For root and the service user also \"shared\": those of the shared store, by the repository "
    "they came from.\n";

inline constexpr OptionRow kBuildOptions[] = {
    {"-t,--tag", "NAME", "name of the image in the user's store"},
    {"-f,--file", "FILE", "the recipe (default: Containerfile or Dockerfile of the context)"},
    {"--target", "STAGE", "build this stage"},
    {"--build-arg", "NAME=VALUE", "value of an ARG; NAME alone takes it from the environment"},
    {"--build-arg-file", "FILE", "lines NAME=VALUE; --build-arg wins"},
    {"--secret", "id=NAME,src=FILE", "file for RUN --mount=type=secret"},
    {"--platform", "OS/ARCH[/VARIANT]", "must be this machine's"},
    {"--no-cache", nullptr, "run all steps again"},
    {"--cache-from", "IMAGE", "use the steps of this image"},
    {"--pull", nullptr, "query the registry for the image of FROM"},
    {"-o,--output", "FILE", "also write it to FILE: .sif, .sqsh, or oci-archive:FILE"},
    {"--force", nullptr, "overwrite FILE"},
    {"--push", nullptr, "also push it to the registry of its name"},
    {"--debug-shell", nullptr, "start a shell where a RUN fails"},
    {"-q,--quiet", nullptr, "print only the digest"},
};
inline constexpr char kBuildHelp[] =
    "Builds in containers of the user: without a daemon, privilege or subordinate IDs. CONTEXT is "
    "a directory,\nor - for a recipe on standard input. Stores the image for the user and prints "
    "its digest.\nA step is not run again while it and what it copies are unchanged.\n\n"
    "examples:\n"
    "  scontainer build -t app:1 .\n"
    "  scontainer build -f Dockerfile.gpu --build-arg CUDA=12.4 -t app:gpu .\n"
    "  scontainer build -o app.sif app.def\n"
    "  scontainer run app:1 python3 train.py\n";

inline constexpr OptionRow kCatalogueOptions[] = {
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kCatalogueHelp[] =
    "With NAME, prints only its image.\n\n"
    "examples:\n"
    "  scontainer catalogue\n"
    "  srun --container-image=\"$(scontainer catalogue pytorch)\" python3 train.py\n";

inline constexpr OptionRow kEnvOptions[] = {
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kEnvHelp[] =
    "Environment files in TOML (EDF) name image, mounts, variables and more for srun "
    "--environment=NAME and scontainer run --environment=NAME.\n\n"
    "list      list the environments of EDF_PATH or ~/.edf, and of the site\n"
    "show      print each value with the file and line that it is from\n"
    "validate  check a file, its base environments and its values\n"
    "render    print the environment as JSON, with variables and base environments resolved\n\n"
    "examples:\n"
    "  scontainer env list\n"
    "  scontainer env show ./pytorch.toml\n"
    "  scontainer run --environment=pytorch python3 train.py\n";

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
    {"--older", "DAYS", "with --shared: also files unused for this many days"},
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kGcHelp[] =
    "Lists layers that belong to no image and are older than a day, and images with missing "
    "layers. Layers in use are kept.\n"
    "For root, also containers of --container-name unused for container_ttl seconds: "
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
    "list              the containers of --container-name and, on this node, of running steps and "
    "of scontainer run; for root, those of all users in this node's store, with the size of their "
    "changes on the disk\n"
    "inspect NAME      one of them as JSON\n"
    "rm NAME...        remove containers; the files of one in use are removed when its last step "
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
    "  scontainer run --mounts=./data:/data:ro --env=OMP_NUM_THREADS=4 app:1.4 run\n"
    "  scontainer run --remap-root --changes=./git debian:12 apt-get install -y git\n"
    "  scontainer run --changes=./git --readonly debian:12 git --version\n"
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

inline constexpr OptionRow kSandboxOptions[] = {
    {"--name", "NAME", "create: name of the sandbox"},
    {"--from", "SNAPSHOT", "create: with the changes of a snapshot, instead of IMAGE"},
    {"--remap-root", nullptr, "create: be root in the sandbox"},
    {"--no-network", nullptr, "create: no network but the loopback interface"},
    {"--memory", "SIZE", "create: limit of a process's memory, and of the files"},
    {"--cpus", "N", "create: limit of CPUs"},
    {"--pids", "N", "create: limit of processes"},
    {"--env", "NAME|NAME=VALUE", "create, exec: set a variable, or pass the host's"},
    {"--timeout", "SECONDS", "create: end the sandbox; exec: kill the command after this time"},
    {"--workdir", "DIRECTORY", "exec: work directory in the sandbox"},
    {"--all", nullptr, "stop: all sandboxes of the job; outside of a job, of the user"},
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kSandboxHelp[] =
    "create IMAGE         start an idle container of the image, in which nothing of the host is "
    "seen, and print its name\n"
    "exec NAME COMMAND    run a command in it; the exit status is the command's, 124 after "
    "--timeout\n"
    "cp FILE NAME:/PATH   copy a file into it; cp NAME:/PATH FILE copies one out\n"
    "snapshot NAME SNAP   keep its changed files; create --from=SNAP makes sandboxes that have "
    "them\n"
    "list                 list the sandboxes of this machine\n"
    "stop NAME...         kill all processes of a sandbox, and discard its changes\n"
    "rm SNAP...           remove snapshots\n\n"
    "All sandboxes of an image share its mounted layers. They keep changes in memory and end with "
    "the job's step that made them.\n"
    "Defaults for all sandboxes of a job: SCONTAINER_SANDBOX_MEMORY, _CPUS, _PIDS and _TIMEOUT; "
    "SCONTAINER_SANDBOX_MOST limits their number.\n\n"
    "examples:\n"
    "  scontainer sandbox create --name=a --memory=2G --pids=100 python:3.12\n"
    "  scontainer sandbox exec --timeout=60 --json a python3 -c 'print(6 * 7)'\n"
    "  scontainer sandbox stop --all\n";

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
    {"-c,--change", "INSTRUCTION", "change its settings: \"ENV A=1\", \"CMD [\\\"python3\\\"]\""},
    {"-f,--force", nullptr, "overwrite FILE"},
};
inline constexpr char kExportHelp[] =
    "IMAGE is an image of the user's store, or a path. FILE is a squashfs for --container-image, "
    "scontainer run and enroot;\n"
    "with the prefix oci-archive: or the ending .tar an OCI archive with one layer, for skopeo, "
    "podman and docker; with the ending .sif\n"
    "a SIF for Apptainer; with / at its end a new directory. FILE appears when it is complete.\n\n"
    "examples:\n"
    "  scontainer export debian:12 debian.sqsh\n"
    "  scontainer export debian:12 debian.sif\n"
    "  scontainer export debian:12 oci-archive:debian.tar\n";

inline constexpr OptionRow kPushOptions[] = {
    {"--flatten", nullptr, "push the image's files as one layer, with a digest of its own"},
    {"-c,--change", "INSTRUCTION", "change its settings: \"ENV A=1\", \"CMD [\\\"python3\\\"]\""},
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
    {"--password-stdin", nullptr, "read the password from standard input, without a prompt"},
    {"--no-check", nullptr, "store the credentials without checking them"},
};
inline constexpr char kLoginHelp[] =
    "The password is prompted for, or read as the first line of standard input; it is never an "
    "argument.\n"
    "It is checked with the registry and stored where docker and podman look for it, or by their "
    "credential helper.\n\n"
    "examples:\n"
    "  scontainer login nvcr.io --username='$oauthtoken'\n"
    "  scontainer login registry.example.org -u alice --password-stdin < token\n";

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
    {"--merge", nullptr,
     "print the --node --json of many nodes, read from FILE or standard input, as one table"},
    {"--nodes", "LIST", "with --merge: nodes that have to answer, as node[01-04]"},
    {"--json", nullptr, "print JSON"},
    {"--registry", "HOST[:PORT]", "check this registry instead of the default one"},
    {"--config", "FILE|DIR",
     "check a configuration before it is installed, and print which keys change for which jobs"},
    {"--report", nullptr, "print a description of this machine for an issue, without secrets"},
    {"--log", "FILE", "with --report: slurmd's log (default: /var/log/slurm/slurmd.log)"},
};
inline constexpr char kDoctorHelp[] =
    "With FILE (- is standard input), explain the output of a failed job: known failures of GPUs, "
    "NCCL, MPI, Slurm, libraries,\n"
    "files, Python and networks, each with its cause, the fix and what to check.\n"
    "Without FILE, check this machine: each check is ok, a warning (a feature that not everybody "
    "needs) or failed, with the fix.\n\n"
    "--job checks GPUs and their driver, limits, /dev/shm, PMIx, addresses, InfiniBand and NCCL "
    "settings, and says where\n"
    "the node gets images from. The permissions of a step are visible only in a step: run it with "
    "srun, without a container and\n"
    "with the options of the failed job. It opens no device and changes nothing.\n\n"
    "--node uses no network and answers in about ten seconds even if a file system hangs. Run it "
    "as root.\n\n"
    "--config takes a new config.toml, a file for config.d (in a directory of that name), or a "
    "directory with both, and compares it\n"
    "with the configuration in force. Warnings are about this host: missing paths and hooks, "
    "stored images that would be refused.\n\n"
    "--merge groups nodes by their answers: what failed comes first, then checks to which nodes "
    "answer differently. Sizes are\n"
    "those of the first node of a group.\n\n"
    "--report prints versions, the settings that are not defaults, the checks of --node, and the "
    "last failed starts. Variables\n"
    "have no values, URLs no user and no query. Run it as root, and read it before you send it.\n\n"
    "The exit status is 0 if all checks pass or FILE contains no known failure, 1 if a check "
    "failed or FILE contains a known\n"
    "failure, 2 if FILE cannot be read, 3 with --node, --merge and --config if there are only "
    "warnings: jobs can start containers.\n\n"
    "examples:\n"
    "  scontainer doctor slurm-4711.out\n"
    "  scontainer doctor --report >report.txt\n"
    "  scontainer doctor --config=new/config.d/50-gpu.toml\n"
    "  srun --label ./train.sh 2>&1 | tee job.log; scontainer doctor job.log\n"
    "  srun -N4 scontainer doctor --node --json | scontainer doctor --merge\n"
    "  srun -l -N2 --ntasks-per-node=1 --gpus-per-task=1 scontainer doctor --job\n";

inline constexpr OptionRow kMetricsOptions[] = {
    {"--log", "FILE", "count also starts, pulls and failures in slurmd's log"},
    {"--state", "FILE",
     "with --log: continue the counters of the last call, which are kept in this file"},
};
inline constexpr char kMetricsHelp[] =
    "For node_exporter's textfile collector, as root. Each metric is described in "
    "spank-container-operation(8).\n"
    "Of slurmd's log only whole lines of starts and failures count. They are written by processes "
    "of the users: figures to watch a\n"
    "cluster with, no accounting.\n\n"
    "With --state, only what the log has had since the last call is read, and counters survive its "
    "rotation to FILE.1. The size of the\n"
    "output and of the state does not depend on the log.\n\n"
    "examples:\n"
    "  scontainer metrics --log=/var/log/slurmd.log >.new && mv .new container.prom\n"
    "  scontainer metrics --log=/var/log/slurmd.log --state=/var/cache/metrics.json\n";

inline constexpr char kAuditHelp[] =
    "Prints one object per line, for each start and failed start of a container. For which lines "
    "count, and who writes them, see\n"
    "scontainer(1), metrics --log.\n\n"
    "examples:\n"
    "  scontainer audit slurmd.log | jq -r 'select(.pulled).image' | sort | uniq -c\n"
    "  scontainer audit slurmd.log | jq -r 'select(.event == \"failed\").kind'\n";

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
    "  scontainer completion bash > /etc/bash_completion.d/scontainer\n";

// --- command line ---

namespace {

constexpr int kWrongUsage = 2;
constexpr char kEnvironment[] = "--environment";

/// Returns `yes` for `-y,--yes`.
std::string long_name(const OptionRow& row) {
  std::string_view names = row.names;
  return std::string(names.substr(names.rfind("--") + 2));
}

std::string usage_line(const Command& command) {
  return std::string("scontainer ") + command.name +
         (command.options.empty() ? "" : " [OPTION...]") + (*command.words == '\0' ? "" : " ") +
         command.words;
}

void declare_options(CLI::App& app, const Command& command, Arguments& arguments) {
  for (const OptionRow& row : command.options) {
    const std::string name = long_name(row);
    if (row.argument == nullptr) {
      app.add_flag_function(row.names,
                            [&arguments, name](std::int64_t) { arguments.options[name]; });
    } else {
      // Read one value for each occurrence of the option, so that following words stay positional
      // arguments.
      app.add_option_function<std::vector<std::string>>(
             row.names,
             [&arguments, name](const std::vector<std::string>& values) {
               arguments.options[name] = values;
             })
          ->expected(1)
          ->take_all()
          ->allow_extra_args(false);
    }
  }
}

/// Returns how many of `words` belong to scontainer. After the first positional argument of `run`,
/// `shell` and `exec`, all words belong to the command, including those that look like options.
std::size_t own_part(const Command& command, std::span<const std::string> words) {
  if (!command.takes_rest) return words.size();
  std::size_t own_words = 0;
  bool has_environment = false;  // names the image
  std::size_t most = command.least_words;
  if (command.run == run_sandbox) {
    if (words.empty() || words[0] != "exec") return words.size();
    most = 2;  // exec NAME
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.size() > 1 && word[0] == '-') {
      if (word == "--") return i;
      has_environment = has_environment || word.substr(0, word.find('=')) == kEnvironment;
      for (const OptionRow& row : command.options) {
        const bool is_it =
            ("," + std::string(row.names) + ",").find("," + word + ",") != std::string::npos;
        if (is_it && row.takes_next()) ++i;
      }
    } else if (has_environment && command.run == run_run) {
      return i;
    } else if (++own_words == most) {
      return i + 1;
    }
  }
  return words.size();
}

int usage_error(const Command& command, const std::string& why) {
  const bool has_hint = why.find("(hint: ") != std::string::npos;
  report_error(formatted("{}: {}{}", command.name, why,
                         has_hint ? "" : formatted(" (hint: scontainer {} --help)", command.name)));
  return command.takes_rest ? command.failure : kWrongUsage;
}

/// Reads the paths among the words and option values. A shell expands ~ only at the beginning of a
/// word, and not in --changes=~/x or oci:~/x.
Result<void> read_paths(const Command& command, Arguments& arguments) {
  const UserPaths paths = own_paths();
  const bool is_exec =
      command.run == run_exec ||
      (command.run == run_sandbox && !arguments.words.empty() && arguments.words.front() == "exec");
  for (std::string& word : arguments.words) {
    if (word == "~" || is_exec) continue;
    SPC_TRY(paths.refuse_variables(word));
    word = SPC_TRY(paths.resolve(word));
  }
  for (const OptionRow& row : command.options) {
    const std::string_view argument = row.argument == nullptr ? "" : row.argument;
    const std::string name = long_name(row);
    const auto given = arguments.options.find(name);
    if ((argument != "FILE" && argument != "DIR") || given == arguments.options.end()) continue;
    for (std::string& value : given->second) {
      SPC_TRY_DURING("--" + name, paths.refuse_variables(value));
      value = SPC_TRY_DURING("--" + name, paths.resolve(value));
    }
  }
  return {};
}

/// Sets image and options from the environment file of `run` and `shell`. Given options win.
Result<void> read_environment(const Command& command, Arguments& arguments) {
  const std::string name = arguments.value("environment");
  if (name.empty() || (command.run != run_run && command.run != run_shell)) return {};
  const auto places = EnvironmentPlaces::of_this_process(own_paths());
  const auto environment = SPC_TRY_DURING("--environment", places.read(name));
  if (const auto foreign = environment.foreign_annotations();
      !foreign.empty() && !arguments.has("quiet"))
    report_error("warning: " + warning_about(foreign, environment.file));
  OptionTexts texts;  // checks the values
  SPC_TRY(texts.add_environment(environment));
  LaunchRequest request{.paths = own_paths()};
  SPC_TRY(texts.apply_to(request, ReadAt::submission,
                         [](const ContainerOption& option) { return "--" + name_of_run(option); }));
  arguments.annotations = request.annotations;
  if (request.image.empty())
    return Error(ErrorKind::invalid,
                 formatted("environment {}: has no image", in_quotes(environment.file)))
        .hint("add image = \"...\" to the file");
  std::map<std::string, std::vector<std::string>> lists;
  for (const EnvironmentValue& value : environment.values) {
    const ContainerOption* const option = find_option(value.option);
    if (option == nullptr) continue;
    const bool is_entrypoint = value.option == "container-entrypoint";
    if (value.option == "container-image") arguments.words = {value.text};
    if (option->run_help == nullptr && !is_entrypoint) continue;
    const std::string own = name_of_run(*option);
    const bool is_contrary =
        option->opposite != nullptr && arguments.has(name_of_run(*find_option(option->opposite)));
    const std::string variable = value.key.substr(value.key.find('.') + 1);
    // scontainer run takes a value of --env literally, but for additions
    const std::size_t equals = value.value.find('=');
    const bool is_addition =
        value.value.starts_with('+') || (equals > 0 && value.value.find("+=") == equals - 1);
    const bool is_literal = own == "env" && !is_addition;
    const std::string text = is_literal ? variable + "=" + value.text : value.value;
    const auto typed = arguments.values("env");
    if (own == "env" && std::ranges::find(typed, variable) != typed.end()) continue;
    if (option->kind == ContainerOption::Kind::list) {
      lists[own].push_back(text);
    } else if (!arguments.has(own) && !is_contrary) {
      arguments.options[own];
      if (!text.empty()) arguments.options[own] = {text};
    } else {
      continue;
    }
    const std::string shown = own == "env" ? text.substr(0, text.find('=')) : text;
    arguments.origins["--" + own + (option->is_switch() ? "" : "=" + printable(shown))] =
        value.origin;
  }
  for (auto& [own, values] : lists) {
    auto& all = arguments.options[own];
    all.insert(all.begin(), values.begin(), values.end());
  }
  return {};
}

/// Replaces names of the site's catalogue by their images.
Result<void> read_catalogue_names(const Command& command, Arguments& arguments) {
  const std::string_view words = command.words;
  if (!words.starts_with("IMAGE") || arguments.words.empty()) return {};
  const bool is_list = words.starts_with("IMAGE...");
  for (std::string& word : std::span(arguments.words).first(is_list ? arguments.words.size() : 1)) {
    const std::string image = SPC_TRY(image_of_catalogue(word));
    const bool starts = command.run == run_run || command.run == run_shell;
    if (image != word && starts && !arguments.has("quiet"))
      report_error(
          formatted("image {} of the site's catalogue: {}", in_quotes(word), printable(image)));
    word = image;
  }
  return {};
}

int run_one(const Command& command, std::span<const std::string> given) {
  Arguments arguments;
  std::vector<std::string> words(given.begin(), given.end());
  if (command.run == run_run || command.run == run_shell) {
    auto ours = in_our_words(given, command.options);
    if (!ours) return usage_error(command, ours.error().message());
    words = *std::move(ours);
  }
  const std::size_t own = own_part(command, words);
  for (const std::string& word : std::span(words).first(own)) {
    if (auto ends = refuse_carriage_return(word); !ends)
      return usage_error(command, std::move(ends).error().during(in_quotes(word)).message());
  }
  arguments.rest.assign(words.begin() + static_cast<std::ptrdiff_t>(own), words.end());
  if (!arguments.rest.empty() && arguments.rest.front() == "--")
    arguments.rest.erase(arguments.rest.begin());
  CLI::App app;
  app.set_help_flag();
  bool help = false;
  app.add_flag("-h,--help", help);
  declare_options(app, command, arguments);
  auto* positionals = app.add_option("words", arguments.words);
  positionals->expected(0, 1 << 20);
  try {
    std::vector<std::string> reversed(words.begin(),
                                      words.begin() + static_cast<std::ptrdiff_t>(own));
    std::reverse(reversed.begin(), reversed.end());
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    return usage_error(command, printable(error.what()));
  }
  if (help) return std::fputs(command_help(command).c_str(), stdout) < 0 ? 1 : 0;
  if (auto set = read_environment(command, arguments); !set) {
    report_error(set.error().message());
    return command.failure;
  }
  if (arguments.words.size() < command.least_words || arguments.words.size() > command.most_words) {
    return usage_error(command, "usage: " + usage_line(command));
  }
  auto read = read_paths(command, arguments);
  if (read) read = read_catalogue_names(command, arguments);
  auto result = read ? command.run(arguments) : Result<int>(read.error());
  if (result) return *result;
  // the images program has already reported an error without a message
  if (!result.error().message().empty()) report_error(result.error().message());
  return command.failure;
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

constexpr std::size_t kHelpWidth = 80;
constexpr std::size_t kHelpColumn = 28;

/// Returns the words of `text` in lines of kHelpWidth. The first begins in column `column`, where
/// the cursor is, and so do the others.
std::string wrapped(std::string_view text, std::size_t column) {
  std::string lines;
  std::size_t at = column;
  for (const std::string_view word : split(text, ' ')) {
    if (word.empty()) continue;
    if (at > column && at + 1 + word.size() > kHelpWidth) {
      lines += "\n" + std::string(column, ' ');
      at = column;
    }
    if (at > column) lines += ' ';
    at += word.size() + (at > column ? 1 : 0);
    lines += word;
  }
  return lines + "\n";
}

/// Lays out explanation and examples: wraps paragraphs, and the second column of lines that have
/// one. Indented lines stay as they are.
std::string laid_out(std::string_view text) {
  std::string lines;
  std::string paragraph;
  const auto end_paragraph = [&] {
    if (!paragraph.empty()) lines += wrapped(std::exchange(paragraph, ""), 0);
  };
  while (text.ends_with('\n')) text.remove_suffix(1);
  for (const std::string_view line : split(text, '\n')) {
    const std::size_t gap = line.find("  ");
    if (line.empty() || line.starts_with(' ') || line.ends_with(':')) {
      end_paragraph();
      lines.append(line).append("\n");
    } else if (gap != std::string_view::npos) {
      end_paragraph();
      const std::size_t column = line.find_first_not_of(' ', gap);
      lines.append(line.substr(0, column)).append(wrapped(line.substr(column), column));
    } else {
      paragraph.append(paragraph.empty() ? "" : " ").append(line);
    }
  }
  end_paragraph();
  return lines;
}

/// Returns an option's line: its names, and its help beside them, or below if they are long.
std::string option_line(const OptionRow& row) {
  std::string names = row.names;
  if (const auto comma = names.find(','); comma != std::string::npos) names.insert(comma + 1, " ");
  if (row.may_omit_value) {
    names += formatted("[={}]", row.argument);
  } else if (row.argument != nullptr) {
    names += std::string(names.find("--") != std::string::npos ? "=" : " ") + row.argument;
  }
  std::string line = padded("  " + names, kHelpColumn);
  if (names.size() + 4 > kHelpColumn) line = "  " + names + "\n" + std::string(kHelpColumn, ' ');
  return line + wrapped(row.help, kHelpColumn);
}

}  // namespace

std::string command_help(const Command& command) {
  std::string text = formatted("usage: {}\n\n{}\n", usage_line(command), command.summary);
  if (!command.options.empty()) text += "\noptions:\n";
  for (const OptionRow& row : command.options) text += option_line(row);
  return *command.more == '\0' ? text : text + "\n" + laid_out(command.more);
}

std::string program_help() {
  std::string text =
      "usage: scontainer COMMAND [OPTION...] [ARGUMENT...]\n\n"
      "Manage container images and run containers without Slurm.\n\ncommands:\n";
  for (const Command& command : command_table())
    text += formatted("  {}{}\n", padded(command.name, 12), command.summary);
  return text +
         "\nexamples:\n"
         "  scontainer pull debian:12                          pull an image\n"
         "  scontainer run debian:12 cat /etc/os-release       run a command\n"
         "  scontainer run --mounts=./data:/data:ro IMAGE CMD  mount a directory\n"
         "  scontainer shell debian:12                         start a shell\n"
         "  scontainer inspect debian:12                       show OS, CUDA, MPI ...\n"
         "  scontainer export debian:12 debian.sqsh            write it to a file\n"
         "  scontainer doctor                                  check this machine\n\n"
         "See scontainer COMMAND --help and scontainer(1).\n";
}

int run_command_line(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string_view first =
      words.empty() ? std::string_view("--help") : std::string_view(words[0]);
  if (first == kComplete && words.size() > 1 && words[1] == "--")
    return print_completion(std::span(words).subspan(2));
  if (first == "--help" || first == "-h" || first == "help") {
    for (const Command& command : command_table()) {
      if (words.size() > 1 && words[1] == command.name)
        return std::fputs(command_help(command).c_str(), stdout) < 0 ? 1 : 0;
    }
    std::fputs(program_help().c_str(), words.empty() ? stderr : stdout);
    return words.empty() ? kWrongUsage : 0;
  }
  for (const Command& command : command_table()) {
    if (first == command.name ||
        (first == "--version" && std::string_view(command.name) == "version")) {
      return run_one(command, std::span(words).subspan(1));
    }
  }
  report_error(
      formatted("unknown command {} (hint: {})", in_quotes(first), hint_for_command(first)));
  return kWrongUsage;
}

}  // namespace spc::tool

// --- main ---

// scontainer, the user's command: images and containers without Slurm, for unprivileged users and
// for administrators. Each command has a file in commands/. This is the command table.

using namespace spc;
using namespace spc::tool;

namespace {

constexpr unsigned kAny = 1U << 20;
constexpr rlim_t kFewestFiles = 40;  // enough for a pull of a few layers and a container's helpers

const Command kCommands[] = {
    {"pull", "IMAGE...", "pull images", kPullHelp, kPullOptions, 1, kAny, false, 1, run_pull},
    {"images", "", "list images of the user and the node", kImagesHelp, kImagesOptions, 0, 0, false,
     1, run_images},
    {"catalogue", "[NAME]", "list the images that the site recommends", kCatalogueHelp,
     kCatalogueOptions, 0, 1, false, 1, run_catalogue},
    {"env", "list|show|validate|render [NAME|FILE]", "list, show and check environment files",
     kEnvHelp, kEnvOptions, 1, 2, false, 1, run_env},
    {"inspect", "IMAGE", "show configuration and contents of an image", kInspectHelp,
     kInspectOptions, 1, 1, false, 1, run_inspect},
    {"rm", "IMAGE...", "remove images", kRmHelp, kRmOptions, 1, kAny, false, 1, run_rm},
    {"gc", "", "remove unused layers, incomplete images and expired containers", kGcHelp,
     kGcOptions, 0, 0, false, 1, run_gc},
    {"containers", "[list|inspect|rm|export] [NAME...]",
     "list, remove and export containers with a name", kContainersHelp, kContainersOptions, 0, kAny,
     false, 1, run_containers},
    {"run", "IMAGE [COMMAND...]", "run a command in a container", kRunHelp, run_options(), 1, 1,
     true, kNoContainer, run_run},
    {"shell", "IMAGE", "run a shell in a container", kShellHelp, run_options(), 1, 1, false,
     kNoContainer, run_shell},
    {"exec", "CONTAINER COMMAND...", "run a command in a running container", kExecHelp,
     kExecOptions, 1, 1, true, kNoContainer, run_exec},
    {"attach", "JOB[.STEP]", "run a shell in the container of a job's step", kAttachHelp,
     kNoOptions, 1, 1, false, kNoContainer, run_attach},
    {"stop", "CONTAINER...", "stop running containers", kStopHelp, kNoOptions, 1, kAny, false, 1,
     run_stop},
    {"sandbox", "create|exec|cp|snapshot|list|stop|rm ...",
     "run many short containers: tests, agents, reinforcement learning", kSandboxHelp,
     kSandboxOptions, 0, kAny, true, kNoContainer, run_sandbox},
    {"import", "FILE NAME", "import an image file", kImportHelp, kImportOptions, 2, 2, false, 1,
     run_import},
    {"export", "IMAGE FILE", "write an image to a file", kExportHelp, kExportOptions, 2, 2, false,
     1, run_export},
    {"build", "CONTEXT|FILE.def", "build an image from a Dockerfile or definition file", kBuildHelp,
     kBuildOptions, 1, 1, false, 1, run_build},
    {"push", "IMAGE [NAME]", "push an image to a registry", kPushHelp, kPushOptions, 1, 2, false, 1,
     run_push},
    {"login", "[REGISTRY]", "store credentials for a registry", kLoginHelp, kLoginOptions, 0, 1,
     false, 1, run_login},
    {"logout", "[REGISTRY]", "remove credentials for a registry", "", kNoOptions, 0, 1, false, 1,
     run_logout},
    {"version", "", "print the version", "", kNoOptions, 0, 0, false, 1, run_version},
    {"info", "", "show locations of images and configuration", "", kInfoOptions, 0, 0, false, 1,
     run_info},
    {"doctor", "[FILE|-]", "explain the log of a failed job, or check this machine", kDoctorHelp,
     kDoctorOptions, 0, 1, false, 2, run_doctor},
    {"metrics", "", "print the node's state for Prometheus", kMetricsHelp, kMetricsOptions, 0, 0,
     false, 1, run_metrics},
    {"audit", "FILE...", "print the starts of containers in slurmd's log as JSON", kAuditHelp,
     kNoOptions, 1, kAny, false, 1, run_audit},
    {"cdi", "list|show|generate [DEVICE]", "list and describe CDI devices", kCdiHelp, kCdiOptions,
     1, 2, false, 1, run_cdi},
    {"completion", "SHELL", "print the completion script for a shell", kCompletionHelp, kNoOptions,
     1, 1, false, 1, run_completion},
};

}  // namespace

std::span<const Command> spc::tool::command_table() { return kCommands; }

int main(int argc, char** argv) {
  open_closed_streams();
  ::umask(022);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    const std::span words(argv, static_cast<std::size_t>(argc));
    if (argc > 1 && std::string_view(argv[1]) == kSubmitCheck)
      return run_submit_check(words.subspan(2));
    if (argc > 1 && std::string_view(argv[1]) == kReadEnvironment)
      return run_read_environment(words.subspan(2));
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < kFewestFiles) {
      report_error(formatted("{} open files are not enough (hint: ulimit -n 64)",
                             std::uint64_t{files.rlim_cur}));
      return kNoContainer;
    }
    return run_command_line(argc, argv);
  } catch (const std::exception& error) {  // out of memory
    report_error(error.what());
    return kNoContainer;
  }
}
