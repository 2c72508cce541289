// The CDI hook: choice of devices, and translation of their edits.

#include "hooks/cdi/cdi.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <set>

#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "hooks/cdi/registry.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/nvidia_driver/driver.hpp"
#include "hooks/step/allocation.hpp"

namespace spc {

// --- inject ---

namespace {

constexpr std::size_t kMostLibraries = 4096;

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

bool lies_in(const std::string& path, const std::string& directory) {
  return path.size() > directory.size() && path.starts_with(directory) &&
         path[directory.size()] == '/';
}

/// Returns whether the path is in /dev, /proc or /sys. These are the host's: no file has to be
/// created there, and none can be.
bool is_of_host(const std::string& path) {
  constexpr std::array<const char*, 3> kTrees{"/dev", "/proc", "/sys"};
  return std::any_of(kTrees.begin(), kTrees.end(),
                     [&](const char* tree) { return lies_in(path, tree); });
}

class Injection {
 public:
  Injection(const HookContext& context, std::string files)
      : context_(context), files_(std::move(files)) {}

  Result<Edits> run(const CdiEdits& wanted) && {
    for (const std::string& variable : wanted.env) {
      const auto equals = variable.find('=');
      edits_.environment.set[variable.substr(0, equals)] = variable.substr(equals + 1);
    }
    for (const CdiDeviceNode& node : wanted.device_nodes) SPC_TRY(add_node(node));
    for (const CdiMount& mount : wanted.mounts) SPC_TRY(add_mount(mount));
    for (const CdiHook& hook : wanted.hooks) SPC_TRY(add_hook(hook));
    if (!wanted.net_devices.empty()) {
      return Error(ErrorKind::invalid, formatted("network interface {}: interfaces are not moved",
                                                 in_quotes(wanted.net_devices.front())))
          .hint("containers use the node's network, which has it");
    }
    if (wanted.intel_rdt)
      edits_.notes.push_back("intelRdt is ignored: Slurm controls a step's use of the processor");
    add_groups(wanted.additional_gids);
    return std::move(edits_);
  }

 private:
  [[nodiscard]] std::string requested_there() const {
    return formatted("the CDI file {} requests it", files_);
  }

  Error stale(Error error) const {
    return std::move(error).hint(
        formatted("the CDI file {} names it; recreate it if the driver has changed", files_));
  }

  [[nodiscard]] Result<struct stat> host_file(const std::string& path,
                                              const std::string& what) const {
    struct stat status {};
    if (::stat((context_.host_root + path).c_str(), &status) == 0) return status;
    return stale(Error::from_errno(errno, formatted("{} {}", what, in_quotes(path))));
  }

  /// Refuses a missing mount target in the host's own trees, where nothing can be created.
  [[nodiscard]] Result<void> can_be_made(const std::string& target, const std::string& what) const {
    if (!is_of_host(target) || ::access((context_.host_root + target).c_str(), F_OK) == 0)
      return {};
    return Error(ErrorKind::invalid,
                 formatted("{} {}: containers have the node's {}, in which nothing can be created",
                           what, in_quotes(target), target.substr(0, target.find('/', 1))))
        .hint(requested_there());
  }

  Result<void> add_node(const CdiDeviceNode& node) {
    const std::string path = normal_path(node.path);
    const std::string source = node.host_path.empty() ? path : normal_path(node.host_path);
    if (!lies_in(source, "/dev")) {
      return Error(ErrorKind::invalid,
                   formatted("device node {}: is outside /dev", in_quotes(source)))
          .hint(formatted("the CDI file {} names it", files_));
    }
    SPC_TRY(host_file(source, "device node"));
    if (path != source) SPC_TRY(can_be_made(path, "device node"));
    edits_.devices.push_back({.path = path, .source = source == path ? std::string() : source});
    unsigned minor = 0;
    constexpr std::string_view kGpu = "/dev/nvidia";
    const char* const end = path.data() + path.size();
    if (path.starts_with(kGpu) &&
        std::from_chars(path.data() + kGpu.size(), end, minor).ptr == end && minor < 64) {
      gpu_mask_ |= std::uint64_t{1} << minor;
    }
    return {};
  }

  Result<void> add_mount(const CdiMount& mount) {
    MountEdit edit;
    edit.target = normal_path(mount.container_path);
    const std::string what = "mount " + in_quotes(mount.container_path);
    if (edit.target == "/") {
      return Error(ErrorKind::invalid, what + ": is the image's root").hint(requested_there());
    }
    const bool tmpfs = mount.type == "tmpfs";
    constexpr std::array<std::string_view, 4> kBind{"", "bind", "rbind", "none"};
    if (!tmpfs && std::find(kBind.begin(), kBind.end(), mount.type) == kBind.end()) {
      return Error(ErrorKind::invalid, formatted("{}: file systems of type {} are not supported",
                                                 what, in_quotes(mount.type)))
          .hint(requested_there());
    }
    if (!tmpfs) {
      edit.source = normal_path(mount.host_path);
      if (!mount.host_path.starts_with('/') || edit.source == "/") {
        return Error(ErrorKind::invalid,
                     formatted("{}: of {}, which is not a single file or directory of the node",
                               what, in_quotes(mount.host_path)))
            .hint(requested_there());
      }
      // No mount is needed: the container has the host's /dev.
      if (edit.source == edit.target && lies_in(edit.target, "/dev")) return {};
      if (auto file = host_file(edit.source, "mount source"); !file) {
        if (!is_of_daemon(edit.source)) return std::move(file).error();
        const auto why =
            Error::from_errno(file.error().sys_errno(), "mount source " + in_quotes(edit.source));
        edits_.notes.push_back(formatted("{}: left out", why.message()));
        return {};
      }
    }
    SPC_TRY(can_be_made(edit.target, "mount"));
    edit.read_only = false;
    for (const std::string& option : mount.options) add_option(edit, option, tmpfs);
    edits_.mounts.push_back(std::move(edit));
    return {};
  }

  void add_option(MountEdit& edit, const std::string& option, bool tmpfs) {
    // Every mount has nosuid and nodev. Propagation and access times need no handling.
    static const std::set<std::string_view> kNothingToDo{
        "rw",         "bind",     "rbind",       "nosuid",     "nodev",      "exec",     "private",
        "rprivate",   "slave",    "rslave",      "shared",     "rshared",    "relatime", "noatime",
        "nodiratime", "defaults", "strictatime", "unbindable", "runbindable"};
    if (option == "ro") edit.read_only = true;
    if (option == "noexec") edit.no_exec = true;
    std::uint64_t size = 0;
    if (tmpfs && option.starts_with("size=") && parse_size(option.substr(5), size)) {
      edit.size = size;
      return;
    }
    if (option == "ro" || option == "noexec" || kNothingToDo.contains(option)) return;
    // The root directory has the user's own mode in any case.
    if (tmpfs && option.starts_with("mode=")) return;
    edits_.notes.push_back(
        formatted("mount {}: option {} is ignored", in_quotes(edit.target), in_quotes(option)));
  }

  static bool parse_size(std::string_view text, std::uint64_t& bytes) {
    constexpr std::string_view kUnits = "kmg";
    unsigned shift = 0;
    if (!text.empty()) {
      const auto unit = kUnits.find(static_cast<char>(text.back() | 0x20));
      if (unit != std::string_view::npos) {
        shift = static_cast<unsigned>(10 * (unit + 1));
        text.remove_suffix(1);
      }
    }
    if (!read_number(text, bytes) || bytes > (UINT64_MAX >> shift)) return false;
    bytes <<= shift;
    return true;
  }

  Result<void> add_hook(const CdiHook& hook) {
    const auto verb = verb_of(hook);
    if (verb && verb->name == "create-symlinks") return add_links(*verb);
    if (verb && verb->name == "update-ldcache") return add_libraries(*verb);
    if (verb && verb->name == "enable-cuda-compat") {
      const auto versions = verb->values_of("host-driver-version");
      // `create` decides by the image.
      if (!versions.empty()) edits_.remembered[kCdiDriverVersion] = versions.back();
      return {};
    }
    if (verb && verb->name == "update-application-profile") {
      add_application_profile();
      return {};
    }
    // Processes in the container cannot create device nodes, and directories have the image's
    // modes.
    if (verb && (verb->name == "disable-device-node-modification" || verb->name == "chmod"))
      return {};
    if (!verb) return add_program(hook);
    // Ignore unknown verbs, as nvidia-cdi-hook itself does, so that files of a newer toolkit can be
    // used.
    if (verb->name != "noop")
      edits_.warnings.push_back(formatted("hook {}: {} is unknown and left out",
                                          in_quotes(hook.path), in_quotes(verb->name)));
    return {};
  }

  [[nodiscard]] Error cannot_run(const CdiHook& hook, const std::string& why) const {
    return Error(ErrorKind::refused, formatted("hook {}: {}", in_quotes(hook.path), why))
        .hint(requested_there());
  }

  /// Adds a program, for whose effects its vendor is responsible. Refuses shells, because their
  /// name does not show their effects.
  Result<void> add_program(const CdiHook& hook) {
    constexpr std::array<std::string_view, 7> kShells{"sh",  "bash", "dash",   "ash",
                                                      "ksh", "zsh",  "busybox"};
    constexpr std::array<std::string_view, 3> kStages{"prestart", "createRuntime",
                                                      "createContainer"};
    const std::string program = hook.path.substr(hook.path.rfind('/') + 1);
    if (std::find(kShells.begin(), kShells.end(), program) != kShells.end())
      return cannot_run(hook, "a shell is not run for a device");
    if (std::find(kStages.begin(), kStages.end(), hook.stage) == kStages.end()) {
      return cannot_run(hook, "programs are not run for a device in stage " + hook.stage);
    }
    edits_.programs.push_back({.path = hook.path,
                               .args = hook.args,
                               .env = hook.env,
                               .timeout = hook.timeout.value_or(0)});
    edits_.notes.push_back(
        formatted("the program {} runs before the container is entered", hook.path));
    return {};
  }

  Result<void> add_links(const CdiVerb& verb) {
    for (const std::string& link : verb.values_of("link")) {
      const auto colons = link.find("::");
      if (colons == std::string::npos || colons == 0 || colons + 2 == link.size()) {
        return Error(ErrorKind::invalid,
                     formatted("create-symlinks: {} is not TARGET::LINK", in_quotes(link)));
      }
      const std::string path = normal_path("/" + link.substr(colons + 2));
      if (!is_of_host(path))
        edits_.symlinks.push_back({.path = path, .target = link.substr(0, colons)});
    }
    return {};
  }

  /// Adds the libraries that these mounts put into the folders. The image's loader already knows
  /// the other libraries there.
  Result<void> add_libraries(const CdiVerb& verb) {
    std::set<std::string> folders;
    for (const std::string& folder : verb.values_of("folder")) folders.insert(normal_path(folder));
    for (const MountEdit& mount : edits_.mounts) {
      if (mount.source.empty()) continue;
      if (folders.contains(directory_of(mount.target))) add_library(mount.source, mount.target);
      for (const std::string& folder : folders) {
        if (folder != mount.target && !lies_in(folder, mount.target)) continue;
        const std::string below = folder.substr(mount.target.size());
        for (const std::string& file : files_in(mount.source + below)) {
          add_library(mount.source + below + "/" + file, folder + "/" + file);
        }
      }
    }
    return {};
  }

  [[nodiscard]] std::vector<std::string> files_in(const std::string& directory) const {
    std::vector<std::string> files;
    for (DirectoryReader entries(context_.host_root + directory);
         files.size() < kMostLibraries && entries.next();) {
      if (entries.name().find(".so") != std::string_view::npos) files.emplace_back(entries.name());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  void add_library(const std::string& source, const std::string& target) {
    if (target.find(".so", target.rfind('/')) == std::string::npos ||
        edits_.libraries.size() >= kMostLibraries)
      return;
    const UniqueFd file(
        ::open((context_.host_root + source).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (!file) return;
    const auto soname = soname_of(file.get());
    if (!soname || soname->find('/') != std::string::npos) return;
    const auto same = [&](const LibraryEdit& library) { return library.path == target; };
    if (std::none_of(edits_.libraries.begin(), edits_.libraries.end(), same)) {
      const std::uint16_t machine = elf_machine_of(file.get()).value_or(0);
      edits_.libraries.push_back(
          {.soname = *soname,
           .path = target,
           .before = true,
           .machine = machine == own_machine() ? std::uint16_t{0} : machine});
    }
  }

  /// Restricts graphics programs to the GPUs of the container, as libnvidia-container does.
  void add_application_profile() {
    if (gpu_mask_ == 0) return;
    std::array<char, 16> digits{};
    const char* const end =
        std::to_chars(digits.data(), digits.data() + digits.size(), gpu_mask_, 16).ptr;
    edits_.files.push_back(
        {.path = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf",
         .content = R"({"profiles":[{"name":"_container_","settings":["EGLVisibleDGPUDevices",0x)" +
                    std::string(digits.data(), static_cast<std::size_t>(end - digits.data())) +
                    R"(]}],"rules":[{"pattern":[],"profile":"_container_"}]})"
                    "\n",
         .mode = 0444});
  }

  void add_groups(const std::vector<std::uint64_t>& gids) {
    std::vector<gid_t> own(static_cast<std::size_t>(std::max(0, ::getgroups(0, nullptr))));
    if (!own.empty())
      own.resize(static_cast<std::size_t>(
          std::max(0, ::getgroups(static_cast<int>(own.size()), own.data()))));
    own.push_back(context_.gid);
    for (const std::uint64_t gid : gids) {
      if (std::find(own.begin(), own.end(), gid) != own.end()) continue;
      edits_.warnings.push_back(
          formatted("the device requests the group {}, which the user is not a member of"
                    " (hint: ask the administrator to add the user)",
                    gid));
    }
  }

  const HookContext& context_;
  std::string files_;  ///< for hints
  Edits edits_;
  std::uint64_t gpu_mask_ = 0;  ///< by minor number
};

/// Returns the nodes of the device itself, without display nodes, whose modes differ.
std::vector<std::string> decisive_nodes(const CdiDevice& device) {
  std::vector<std::string> all;
  std::vector<std::string> decisive;
  for (const CdiDeviceNode& node : device.edits.device_nodes) {
    all.push_back(node.host_path.empty() ? node.path : node.host_path);
    if (!lies_in(all.back(), "/dev/dri")) decisive.push_back(all.back());
  }
  return decisive.empty() ? all : decisive;
}

}  // namespace

bool is_of_daemon(const std::string& path) {
  const bool in_run = lies_in(path, "/run") || lies_in(path, "/var/run");
  return path == "/tmp/nvidia-mps" ||
         (in_run && (path.ends_with("/socket") || path.ends_with(".sock")));
}

Result<Edits> edits_for(const HookContext& context, const std::vector<CdiEntry>& devices) {
  std::string files;
  std::set<std::string> seen;
  for (const CdiEntry& entry : devices) {
    if (seen.insert(entry.file->path).second)
      files += (files.empty() ? "" : " or ") + entry.file->path;
  }
  auto edits = SPC_TRY(Injection(context, files).run(cdi_edits_of(devices)));
  for (const CdiEntry& entry : devices) {
    edits.notes.push_back(formatted("{} as {} describes it", entry.name(), entry.file->path));
    const auto nodes = decisive_nodes(*entry.device);
    const auto may_open = [&](const std::string& node) { return context.may_open(node); };
    if (!nodes.empty() && std::none_of(nodes.begin(), nodes.end(), may_open)) {
      edits.warnings.push_back(
          formatted("device {}: this step cannot open {} (hint: request the device from Slurm, "
                    "too: --gres or --gpus)",
                    in_quotes(entry.name()), in_quotes(nodes.front())));
    }
  }
  return edits;
}

// --- cdi ---

namespace {

constexpr char kGpus[] = "nvidia.com/gpu";
/// Key in Edits::remembered: the result of why_no_cuda_compat().
constexpr char kNoCompat[] = "no compat";

/// Returns root's user ID in this process. In a user namespace of the user (scontainer run), root
/// and all other unmapped users have one ID, that of the owner of /. Such a container has no more
/// rights than the user has without CDI. In a test the files belong to the calling user.
uid_t trusted_owner(const HookContext& context) {
  struct stat root {};
  if (!context.host_root.empty()) return ::geteuid();
  return ::stat("/", &root) == 0 ? root.st_uid : 0;
}

bool names_gpus(const HookContext& context) {
  return std::any_of(context.devices.begin(), context.devices.end(), [](const std::string& name) {
    return name.starts_with(std::string(kGpus) + "=");
  });
}

/// Returns whether the site wants GPUs to come from CDI files, and this step has not declined GPUs.
bool prefers_cdi(const HookContext& context) {
  return context.flag("prefer_cdi", false) &&
         context.gpu.value_or(context.setting("gpu", "auto") != "off");
}

/// Returns the device nodes that determine who may use a GPU. Display nodes are left out: a user
/// who may compute need not have access to them.
std::vector<std::string> device_nodes_of(const CdiEntry& gpu) {
  std::vector<std::string> nodes;
  for (const CdiDeviceNode& node : gpu.device->edits.device_nodes) {
    const std::string& path = node.host_path.empty() ? node.path : node.host_path;
    if (!path.starts_with("/dev/dri/")) nodes.push_back(path);
  }
  return nodes;
}

/// Returns the GPUs whose nodes the step may open. A GPU has several names (index, UUID) in such a
/// file; each GPU is returned once.
std::vector<CdiEntry> usable_gpus(const HookContext& context, const CdiRegistry& registry) {
  std::vector<CdiEntry> usable;
  std::set<std::string> covered;
  for (const CdiEntry& entry : registry.devices_of(kGpus)) {
    if (entry.device->name == "all") continue;
    const auto nodes = device_nodes_of(entry);
    const bool open = std::all_of(nodes.begin(), nodes.end(),
                                  [&](const std::string& node) { return context.may_open(node); });
    const bool known = std::all_of(nodes.begin(), nodes.end(),
                                   [&](const std::string& node) { return covered.contains(node); });
    if (!open || known) continue;
    covered.insert(nodes.begin(), nodes.end());
    usable.push_back(entry);
  }
  return usable;
}

/// Returns N of the GPU's /dev/nvidiaN.
unsigned minor_of(const CdiEntry& gpu) {
  for (const std::string& node : device_nodes_of(gpu)) {
    if (const auto minor = number_behind("/dev/nvidia", node)) return *minor;
  }
  return 0;
}

/// Removes the GPUs that Slurm has not allocated to the step, and denies their nodes. NVIDIA's tool
/// lists GPUs in PCI order, as allocated_among() expects.
void take_others(const HookContext& context, std::vector<CdiEntry>& gpus, Edits& edits) {
  if (has_mig_parts(context)) return;
  std::vector<unsigned> minors;
  for (const CdiEntry& gpu : gpus) minors.push_back(minor_of(gpu));
  const GpuAllocation allocation = allocated_among(context, minors);
  if (!allocation.doubt.empty()) edits.warnings.push_back(allocation.doubt);
  if (!allocation.gpus) return;
  std::vector<CdiEntry> kept;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (allocation.gpus->contains(i)) {
      kept.push_back(gpus[i]);
    } else {
      std::ranges::move(device_nodes_of(gpus[i]), std::back_inserter(edits.denied_devices));
    }
  }
  gpus = std::move(kept);
}

std::string why_no_compat_here(const HookContext& context) {
  NvidiaDriver driver;
  discover_nvidia_devices(context.host_root, driver);
  std::erase_if(driver.gpus, [&](const NvidiaGpu& gpu) { return !context.may_open(gpu.node); });
  return why_no_cuda_compat(context, driver.gpus);
}

bool wants_cdi(const HookContext& context) {
  return !context.devices.empty() || prefers_cdi(context);
}

Result<Edits> prepare_cdi_devices(const HookContext& context) {
  const auto registry = CdiRegistry::read(context.host_root, trusted_owner(context));
  std::vector<CdiEntry> devices;
  Edits allocated;
  if (prefers_cdi(context) && !names_gpus(context)) {
    devices = usable_gpus(context, registry);
    take_others(context, devices, allocated);
  }
  Edits edits;
  const bool matters =
      !context.devices.empty() || !devices.empty() || context.may_open("/dev/nvidiactl");
  for (const std::string& text : context.devices) {
    const auto name = SPC_TRY(CdiName::parse(text));
    const auto found = SPC_TRY(registry.find(name));
    devices.insert(devices.end(), found.begin(), found.end());
  }
  if (!devices.empty()) edits = SPC_TRY(edits_for(context, devices));
  if (edits.remembered.contains(kCdiDriverVersion))
    edits.remembered[kNoCompat] = why_no_compat_here(context);
  edits.denied_devices = std::move(allocated.denied_devices);
  std::ranges::move(allocated.warnings, std::back_inserter(edits.warnings));
  auto& problems = matters ? edits.warnings : edits.notes;
  problems.insert(problems.begin(), registry.problems().begin(), registry.problems().end());
  return edits;
}

/// Decides by the image whether its CUDA libraries replace the driver's.
Result<void> create_cdi_devices(const HookContext& context, Edits& edits) {
  const auto version = edits.remembered.find(kCdiDriverVersion);
  if (version == edits.remembered.end() || !context.open_in_image) return {};
  add_compat(cuda_compat_of_image(context, version->second, edits.remembered[kNoCompat]), edits);
  return {};
}

}  // namespace

bool cdi_serves_gpus(const HookContext& context) {
  const auto off = context.settings_of("hooks_off");
  if (std::find(off.begin(), off.end(), cdi_hook.name) != off.end()) return false;
  if (names_gpus(context)) return true;
  return prefers_cdi(context) &&
         !usable_gpus(context, CdiRegistry::read(context.host_root, trusted_owner(context)))
              .empty();
}

const Hook cdi_hook{.name = "60-cdi",
                    .says = "CDI devices described in /etc/cdi and /run/cdi",
                    .when = wants_cdi,
                    .prepare = prepare_cdi_devices,
                    .create = create_cdi_devices};

}  // namespace spc
