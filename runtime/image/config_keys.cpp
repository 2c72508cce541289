#include "image/config.hpp"

namespace spc {
namespace {

constexpr ConfigKey kKeys[] = {
    {"default_registry", "text", "docker.io", "the registry of names that do not begin with one"},
    {"writable", "yes or no", "true", "whether containers can be written to unless the job says otherwise"},
    {"mount_home", "yes or no", "false", "whether the user's home is mounted unless the job says otherwise"},
    {"upper_size", "size", "50%", "how much a container can write: a percentage of the memory, or bytes with K, M, G, T"},
    {"squashfs", "auto, kernel, fuse", "auto",
     "who reads the layers: the kernel, a process of the user, or that where the kernel cannot"},
    {"pull", "newer, missing, always, never", "newer", "when the registry is asked about an image that is already there"},
    {"public_ttl", "seconds", "3600", "how long an image fetched without credentials is public without asking again"},
    {"private_ttl", "seconds", "3600", "how long a user may start a private image after its registry last let him have it"},
    {"tag_ttl", "seconds", "0", "how long a tag is not asked for again"},
    {"max_parallel_layers", "number", "0", "layers converted at the same time; 0: one a core, at most 4"},
    {"max_image_bytes", "bytes", "0", "largest compressed image; 0: no limit"},
    {"stall_timeout", "seconds", "30", "how long a registry may send less than 1 KiB a second"},
    {"https_proxy", "URL", "", "proxy for registries and what they redirect to by https"},
    {"http_proxy", "URL", "", "proxy for those spoken to by plain HTTP"},
    {"no_proxy", "list of hosts", "", "hosts and domains spoken to without a proxy"},
    {"allowed_registries", "list of hosts", "", "`HOST[:PORT]` or `*.DOMAIN` of registries that may be used; empty: all"},
    {"remap_root", "yes or no", "false", "whether the user is root inside unless the job says otherwise"},
    {"entrypoint", "no, node, task", "no",
     "whether the image's entrypoint runs unless the job says otherwise: once a node, or a task"},
    {"entrypoint_timeout", "seconds", "60", "how long an entrypoint may take"},
    {"slurm", "yes or no", "false", "whether Slurm's commands work inside unless the job says otherwise"},
    {"batch", "script, steps", "script", "whether an image given to sbatch is for the script, unless the job says otherwise"},
    {"container_scope", "global, job", "global", "whether containers with a name outlive the job"},
    {"messages", "own, pyxis", "own", "whose words messages use"},
    {"error_report", "yes or no", "true", "whether srun gathers the errors of all nodes"},
    {"task_prolog_on_host", "yes or no", "false", "whether TaskProlog runs on the host instead of inside"},
    {"mounts", "list of mounts", "", "as for `--container-mounts`; in every container"},
    {"env", "list of NAME=VALUE", "",
     "variables of every container; they count more than the image's and the job's unless these are kept"},
    {"keep_env", "list of names", "", "variables or patterns that keep the job's value, as with `--container-env`"},
    {"allowed_paths", "list of directories", "", "where images that are files or directories may lie; empty: anywhere"},
    {"features_off", "list of options", "", "options that may not be used, without their `--`"},
    {"max_tmpfs_size", "size", "", "the most that `--container-tmpfs-size` may ask for; empty: no limit"},
    {"importer", "program", "", "brings images instead of the importer of this package: the contract of pyxis"},
    {"gpu", "auto, off", "auto", "whether the GPUs of a step work inside unless the job says otherwise"},
    {"gpu_devices", "allocated, accessible", "allocated",
     "which GPUs a step has: those that Slurm allocated, as far as its device cgroup lets, or all that this lets"},
    {"driver_root", "directory", "", "where the GPU driver's files are, if not in the node's own directories"},
    {"prefer_cdi", "yes or no", "false", "whether a CDI file for GPUs counts more than what is found without it"},
    {"mpi", "image, host", "image", "whose MPI is used unless the job says otherwise"},
    {"mpi_abi", "major, full, strict", "full", "how well the node's MPI must fit to take the place of the image's"},
    {"mpi_libraries", "list of files", "", "the node's MPI: the libraries that take the place of the image's"},
    {"mpi_dependencies", "list of files", "", "libraries of the node that these need"},
    {"mpi_mounts", "list of mounts", "", "what else of the node they need inside"},
    {"fabric", "auto, off, require", "auto", "whether the fabric's devices and libraries come in; require: a step that would use TCP is refused"},
    {"fabric_libraries", "list of files", "", "libraries of the node for the fabric: network plugins of NCCL, providers"},
    {"frameworks", "yes or no", "true", "whether tasks get the variables of PyTorch and the like that nobody has set"},
    {"python_user_base", "yes or no", "true", "whether `pip install --user` has a directory for each image"},
    {"hooks_off", "list of names", "", "hooks that do not run, such as 50-nccl"},
    {"hook_timeout", "seconds", "30", "how long a hook of the site may take"},
    {"user_hooks", "yes or no", "false", "whether hooks in ~/.config/enroot/hooks.d run, where enroot_compat is on"},
    {"enroot_compat", "yes or no", "false",
     "whether enroot.conf, mounts.d, environ.d and hooks.d in /etc/enroot and ~/.config/enroot count"},
    {"check_at_submit", "yes or no", "false", "whether srun, sbatch and salloc ask for the image and these rules"},
};

constexpr ConfigKey kRegistryKeys[] = {
    {"insecure", "yes or no", "false", "spoken to by plain HTTP"},
    {"ca", "file", "", "certificates (PEM) trusted for it besides the system's"},
    {"blocked", "yes or no", "false", "nobody may use it"},
    {"mirrors", "list of hosts", "", "`HOST[:PORT][/PREFIX]` asked before it, in this order, without credentials"},
    {"mirror_tags", "yes or no", "false", "mirrors may say what a tag stands for"},
    {"login_servers", "list of hosts", "", "`HOST[:PORT]` on other domains that may see its users' credentials"},
    {"require_digest", "yes or no", "false", "only names with a digest may be used"},
};

constexpr ConfigKey kStoreKeys[] = {
    {"max_size", "size", "0", "how much all images may take: bytes with K, M, G, T; 0: no limit"},
    {"high_watermark", "percent", "90", "images are evicted when the file system would be fuller than this"},
    {"low_watermark", "percent", "80", "until it is as empty as this"},
    {"max_imports_per_user", "number", "4", "images that a user may have on their way to this node at a time; others wait"},
};

}  // namespace

std::span<const ConfigKey> config_keys() { return kKeys; }
std::span<const ConfigKey> store_config_keys() { return kStoreKeys; }
std::span<const ConfigKey> registry_config_keys() { return kRegistryKeys; }

}  // namespace spc
