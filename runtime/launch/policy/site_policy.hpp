#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "launch/policy/key_checks.hpp"
#include "launch/policy/key_row.hpp"

namespace spc {

/// What config.toml says to the user's side of a start. `import policy` checks it and writes it as
/// `key=value\0` behind the PolicyRecord in /run/spank-container/policy. spank-container.conf(5)
/// explains the keys; kSiteKeys has a row for each.
struct SitePolicy {
  bool remap_root{}, entrypoint_log{}, slurm{}, error_report{}, task_prolog_on_host{}, prefer_cdi{},
      cuda_compat{}, frameworks{};
  bool python_user_base{}, user_hooks{}, enroot_compat{}, check_at_submit{};
  std::int64_t entrypoint_timeout{}, hook_timeout{};  ///< seconds
  std::string entrypoint, batch, container_scope, messages, seccomp, apparmor_profile,
      selinux_label;
  std::string max_tmpfs_size, importer, signature_policy;
  std::string gpu, gpu_devices, gpu_numbers, driver_root, mpi, mpi_abi, fabric;
  std::vector<std::string> mounts, env, keep_env, unshare, allowed_paths, allowed_images,
      features_off, mounts_off, hooks_off;
  std::vector<std::string> mpi_libraries, mpi_dependencies, mpi_mounts, mpi_env, fabric_libraries,
      fabric_devices, fallback_libraries;

  /// Not of config.toml, but of enroot's files.
  std::optional<bool> writable, mount_home;  ///< they win over the PolicyRecord's
  std::vector<std::string> enroot_mounts,
      enroot_mounts_of_user;  ///< `FILE, line N`, a tab, the mount
  /// Options that the user asks for by variables or files of enroot, and by which.
  std::vector<std::pair<std::string, std::string>> options_of_user;

  /// The defaults.
  SitePolicy();
  /// From the file that the agent hands to the leader: the texts belong to the record that it has
  /// sent.
  static Result<SitePolicy> of(int policy_file);
  /// For the other tasks and for whoever only wants to know: as the policy is now. Nothing, or the
  /// defaults, if it cannot be read.
  static std::optional<SitePolicy> read_if_any();
  static SitePolicy read() { return read_if_any().value_or(SitePolicy()); }
  static SitePolicy parse(std::string_view records);

  /// A record; of a list: one more element. Unknown keys count for nothing.
  void set(std::string_view key, std::string_view value);
  /// What plugstack.conf sets: KEY=VALUE texts, which win.
  void override_with(const std::vector<std::string>& settings);
  /// All keys that have a value, with it, and one more for each further element of a list.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> records() const;
  /// Nothing: it is no boolean key.
  [[nodiscard]] std::optional<bool> flag(std::string_view key) const;

  bool operator==(const SitePolicy&) const = default;
};

/// The records as they lie behind the PolicyRecord.
std::string site_records(const SitePolicy& site);

std::vector<std::string_view> feature_names();  // launch/request/options.hpp

/// The keys of config.toml that SitePolicy has.
inline constexpr KeyRow<SitePolicy> kSiteKeys[] = {
    {"remap_root", "yes or no", "false",
     "run as root in the container unless the job says otherwise", &SitePolicy::remap_root},
    {"entrypoint", "no, node, task", "no",
     "run the image's entrypoint, once per node or task, unless the job says otherwise",
     &SitePolicy::entrypoint},
    {"entrypoint_timeout", "seconds", "60", "time limit of an entrypoint",
     &SitePolicy::entrypoint_timeout},
    {"entrypoint_log", "yes or no", "false",
     "print an entrypoint's output, as with `--container-entrypoint-log`",
     &SitePolicy::entrypoint_log},
    {"slurm", "yes or no", "false",
     "make Slurm's commands work in the container unless the job says otherwise",
     &SitePolicy::slurm},
    {"batch", "script, steps", "script",
     "what an image given to sbatch applies to unless the job says otherwise", &SitePolicy::batch},
    {"container_scope", "global, job", "global",
     "lifetime of named containers; job: removed by the epilog", &SitePolicy::container_scope},
    {"messages", "own, pyxis", "own", "message texts", &SitePolicy::messages},
    {"error_report", "yes or no", "true", "let srun collect the errors of all nodes",
     &SitePolicy::error_report},
    {"task_prolog_on_host", "yes or no", "false",
     "run TaskProlog on the host instead of in the container", &SitePolicy::task_prolog_on_host},
    {"mounts", "list of mounts", "", "mounts for every container, as for `--container-mounts`",
     &SitePolicy::mounts, key::is_mount, key::kMountRule},
    {"env", "list of NAME=VALUE", "",
     "variables for every container; they override image and job, except variables that are kept",
     &SitePolicy::env, key::is_assignment, "expected NAME=VALUE"},
    {"keep_env", "list of names", "",
     "variables or patterns that keep the job's value, as with `--container-env`",
     &SitePolicy::keep_env, key::is_name_or_pattern, "expected NAME, or a pattern with * and ?"},
    {"unshare", "list of namespaces", "",
     "namespaces that no container shares with the host: net, ipc, uts, pid, cgroup",
     &SitePolicy::unshare, nullptr, nullptr,
     []() -> std::vector<std::string_view> {
       return {"net", "ipc", "uts", "pid", "cgroup"};
     }},
    {"seccomp", "off, default or file", "off",
     "seccomp profile of every container, as for `--container-security=seccomp`",
     &SitePolicy::seccomp, key::is_seccomp,
     "expected off, default, or the absolute path of a profile"},
    {"apparmor_profile", "profile", "",
     "AppArmor profile of every container, on nodes with AppArmor", &SitePolicy::apparmor_profile,
     key::is_label_or_none, "expected the name of a profile"},
    {"selinux_label", "context", "", "SELinux context of every container, on nodes with SELinux",
     &SitePolicy::selinux_label, key::is_label_or_none, "expected USER:ROLE:TYPE:LEVEL"},
    {"allowed_paths", "list of directories", "",
     "where image files and directories may be; empty: anywhere", &SitePolicy::allowed_paths,
     key::is_absolute, "expected an absolute path"},
    {"allowed_images", "list of rules", "",
     "who may use which registry images: PATTERN [user=NAME,...] [group=NAME,...] "
     "[partition=NAME,...]; empty: all may use all",
     &SitePolicy::allowed_images, key::is_image_rule,
     "expected PATTERN [user=NAME,...] [group=NAME,...] [partition=NAME,...]"},
    {"features_off", "list of options", "", "options that may not be used, without their `--`",
     &SitePolicy::features_off, nullptr, nullptr, feature_names},
    {"mounts_off", "list of paths", "",
     "host paths that jobs may not mount, including what is below and above them",
     &SitePolicy::mounts_off, key::is_absolute, "expected an absolute path"},
    {"max_tmpfs_size", "size", "", "maximum of `--container-tmpfs-size`; empty: no limit",
     &SitePolicy::max_tmpfs_size, key::is_upper_size_or_none, key::kUpperSizeRule},
    {"importer", "program", "", "external importer (same contract as pyxis's importer)",
     &SitePolicy::importer, key::is_absolute_or_none, "expected the absolute path of a program"},
    {"signature_policy", "file", "",
     "policy.json of podman and skopeo that decides which signatures images must have",
     &SitePolicy::signature_policy, key::is_absolute_or_none,
     "expected the absolute path of a file"},
    {"gpu", "auto, off", "auto",
     "inject the GPU driver and the step's GPUs unless the job says otherwise", &SitePolicy::gpu},
    {"gpu_devices", "allocated, accessible", "allocated",
     "GPUs of a step: those allocated by Slurm that its device cgroup allows, or all that it "
     "allows",
     &SitePolicy::gpu_devices},
    {"gpu_numbers", "auto, pci, file", "auto",
     "what Slurm's GPU numbers count: GPUs in PCI order, or files in gres.conf; auto: only where "
     "both are the same",
     &SitePolicy::gpu_numbers},
    {"driver_root", "directory", "",
     "location of the GPU driver's files, if not in the system directories",
     &SitePolicy::driver_root, key::is_absolute_or_none,
     "expected the absolute path of a directory"},
    {"prefer_cdi", "yes or no", "false", "use a CDI file for GPUs instead of driver discovery",
     &SitePolicy::prefer_cdi},
    {"cuda_compat", "yes or no", "true",
     "let an image's newer libcuda (forward compatibility) replace the driver's",
     &SitePolicy::cuda_compat},
    {"mpi", "image, host", "image", "MPI to use unless the job says otherwise", &SitePolicy::mpi},
    {"mpi_abi", "major, full, strict", "full",
     "how closely the node's MPI must match the image's to replace it", &SitePolicy::mpi_abi},
    {"mpi_libraries", "list of files", "", "the node's MPI libraries that replace the image's",
     &SitePolicy::mpi_libraries, key::is_absolute, key::kLibraryRule},
    {"mpi_dependencies", "list of files", "", "libraries of the node that these need",
     &SitePolicy::mpi_dependencies, key::is_absolute, key::kLibraryRule},
    {"mpi_mounts", "list of mounts", "", "other paths of the node that they need",
     &SitePolicy::mpi_mounts, key::is_mount, key::kMountRule},
    {"mpi_env", "list of NAME=VALUE", "",
     "variables of containers in which the node's MPI replaces the image's", &SitePolicy::mpi_env,
     key::is_assignment, "expected NAME=VALUE"},
    {"fabric", "auto, off, require", "auto",
     "inject fabric devices and libraries; require: fail a multi-node step that would use TCP",
     &SitePolicy::fabric},
    {"fabric_libraries", "list of files", "",
     "libraries of the node for the fabric: NCCL network plugins, providers",
     &SitePolicy::fabric_libraries, key::is_absolute, key::kLibraryRule},
    {"fabric_devices", "list of names", "",
     "fabric adapters that steps may use: names, PCI addresses, or patterns with * and ?; empty: "
     "all",
     &SitePolicy::fabric_devices, key::is_adapter,
     "expected an adapter such as mlx5_0, or a pattern with * and ?"},
    {"fallback_libraries", "list of files", "",
     "libraries of the node that the ones above need, added only where the image has none",
     &SitePolicy::fallback_libraries, key::is_absolute, key::kLibraryRule},
    {"frameworks", "yes or no", "true",
     "set the variables of PyTorch and similar frameworks unless they are set",
     &SitePolicy::frameworks},
    {"python_user_base", "yes or no", "true", "give `pip install --user` a directory per image",
     &SitePolicy::python_user_base},
    {"hooks_off", "list of names", "", "hooks to disable, such as 50-nccl", &SitePolicy::hooks_off,
     key::is_hook, "expected the name of a hook, such as 50-nccl"},
    {"hook_timeout", "seconds", "30", "time limit of a site hook", &SitePolicy::hook_timeout},
    {"user_hooks", "yes or no", "false",
     "run hooks in ~/.config/enroot/hooks.d if enroot_compat is set", &SitePolicy::user_hooks},
    {"enroot_compat", "yes or no", "false",
     "read enroot.conf, mounts.d, environ.d and hooks.d in /etc/enroot and ~/.config/enroot",
     &SitePolicy::enroot_compat},
    {"check_at_submit", "yes or no", "false",
     "let srun, sbatch and salloc ask the registry for the image", &SitePolicy::check_at_submit},
};

}  // namespace spc
