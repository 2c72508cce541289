#include <algorithm>

#include "launch/policy/site_policy.hpp"
#include "launch/request/options.hpp"

namespace spc {
namespace {

bool is_line(const std::string& text) {
  return !text.empty() && std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

bool is_absolute(const std::string& text) { return is_line(text) && text.starts_with('/'); }

/// The form alone: the flags are known to launch/mount_spec, where mounts are made. One mount a text, and no relative source,
/// which would lie below each job's own directory.
bool is_mount(const std::string& text) {
  return is_line(text) && (text.starts_with('/') || text.starts_with("tmpfs:/") || text.starts_with("umount:/"));
}

bool is_name(std::string_view text, std::string_view also) {
  const auto fits = [&](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
           also.find(c) != std::string_view::npos;
  };
  return !text.empty() && (text[0] < '0' || text[0] > '9') && std::all_of(text.begin(), text.end(), fits);
}

bool is_assignment(const std::string& text) {
  const auto equals = text.find('=');
  return equals != std::string::npos && is_name(std::string_view(text).substr(0, equals), "");
}

bool is_name_or_pattern(const std::string& text) { return is_name(text, "*?"); }

bool is_hook(const std::string& text) { return is_line(text) && text.find('/') == std::string::npos; }

/// Empty means none.
bool is_limit(const std::string& text) { return text.empty() || is_upper_size(text); }
bool is_program(const std::string& text) { return text.empty() || is_absolute(text); }

constexpr KeyRow<SitePolicy> kSiteKeys[] = {
    {"remap_root", "yes or no", "false",
     "run as root in the container unless the job says otherwise",
     &SitePolicy::remap_root},
    {"entrypoint", "no, node, task", "no",
     "run the image's entrypoint, once per node or task, unless the job says otherwise",
     &SitePolicy::entrypoint},
    {"entrypoint_timeout", "seconds", "60",
     "time limit of an entrypoint",
     &SitePolicy::entrypoint_timeout},
    {"slurm", "yes or no", "false",
     "make Slurm's commands work in the container unless the job says otherwise",
     &SitePolicy::slurm},
    {"batch", "script, steps", "script",
     "what an image given to sbatch applies to unless the job says otherwise",
     &SitePolicy::batch},
    {"container_scope", "global, job", "global",
     "lifetime of named containers; job: removed by the epilog",
     &SitePolicy::container_scope},
    {"messages", "own, pyxis", "own", "message texts", &SitePolicy::messages},
    {"error_report", "yes or no", "true",
     "let srun collect the errors of all nodes",
     &SitePolicy::error_report},
    {"task_prolog_on_host", "yes or no", "false",
     "run TaskProlog on the host instead of in the container",
     &SitePolicy::task_prolog_on_host},
    {"mounts", "list of mounts", "",
     "mounts for every container, as for `--container-mounts`",
     &SitePolicy::mounts, is_mount,
     "expected SRC[:DST[:FLAGS]] with an absolute path of the node"},
    {"env", "list of NAME=VALUE", "",
     "variables for every container; they override image and job, except variables that are kept",
     &SitePolicy::env, is_assignment, "expected NAME=VALUE"},
    {"keep_env", "list of names", "",
     "variables or patterns that keep the job's value, as with `--container-env`",
     &SitePolicy::keep_env, is_name_or_pattern,
     "expected NAME, or a pattern with * and ?"},
    {"allowed_paths", "list of directories", "",
     "where image files and directories may be; empty: anywhere",
     &SitePolicy::allowed_paths, is_absolute, "expected an absolute path"},
    {"features_off", "list of options", "",
     "options that may not be used, without their `--`",
     &SitePolicy::features_off, nullptr, nullptr, feature_names},
    {"max_tmpfs_size", "size", "",
     "maximum of `--container-tmpfs-size`; empty: no limit",
     &SitePolicy::max_tmpfs_size, is_limit, kUpperSizeRule},
    {"importer", "program", "",
     "external importer (same contract as pyxis's importer)",
     &SitePolicy::importer, is_program,
     "expected the absolute path of a program"},
    {"gpu", "auto, off", "auto",
     "inject the GPU driver and the step's GPUs unless the job says otherwise",
     &SitePolicy::gpu},
    {"gpu_devices", "allocated, accessible", "allocated",
     "GPUs of a step: those allocated by Slurm that its device cgroup allows, or all that it allows",
     &SitePolicy::gpu_devices},
    {"driver_root", "directory", "",
     "location of the GPU driver's files, if not in the system directories",
     &SitePolicy::driver_root, is_program,
     "expected the absolute path of a directory"},
    {"prefer_cdi", "yes or no", "false",
     "use a CDI file for GPUs instead of driver discovery",
     &SitePolicy::prefer_cdi},
    {"mpi", "image, host", "image", "MPI to use unless the job says otherwise", &SitePolicy::mpi},
    {"mpi_abi", "major, full, strict", "full",
     "how closely the node's MPI must match the image's to replace it",
     &SitePolicy::mpi_abi},
    {"mpi_libraries", "list of files", "",
     "the node's MPI libraries that replace the image's",
     &SitePolicy::mpi_libraries, is_absolute,
     "expected the absolute path of a library"},
    {"mpi_dependencies", "list of files", "",
     "libraries of the node that these need",
     &SitePolicy::mpi_dependencies, is_absolute,
     "expected the absolute path of a library"},
    {"mpi_mounts", "list of mounts", "",
     "other paths of the node that they need",
     &SitePolicy::mpi_mounts, is_mount,
     "expected SRC[:DST[:FLAGS]] with an absolute path of the node"},
    {"fabric", "auto, off, require", "auto",
     "inject fabric devices and libraries; require: fail a multi-node step that would use TCP",
     &SitePolicy::fabric},
    {"fabric_libraries", "list of files", "",
     "libraries of the node for the fabric: NCCL network plugins, providers",
     &SitePolicy::fabric_libraries, is_absolute,
     "expected the absolute path of a library"},
    {"frameworks", "yes or no", "true",
     "set the variables of PyTorch and similar frameworks unless they are set",
     &SitePolicy::frameworks},
    {"python_user_base", "yes or no", "true",
     "give `pip install --user` a directory per image",
     &SitePolicy::python_user_base},
    {"hooks_off", "list of names", "",
     "hooks to disable, such as 50-nccl",
     &SitePolicy::hooks_off, is_hook,
     "expected the name of a hook, such as 50-nccl"},
    {"hook_timeout", "seconds", "30", "time limit of a site hook", &SitePolicy::hook_timeout},
    {"user_hooks", "yes or no", "false",
     "run hooks in ~/.config/enroot/hooks.d if enroot_compat is set",
     &SitePolicy::user_hooks},
    {"enroot_compat", "yes or no", "false",
     "read enroot.conf, mounts.d, environ.d and hooks.d in /etc/enroot and ~/.config/enroot",
     &SitePolicy::enroot_compat},
    {"check_at_submit", "yes or no", "false",
     "let srun, sbatch and salloc check the image and these rules",
     &SitePolicy::check_at_submit},
};

}  // namespace

std::span<const KeyRow<SitePolicy>> site_keys() { return kSiteKeys; }

bool is_upper_size(const std::string& text) {
  const std::size_t digits = text.find_first_not_of("0123456789");
  if (text.empty() || digits == 0 || std::min(digits, text.size()) > 12) return false;
  const std::string_view unit = digits == std::string::npos ? "" : std::string_view(text).substr(digits);
  const unsigned long long number = std::stoull(text);
  if (unit == "%") return number >= 1 && number <= 100;
  return number > 0 &&
         (unit.empty() || (unit.size() == 1 && std::string_view("KMGTkmgt").find(unit[0]) != std::string_view::npos));
}

}  // namespace spc
