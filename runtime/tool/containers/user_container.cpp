#include "tool/containers/user_container.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <iterator>
#include <vector>

#include "base/file.hpp"
#include "base/process/child.hpp"
#include "base/socket.hpp"
#include "base/system_call.hpp"
#include "hook_engine/enroot_fstab.hpp"
#include "launch/hooks/shell_hooks.hpp"
#include "launch/sources/host_side.hpp"
#include "launch/task/image_files.hpp"
#include "mount/mount.hpp"
#include "protocol/wire_error.hpp"
#include "task/root_setup.hpp"
#include "task/security.hpp"

namespace spc::tool {

// --- user container ---

namespace {

/// Returns the container's mounts: the sources, followed by the HostTrees.
Result<std::vector<DetachedMount>> mount_trees(const RootSetup& root, const MountedImage& image,
                                               std::uint32_t namespaces) {
  const auto place = SPC_TRY(own(::open(image.place.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC),
                                 "open directory " + in_quotes(image.place)));
  MountDefaults defaults{.uid = ::geteuid(), .gid = ::getegid()};
  defaults.find_devices();
  std::vector<DetachedMount> trees;
  std::uint32_t data = 0;
  for (const Mount& source : root.mounts) {
    const TaskMessage message{.kind = TaskMessageKind::source,
                              .source_flags = source.flags,
                              .size = source.size,
                              .inodes = source.inodes};
    // Data files have been mounted before, in this order.
    const bool is_data = (source.flags & TaskMessage::source_squashfs) != 0;
    if (is_data && data == image.data)
      return Error(ErrorKind::unavailable, "--mounts: a file was changed concurrently");
    const std::string name = is_data ? "data" + std::to_string(data++) : "";
    trees.push_back(
        SPC_TRY(is_data ? clone_tree(place.get(), name.c_str(),
                                     TaskMessage::attributes_of(source.flags) | MOUNT_ATTR_NODEV)
                        : mount_source(message, source.source.get(), defaults)));
  }
  SPC_TRY(add_host_trees(trees, namespaces));
  trees.push_back(SPC_TRY(clone_tree(place.get(), "tmp", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)));
  return trees;
}

void complete_root(RootSetup& root, const UserIdentity& user, RootMap map, bool mounts_home,
                   const std::string& workdir) {
  if (map == RootMap::self) {
    root.passwd_entry = user.passwd_entry();
    root.shadow_entry = user.shadow_entry();
    root.group_entries = user.group_entries;
  }
  root.has_strange_groups = ::getgroups(0, nullptr) > 1;
  root.namespaces = map == RootMap::root ? own_user : 0U;
  if (!mounts_home && check_home(user.home, true)) root.directories.push_back(user.home);
  root.directories.push_back(workdir);
}

Result<void> change_directory(const std::string& path) {
  const UniqueFd directory = open_inside(path.c_str(), O_PATH | O_DIRECTORY);
  if (!directory || ::fchdir(directory.get()) != 0) {
    return Error::from_errno(errno, "couldn't chdir to " + in_quotes(path))
        .hint("--workdir must exist in the image or be a mount");
  }
  return {};
}

/// Runs enroot's hooks in sight of the host, with all capabilities in this user namespace.
Result<HookEdits> run_hooks_of_enroot(const MountedImage& image, int root,
                                      const ShellHookStart& start,
                                      const AttachSource& attach_source, const StepHooks& hooks,
                                      RootSetup& setup, Log& log) {
  const auto open_directory = [&](const std::string& path) {
    return open_in_root(root, path, MakeTarget::directory);
  };
  SPC_TRY(attach_host_trees(setup, open_directory, attach_source));
  setup.has_host_trees = true;
  return run_shell_hooks_alone(hooks.shell_hooks(), image.place + "/root", image.place + "/hooks",
                               start, log);
}

/// For a read-only root: skips everything that would have to be created.
void leave_out_what_is_made(RootSetup& root, const HookEdits& edits) {
  root.passwd_entry.clear();
  root.group_entries.clear();
  root.has_strange_groups = false;
  root.directories.clear();
  root.namespaces = 0;
  leave_out_edits(edits, root);
}

}  // namespace

UserIdentity identity_inside(RootMap map) {
  const UserIdentity user = UserIdentity::of_job(as_map(environ));
  return map == RootMap::root ? user.as_root() : user;
}

/// A process that is root here already has another home in /etc/passwd.
UserIdentity identity_outside(RootMap map, const std::map<std::string, std::string>& environment) {
  UserIdentity user = UserIdentity::of_job(environment);
  const auto home = environment.find("HOME");
  if (map == RootMap::root && home != environment.end()) user.home = home->second;
  return user;
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
  const UserIdentity outside = identity_outside(map, environment);
  const UserIdentity user = identity_inside(map);
  const bool mounts_home = request.mount_home.value_or(false) && !request.contain;
  if (mounts_home) SPC_TRY_DURING("--mount-home", check_home(outside.home, false));
  // Unshare the mounts: the parent keeps the image mounted and the host visible.
  SPC_TRY(check(::unshare(CLONE_NEWNS), "create a mount namespace"));
  auto mounts =
      SPC_TRY(own(::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC), "open the mount namespace"));
  HookContext context = hook_context(request, environment, site);
  context.remap_root = map == RootMap::root;
  auto hooks = SPC_TRY(find_hooks(std::move(context), log));
  HookEdits edits;
  const auto prepare = [&](RootSetup& so_far) -> Result<void> {
    edits = SPC_TRY(prepare_edits(hooks, so_far));
    return {};
  };
  // With both --contain and --no-mount-home, the image's own directory stays: a RUN writes to
  // /root.
  const bool covers_home = request.contain && request.mount_home.value_or(true);
  const std::string home = mounts_home || covers_home ? outside.home : "";
  ContainerSpec spec;
  RootSetup& root = spec.root;
  root = SPC_TRY(gather(request, home, environment, log, ContainerState::is_new, prepare));
  if (mounts_home) move_mount_target(root, outside.home, user.home);
  spec.image = request.image;
  if (const auto digest = Digest::parse(settings.manifest)) spec.manifest = *digest;
  spec.settings = settings;
  spec.user = user;
  add_image(hooks.context(), spec);
  auto shown = request.explain ? shown_mounts(root) : std::vector<ShownMount>();
  SPC_TRY(hooks.create_on_host(edits));
  SPC_TRY(hooks.task_on_host());
  auto trees = SPC_TRY(mount_trees(root, image, request.namespaces));
  const auto mount = [&](std::uint32_t index, const UniqueFd& target,
                         const std::string& step) -> Result<void> {
    const auto attached = attach(std::move(trees[index]), target.get());
    if (attached) return {};
    return Error::from_errno(attached.error().sys_errno(), step);
  };
  const AttachSource attach_source{.begin = mount, .settle = {}};
  const auto root_directory =
      SPC_TRY(own(::open((image.place + "/root").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC),
                  "open the container's root"));
  HookEdits by_shell_hooks;
  if (hooks.runs_shell_hooks() && image.writable) {
    const ShellHookStart start{request, of_enroot.environment, site, spec};
    by_shell_hooks = SPC_TRY(
        run_hooks_of_enroot(image, root_directory.get(), start, attach_source, hooks, root, log));
  }
  SPC_TRY(pivot_into(root_directory.get()));

  if (settings.in_files) read_image_files(environment, settings, &log);
  const std::string workdir = workdir_of(request, settings);
  complete_root(root, user, map, mounts_home, request.workdir.empty() ? workdir : user.home);
  spec.settings = settings;
  if (image.writable) {
    SPC_TRY(create_edits(hooks, spec, edits, root));
    std::ranges::move(by_shell_hooks.of_hooks, std::back_inserter(edits.of_hooks));
  } else if (!request.devices.empty()) {
    return Error(ErrorKind::unavailable,
                 "--device: this kernel cannot set up the container writable, as devices need it")
        .hint("see scontainer doctor");
  } else {
    leave_out_what_is_made(root, edits);
    edits = {};
  }
  for (const std::string& warning : SPC_TRY(set_up_root(root, attach_source)))
    log.write(LogLevel::warning, warning);
  if (image.writable && !request.explain) SPC_TRY(hooks.start());
  if (!request.writable.value_or(true)) SPC_TRY(make_root_read_only());
  return MadeContainer{std::move(mounts), std::move(settings), std::move(edits), std::move(hooks),
                       std::move(shown)};
}

Result<void> begin_task(const LaunchRequest& request, const ImageSettings& settings,
                        const HookEdits& edits, StepHooks& hooks, RootMap map, UserIdentity user,
                        std::map<std::string, std::string>& environment,
                        const ContainerSpec& explained, Log& log) {
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
  SPC_TRY(apply_edits(edits, hooks, spec, log));
  if (request.explain) {
    spec.workdir = workdir;
    spec.from = explained.from;
    spec.layers = explained.layers;
    spec.by_fuse = true;
    spec.mounts = explained.mounts;
    spec.writable = explained.writable;
    spec.namespaces = map == RootMap::root ? own_user : 0U;
    print_explanation(explain(spec, request, SitePolicy::read(), environment), *request.explain,
                      log);
  }
  environment.clear();
  for (const auto& [name, variable] : spec.environment) environment[name] = variable.value;
  if ((request.namespaces & own_cgroup) != 0 && ::unshare(CLONE_NEWCGROUP) != 0) {
    return Error::from_errno(errno, "--unshare=cgroup: create a cgroup namespace");
  }
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return Error::from_errno(errno, "set no_new_privs");
  return map == RootMap::root ? fake_root_calls() : Result<void>();
}

// --- shared container ---

namespace {

constexpr int kBacklog = 4096;
constexpr int kMostAttempts = 1000;

/// The keeper's answer to a caller, with the namespaces' descriptors and a file of the strings.
struct JoinAnswer {
  std::uint64_t made = 0;
  std::uint64_t image = 0,
                settings = 0;  ///< bytes in the file, in this order; the edits follow
  WireError error;
};

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;
};

Address address_of(const std::string& key) {
  char text[sizeof sockaddr_un::sun_path - 1];
  const auto length =
      std::snprintf(text, sizeof text, "spank-container/%u/%016zx",
                    static_cast<unsigned>(::geteuid()), std::hash<std::string>()(key));
  Address address;
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path + 1, text,
              // The leading zero byte selects the abstract namespace.
              static_cast<std::size_t>(length));
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                        static_cast<std::size_t>(length));
  return address;
}

const sockaddr* as_sockaddr(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.name);
}

/// Returns whether the peer is a process of this user. Any user may take a name in the abstract
/// namespace, so messages of others are ignored and get no answer.
bool is_ours(int socket, pid_t* pid = nullptr) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  if (pid != nullptr) *pid = peer.pid;
  return peer.uid == ::geteuid();
}

/// Detaches the keeper. Signals of a terminal or a launcher are for the tasks: they end, and the
/// keeper with them. Of the first task's descriptors, only standard error stays open. Otherwise
/// readers of that task's output would wait for the keeper.
void become_keeper(int listener) {
  ::setsid();
  for (const int number : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE})
    ::signal(number, SIG_IGN);
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ::dup2(nothing.get(), 0);
  ::dup2(nothing.get(), 1);
  if (listener > 3) ::close_range(3, static_cast<unsigned>(listener) - 1, 0);
  ::close_range(static_cast<unsigned>(listener) + 1, ~0U, 0);
}

void answer(int client, const Result<SharedContainer>& made, int texts, pid_t first) {
  JoinAnswer message;
  pid_t asking = 0;
  if (!is_ours(client, &asking)) return;
  if (!made) {
    if (asking == first) message.error = WireError(made.error());
    (void)send_struct(client, message).has_value();
    return;
  }
  message.made = 1;
  message.image = made->image.size();
  message.settings = made->settings.size();
  const int passed[] = {made->user.get(), made->mounts.get(), texts};
  (void)send_struct(client, message, passed).has_value();
}

/// Serves until all clients have disconnected.
void serve(int listener, const Result<SharedContainer>& made, int texts, pid_t first) {
  constexpr int kPatience = 60 * 1000;  // ms, for the first client
  std::vector<UniqueFd> clients;
  bool was_there = false;
  for (;;) {
    std::vector<pollfd> polled{{listener, POLLIN, 0}};
    for (const UniqueFd& client : clients) polled.push_back({client.get(), POLLIN, 0});
    // After the last client has left, a connection may still be pending.
    const int ready =
        ::poll(polled.data(), polled.size(), clients.empty() ? (was_there ? 0 : kPatience) : -1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return;
    for (std::size_t i = clients.size(); i > 0; --i) {
      if (polled[i].revents != 0)
        clients.erase(clients.begin() + static_cast<std::ptrdiff_t>(i - 1));
    }
    if (polled[0].revents == 0) continue;
    UniqueFd client(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!client) continue;
    was_there = true;
    answer(client.get(), made, texts, first);
    clients.push_back(std::move(client));
  }
}

[[noreturn]] void keep(int listener, pid_t first,
                       const std::function<Result<SharedContainer>()>& make) {
  become_keeper(listener);
  Result<SharedContainer> made = make();
  UniqueFd texts;
  if (made) {
    if (auto file = sealed_memory_file("container", made->image + made->settings + made->edits)) {
      texts = *std::move(file);
    } else {
      made = std::move(file).error();
    }
  }
  ::dup2(0, 2);
  serve(listener, made, texts.get(), first);
  if (made) made->alive.reset();
  ::_exit(0);
}

/// Receives the keeper's answer. `answered`: set if a keeper answered, whatever the answer.
Result<SharedContainer> taken(UniqueFd socket, bool& answered) {
  JoinAnswer message;
  auto descriptors = SPC_TRY(receive_struct(socket.get(), message, 3));
  answered = true;
  SharedContainer container;
  if (message.made == 0) {
    if (message.error.is_set()) return message.error.error();
    container.failed = true;
    return container;
  }
  if (descriptors.size() != 3) return Error(ErrorKind::internal, "no namespaces to join");
  const std::string text = SPC_TRY(read_file(descriptors[2].get(), 64 << 20));
  container.user = std::move(descriptors[0]);
  container.mounts = std::move(descriptors[1]);
  container.image = text.substr(0, message.image);
  container.settings = text.substr(message.image, message.settings);
  container.edits = text.substr(message.image + message.settings);
  container.place = std::move(socket);
  return container;
}

}  // namespace

Result<SharedContainer> join_shared_container(
    const std::string& key, const std::function<Result<SharedContainer>()>& make) {
  const Address address = address_of(key);
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!listener || !socket) return Error::from_errno(errno, "make a socket");
    if (::bind(listener.get(), as_sockaddr(address), address.size) == 0) {
      if (::listen(listener.get(), kBacklog) != 0)
        return Error::from_errno(errno, "listen for the other tasks");
      const pid_t first = ::getpid();
      const auto begin = [&]() -> int { keep(listener.get(), first, make); };
      SPC_TRY(Child::run(begin, "share the container", 0)).release();
    } else if (errno != EADDRINUSE) {
      return Error::from_errno(errno, "contact the other tasks");
    }
    listener.reset();
    if (::connect(socket.get(), as_sockaddr(address), address.size) == 0) {
      if (!is_ours(socket.get()))
        return Error(ErrorKind::refused,
                     "the name of the shared container is in use by another user");
      bool answered = false;
      auto container = taken(std::move(socket), answered);
      // A keeper that closed the connection ended before it accepted this process, or was killed.
      // In both cases there is no container, and this process may create one.
      const bool gone = !container && !answered &&
                        (container.error().kind() == ErrorKind::unavailable ||
                         container.error().sys_errno() == ECONNRESET);
      if (!gone) return container;
    }
    const timespec pause{.tv_sec = 0, .tv_nsec = 10'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return Error(ErrorKind::unavailable, "the shared container exits repeatedly");
}

}  // namespace spc::tool
