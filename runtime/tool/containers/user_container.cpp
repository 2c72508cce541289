#include "tool/containers/user_container.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "hook_engine/root_path.hpp"
#include "launch/hooks/shell_hooks.hpp"
#include "launch/host/host_side.hpp"
#include "launch/inside/image_files.hpp"
#include "task/fake_root.hpp"
#include "task/root/root_setup.hpp"

namespace spc::tool {
namespace {

/// A copy of the tree at `source`, in no place yet, with more flags than it has.
Result<UniqueFd> copy_tree(int source, const char* path, std::uint64_t attributes) {
  constexpr unsigned kWhole = AT_EMPTY_PATH | AT_RECURSIVE;
  UniqueFd tree(::open_tree(source, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | kWhole));
  if (!tree) return Error::from_errno(errno, "copy the mount of " + in_quotes(path));
  mount_attr attr{};
  attr.attr_set = attributes;
  if (::mount_setattr(tree.get(), "", kWhole, &attr, sizeof attr) != 0) {
    return Error::from_errno(errno, "set the flags of the mount of " + in_quotes(path));
  }
  return tree;
}

/// It belongs to whom the user is inside, and has no limit but the memory if none was asked for.
Result<UniqueFd> new_tmpfs(const OpenedSource& source) {
  const UniqueFd context(::fsopen("tmpfs", FSOPEN_CLOEXEC));
  const auto set = [&](const char* key, const std::string& value) {
    return ::fsconfig(context.get(), FSCONFIG_SET_STRING, key, value.c_str(), 0) == 0;
  };
  const bool ready = context && set("mode", "0755") &&
                     (source.size == 0 || set("size", std::to_string(source.size))) &&
                     ::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0;
  const unsigned attributes = TaskMessage::attributes_of(source.flags) | MOUNT_ATTR_NODEV;
  UniqueFd mount(ready ? ::fsmount(context.get(), FSMOUNT_CLOEXEC, attributes) : -1);
  if (!mount) return Error::from_errno(errno, "mount a tmpfs");
  return mount;
}

Result<UniqueFd> new_terminals() {
  const UniqueFd context(::fsopen("devpts", FSOPEN_CLOEXEC));
  const bool ready = context &&
                     ::fsconfig(context.get(), FSCONFIG_SET_STRING, "ptmxmode", "666", 0) == 0 &&
                     ::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0;
  UniqueFd mount(
      ready ? ::fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC)
            : -1);
  if (!mount) return Error::from_errno(errno, "mount a devpts");
  return mount;
}

using HostTrees = std::array<UniqueFd, static_cast<std::size_t>(HostTree::count)>;

Result<HostTrees> copy_host_trees(const MountedImage& image) {
  HostTrees trees;
  const auto put = [&](HostTree which, Result<UniqueFd> tree) -> Result<void> {
    trees[static_cast<std::size_t>(which)] = SPC_TRY(std::move(tree));
    return {};
  };
  constexpr std::uint64_t kQuiet = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  SPC_TRY(put(HostTree::proc, copy_tree(AT_FDCWD, "/proc", kQuiet)));
  SPC_TRY(put(HostTree::sys, copy_tree(AT_FDCWD, "/sys", kQuiet | MOUNT_ATTR_RDONLY)));
  SPC_TRY(put(HostTree::dev, copy_tree(AT_FDCWD, "/dev", MOUNT_ATTR_NOSUID)));
  SPC_TRY(put(HostTree::tmp, copy_tree(AT_FDCWD, (image.place + "/tmp").c_str(),
                                       MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)));
  return trees;
}

/// What lies on the file systems of /dev and /dev/pts keeps its devices: they are in the container
/// anyway.
bool lies_on_dev(const OpenedSource& source) {
  struct stat own {};
  if (!source.path || ::fstat(source.path.get(), &own) != 0) return false;
  const auto has = [&](const char* tree) {
    struct stat there {};
    return ::stat(tree, &there) == 0 && there.st_dev == own.st_dev;
  };
  return has("/dev") || has("/dev/pts");
}

Result<std::vector<UniqueFd>> copy_sources(const HostSide& side, const MountedImage& image) {
  std::vector<UniqueFd> trees;
  std::uint32_t data = 0;
  for (const OpenedSource& source : side.sources) {
    if ((source.flags & TaskMessage::source_terminals) != 0) {
      trees.push_back(SPC_TRY(new_terminals()));
      continue;
    }
    if ((source.flags & TaskMessage::source_tmpfs) != 0) {
      trees.push_back(SPC_TRY(new_tmpfs(source)));
      continue;
    }
    // What is in a file of data has been mounted before, in this order.
    const bool is_data = (source.flags & TaskMessage::source_squashfs) != 0;
    if (is_data && data == image.data)
      return Error(ErrorKind::unavailable, "--mounts: a file was changed concurrently");
    const std::string place = is_data ? image.place + "/data" + std::to_string(data++) : "";
    std::uint64_t attributes = TaskMessage::attributes_of(source.flags);
    if (!lies_on_dev(source)) attributes |= MOUNT_ATTR_NODEV;
    trees.push_back(
        SPC_TRY(copy_tree(is_data ? AT_FDCWD : source.path.get(), place.c_str(), attributes)));
  }
  return trees;
}

/// The calling process then sees the container's root only.
Result<void> pivot_into(const std::string& root) {
  if (::chdir(root.c_str()) != 0) return Error::from_errno(errno, "enter the container's root");
  if (::syscall(SYS_pivot_root, ".", ".") != 0)
    return Error::from_errno(errno, "pivot into the container");
  if (::umount2(".", MNT_DETACH) != 0) return Error::from_errno(errno, "leave the host's root");
  return {};
}

RootSetup root_setup_of(HostSide side, const UserIdentity& user, RootMap map, bool mounts_home,
                        const std::string& workdir) {
  RootSetup root = std::move(side.root);
  if (map == RootMap::self) {
    root.passwd_entry = user.passwd_entry();
    root.shadow_entry = user.shadow_entry();
    root.group_entries = user.group_entries;
  }
  root.has_strange_groups = ::getgroups(0, nullptr) > 1;
  root.namespaces = map == RootMap::root ? own_user : 0U;
  if (!mounts_home && check_home(user.home, true)) root.directories.push_back(user.home);
  root.directories.push_back(workdir);
  return root;
}

Result<void> make_root_read_only() {
  mount_attr attr{};
  attr.attr_set = MOUNT_ATTR_RDONLY;
  if (::mount_setattr(AT_FDCWD, "/", 0, &attr, sizeof attr) != 0)
    return Error::from_errno(errno, "make the root read-only");
  return {};
}

Result<void> change_directory(const std::string& path) {
  const UniqueFd directory = open_inside(path.c_str(), O_PATH | O_DIRECTORY);
  if (!directory || ::fchdir(directory.get()) != 0) {
    return Error::from_errno(errno, "couldn't chdir to " + in_quotes(path))
        .hint("--workdir must exist in the image or be a mount");
  }
  return {};
}

/// In sight of the host, with all rights in our user namespace.
Result<void> run_hooks_of_enroot(const MountedImage& image, const ShellHookStart& start,
                                 const AttachSource& attach, const TaskHooks& hooks,
                                 PreparedHooks& prepared, HostSide& side, Log& log) {
  const std::string place = image.place + "/root";
  const UniqueFd root(::open(place.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root) return Error::from_errno(errno, "open the container's root");
  const auto open_directory = [&](const std::string& path) {
    return open_in_root(root.get(), path, MakeTarget::directory);
  };
  SPC_TRY(attach_host_trees(side.root, open_directory, attach));
  side.root.has_host_trees = true;
  prepared.add(SPC_TRY(
      run_shell_hooks_alone(hooks.shell_hooks(), place, image.place + "/hooks", start, log)));
  return {};
}

/// Of a root in which nothing can be made: what the image has must do.
void leave_out_what_is_made(RootSetup& root, const PreparedHooks& hooks) {
  root.passwd_entry.clear();
  root.group_entries.clear();
  root.has_strange_groups = false;
  root.directories.clear();
  root.namespaces = 0;
  hooks.leave_out(root);
}

}  // namespace

UserIdentity identity_inside(RootMap map) {
  const UserIdentity user = UserIdentity::of_job(as_map(environ));
  return map == RootMap::root ? user.as_root() : user;
}

SitePolicy site_for(const OfEnroot& of_enroot) {
  SitePolicy site = SitePolicy::read();
  if (of_enroot.hooks) {
    site.enroot_compat = true;
    site.user_hooks = true;
  }
  return site;
}

Result<MadeContainer> make_user_container(const MountedImage& image, const LaunchRequest& request,
                                          ImageSettings settings, RootMap map,
                                          const OfEnroot& of_enroot,
                                          const std::map<std::string, std::string>& environment,
                                          const SitePolicy& site, Log& log) {
  const UserIdentity outside = UserIdentity::of_job(environment);
  const UserIdentity user = identity_inside(map);
  const bool mounts_home = request.mount_home.value_or(false) && !request.contain;
  if (mounts_home) SPC_TRY_DURING("--mount-home", check_home(outside.home, false));
  // Its copy of the mounts: the parent keeps the image mounted and the host in sight.
  if (::unshare(CLONE_NEWNS) != 0) return Error::from_errno(errno, "create a mount namespace");
  UniqueFd mounts(::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
  if (!mounts) return Error::from_errno(errno, "open the mount namespace");
  HookContext context = hook_context(request, environment, site);
  context.remap_root = map == RootMap::root;
  auto hooks = SPC_TRY(TaskHooks::find(std::move(context), log));
  std::optional<PreparedHooks> prepared;
  const auto prepare = [&](HostSide& so_far) -> Result<void> {
    prepared = SPC_TRY(PreparedHooks::prepare(hooks, so_far));
    return {};
  };
  const std::string home = mounts_home || request.contain ? outside.home : "";
  auto side = SPC_TRY(gather(request, home, environment, log, ContainerState::is_new, prepare));
  if (mounts_home) move_mount_target(side.root, outside.home, user.home);
  ContainerSpec spec;
  spec.image = request.image;
  if (const auto digest = Digest::parse(settings.manifest)) spec.manifest = *digest;
  spec.settings = settings;
  spec.user = user;
  SPC_TRY(prepared->create_on_host(hooks, spec));
  SPC_TRY(hooks.before_entering(spec));
  auto host = SPC_TRY(copy_host_trees(image));
  auto sources = SPC_TRY(copy_sources(side, image));
  const auto mount = [&](std::uint32_t index, const UniqueFd& target,
                         const std::string& shown_as) -> Result<void> {
    const UniqueFd& tree = index < sources.size() ? sources[index] : host[index - sources.size()];
    if (::move_mount(tree.get(), "", target.get(), "",
                     MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) != 0) {
      return Error::from_errno(errno, "mount " + in_quotes(shown_as));
    }
    return {};
  };
  const AttachSource attach{.begin = mount, .settle = {}};
  if (PreparedHooks::runs_shell_hooks(hooks) && image.writable) {
    const ShellHookStart start{request, of_enroot.environment, site, spec};
    SPC_TRY(run_hooks_of_enroot(image, start, attach, hooks, *prepared, side, log));
  }
  SPC_TRY(pivot_into(image.place + "/root"));

  if (settings.in_files) read_image_files(environment, settings, &log);
  const std::string workdir = workdir_of(request, settings);
  auto root = root_setup_of(std::move(side), user, map, mounts_home,
                            request.workdir.empty() ? workdir : user.home);
  root.not_ours = [&](const std::string& paths) { log.write(LogLevel::warning, not_ours(paths)); };
  spec.settings = settings;
  TaskEdits edits;
  if (image.writable) {
    edits = SPC_TRY(prepared->create(hooks, spec, root));
    SPC_TRY(set_up_root(root, attach));
    SPC_TRY(prepared->start(hooks));
  } else if (!request.devices.empty()) {
    return Error(ErrorKind::unavailable,
                 "--device: this kernel cannot set up the container writable, as devices need it")
        .hint("see scontainer doctor");
  } else {
    leave_out_what_is_made(root, *prepared);
    SPC_TRY(set_up_root(root, attach));
  }
  if (!request.writable.value_or(true)) SPC_TRY(make_root_read_only());
  return MadeContainer{std::move(mounts), std::move(settings), std::move(edits), std::move(hooks)};
}

Result<void> begin_task(const LaunchRequest& request, const ImageSettings& settings,
                        const TaskEdits& edits, TaskHooks& hooks, RootMap map, UserIdentity user,
                        std::map<std::string, std::string>& environment, Log& log) {
  const std::string workdir = workdir_of(request, settings);
  SPC_TRY(change_directory(workdir));
  if (::access(user.shell.c_str(), X_OK) != 0) user.shell = "/bin/sh";
  ContainerSpec spec;
  spec.image = request.image;
  if (const auto digest = Digest::parse(settings.manifest)) spec.manifest = *digest;
  spec.settings = settings;
  spec.user = user;
  spec.environment =
      merge_environment(environment, settings, {}, request.environment, user, workdir);
  SPC_TRY(hooks.apply(edits, spec, log));
  environment.clear();
  for (const auto& [name, variable] : spec.environment) environment[name] = variable.value;
  if ((request.namespaces & own_cgroup) != 0 && ::unshare(CLONE_NEWCGROUP) != 0) {
    return Error::from_errno(errno, "--unshare=cgroup: create a cgroup namespace");
  }
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return Error::from_errno(errno, "set no_new_privs");
  return map == RootMap::root ? fake_root_calls() : Result<void>();
}

}  // namespace spc::tool
