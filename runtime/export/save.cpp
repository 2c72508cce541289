#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "base/new_file.hpp"
#include "base/process/kernel.hpp"
#include "base/process/user_namespace.hpp"
#include "base/result.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "export/archive.hpp"
#include "export/write_image.hpp"
#include "image/store/store.hpp"
#include "protocol/save.hpp"

namespace spc {

// --- save ---

/// A container as handed over by the leader.
struct SavedTree {
  UniqueFd root;          ///< without mounts
  std::string settings;   ///< records `key=value\0`: env, workdir, entrypoint, cmd
  std::string config;     ///< the image configuration; empty: none
  bool in_files = false;  ///< the image has its settings in files
  std::string manifest;   ///< manifest of the image; empty: none
  std::string image;      ///< its name, if its changes are saved
  KnownTree known;        ///< its state at the start, if its changes are saved
};
/// Reads the container's metadata. `record`: descriptor of the image's record. `settings`:
/// descriptor of the settings of an image that has them in files, or -1. `image`: its name, if its
/// changes are to be saved.
Result<SavedTree> read_saved_tree(UniqueFd root, int record, int settings,
                                  const std::string& image);

/// Enters a user namespace as root, so that files are readable that even their owner may not read,
/// such as /etc/shadow of some images: the user owns all of them. Without user namespaces such a
/// file is an error with its name. The process must have one thread.
void enter_saver_namespace();

/// Export of one container to one file. Another thread may query its progress and may end the
/// process at any moment; the target is then unchanged.
class Save {
 public:
  /// `file` is planned, but not created yet.
  Save(ImageTarget target, NewFile file) : target_(std::move(target)), file_(std::move(file)) {}

  /// Creates the unnamed file, and enters the saver's namespace so that the whole container is
  /// readable.
  Result<void> prepare(const SavedTree& tree);
  /// Scans the whole tree first: unreadable files are reported before anything is written. `cpus`:
  /// maximum number of compressing threads; 0: as many as the step has CPUs.
  Result<void> run(const SavedTree& tree, unsigned cpus);

  /// Summary for the user.
  [[nodiscard]] std::string progress() const;
  [[nodiscard]] std::string summary(unsigned seconds) const;

  /// Abandons the export without leaving a file. The process must end afterwards, without waiting
  /// for anything.
  void abandon();

 private:
  ImageTarget target_;
  NewFile file_;
  std::mutex naming_;  ///< held while the file gets its name, and forever after giving up
  std::atomic<std::uint64_t> written_ = 0;
  std::atomic<std::uint64_t> total_ = 0;
  std::uint64_t size_ = 0;
};

// --- save ---

namespace {

constexpr std::size_t kMostOfRecord = 8 << 20;
constexpr std::size_t kMostOfEnvironment = 1 << 20;
constexpr std::uint64_t kMegabyte = 1'000'000;

/// Binds this process to all CPUs of the step and returns their number: the first task was bound to
/// its own, and all are free now. The cgroup limits the process to the step's CPUs.
unsigned use_all_cpus() {
  cpu_set_t set;
  std::memset(&set, 0xff, sizeof set);
  (void)::sched_setaffinity(0, sizeof set, &set);
  return usable_processors();
}

/// Returns the files that enroot or Apptainer expect. Variables already set in the container's
/// /etc/environment are kept unless the image sets them.
std::vector<AddedFile> files_for(const SavedTree& tree, ImageForm form) {
  if (form == ImageForm::sif && !open_in_image(tree.root.get(), ".singularity.d"))
    return apptainer_files(tree.settings, tree.config);
  if (tree.in_files || form == ImageForm::sif) return {};
  auto files = enroot_files(tree.settings, tree.config);
  for (AddedFile& file : files) {
    if (file.path != "etc/environment") continue;
    std::string before = text_in_image(tree.root.get(), file.path, kMostOfEnvironment);
    if (!before.empty() && before.back() != '\n') before += '\n';
    file.text.insert(0, before);
  }
  return files;
}

}  // namespace

Result<SavedTree> read_saved_tree(UniqueFd root, int record, int settings,
                                  const std::string& image) {
  const auto bytes = SPC_TRY(read_file(record, kMostOfRecord));
  // empty for a file or directory
  const auto parsed = bytes.empty() ? ImageRecord() : SPC_TRY(parse_image_record(bytes));
  SavedTree tree{.root = std::move(root),
                 .settings = parsed.settings,
                 .config = parsed.config,
                 .in_files = settings >= 0};
  if (tree.in_files) tree.settings = SPC_TRY(read_file(settings, kMostOfRecord));
  if (image.empty()) return tree;
  tree.manifest = parsed.manifest;
  tree.image = image;
  enter_saver_namespace();
  tree.known = SPC_TRY(KnownTree::read(tree.root.get()));
  return tree;
}

void enter_saver_namespace() {
  // The maps in /proc/self belong to root while the process is not dumpable, and a process of an
  // unreadable program is not.
  ::prctl(PR_SET_DUMPABLE, 1);
  [[maybe_unused]] const auto entered = enter_user_namespace(RootMap::self);
  ::prctl(PR_SET_DUMPABLE, 0);
}

Result<void> Save::prepare(const SavedTree& tree) {
  SPC_TRY(file_.make());
  if (tree.image.empty()) enter_saver_namespace();
  return {};
}

Result<void> Save::run(const SavedTree& tree, unsigned cpus) {
  std::uint64_t total = 0;
  KnownTree::Met met;
  SPC_TRY(walk_image(tree.root.get(), [&](const TreeEntry& entry) -> Result<void> {
    if (!tree.image.empty() && tree.known.is_unchanged(entry, met)) return {};
    total += 1024;
    if (S_ISREG(entry.status.st_mode)) total += static_cast<std::uint64_t>(entry.status.st_size);
    return {};
  }));
  total_ = total;
  const auto progress = [&](std::uint64_t bytes) { written_ = bytes; };
  const unsigned allowed = use_all_cpus();
  const auto write = [&]() -> Result<void> {
    const OciImage content{.config = tree.config, .settings = tree.settings, .name = "saved"};
    if (target_.form == ImageForm::oci_layer) {
      const ChangedImage image{
          .manifest = tree.manifest, .config = tree.config, .name = tree.image};
      return write_oci_layer(tree.root.get(), tree.known, image, file_.file(), progress);
    }
    if (target_.form == ImageForm::oci_archive)
      return write_oci_archive(tree.root.get(), content, file_.file(), progress);
    const unsigned workers = cpus == 0 ? allowed : std::min(cpus, allowed);
    SPC_TRY(write_squashfs(tree.root.get(), files_for(tree, target_.form), file_.file(), workers,
                           {}, progress));
    return target_.form == ImageForm::sif ? make_sif(file_.file(), tree.config) : Result<void>();
  };
  if (const auto written = write(); !written) return file_.about(written.error());
  struct stat status {};
  if (::fstat(file_.file(), &status) == 0) size_ = static_cast<std::uint64_t>(status.st_size);
  const std::scoped_lock lock(naming_);
  return file_.publish();
}

std::string Save::progress() const {
  const std::uint64_t written = written_;
  if (total_ == 0) return "reading its files";
  const std::uint64_t percent = std::min<std::uint64_t>(written * 100 / total_, 99);
  return formatted("{}% of {} MB", percent, total_ / kMegabyte);
}

std::string Save::summary(unsigned seconds) const {
  return formatted("{} MB became {} MB in {} s", total_ / kMegabyte, size_ / kMegabyte, seconds);
}

void Save::abandon() {
  naming_.lock();
  file_.unmake();
}

// --- main ---

// The program `save FILE NAME CPUS PREFIX`: waits beside a step until its tasks have ended, then
// writes its container to FILE. The first task starts it (launch/step_end.hpp) as the user, with
// the descriptors and messages of protocol/save.hpp.

namespace {

constexpr int kFirstProgress = 5'000;  // milliseconds
constexpr int kLastProgress = 60'000;
constexpr int kSoon = 300;

/// Prefix of every line for the user: that of pyxis or of this package.
const char* prefix = "";

/// Returns whether progress is reported. Scripts that parse pyxis output expect no other lines.
bool says_progress() { return std::string_view(prefix) != "pyxis: "; }

void say(int socket, SaveMessageKind kind, const std::string& text) {
  SaveMessage message;
  message.kind = kind;
  const bool is_for_user = socket == kSaveSocket && !text.empty();
  message.text.set((is_for_user ? prefix : "") + text);
  [[maybe_unused]] const auto sent = send_struct(socket, message, {}, WhenFull::fail);
}

/// Ignores the signals meant for the step's tasks and returns a signalfd for SIGTERM. SIGTERM does
/// not end this process: it begins a step's cancellation, but jobs also request it before their
/// time limit.
UniqueFd note_signals() {
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPIPE,
                           SIGCONT, SIGXCPU, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH, SIGIO}) {
    ::signal(number, SIG_IGN);
  }
  sigset_t noted;
  ::sigemptyset(&noted);
  ::sigaddset(&noted, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &noted, nullptr);
  return UniqueFd(::signalfd(-1, &noted, SFD_CLOEXEC));
}

/// State of the step when all its tasks have ended.
struct Ending {
  std::optional<SavedTree> tree;  ///< empty: the step failed before the container was handed over
  std::uint32_t tasks = 0, entered = 0, killed = 0;
  bool terminated = false;  ///< SIGTERM was received
};

/// Reports to the waiting tasks whether the container's state was read.
void tell_what_is_known(int first_task, const Result<SavedTree>& tree) {
  SaveMessage known{.kind = tree ? SaveMessageKind::known : SaveMessageKind::failed};
  if (!tree) known.error = WireError(tree.error());
  [[maybe_unused]] const auto sent = send_struct(first_task, known, {}, WhenFull::fail);
}

/// Waits for the end of the step's tasks. Returns an empty optional if slurmstepd has ended.
std::optional<Ending> wait_for_the_end(int signals) {
  Ending ending;
  UniqueFd first_task(kSaveTaskSocket);
  for (;;) {
    // Handle signals and the first task before slurmstepd's final message.
    pollfd events[] = {
        {kSaveSocket, POLLIN, 0}, {first_task.get(), POLLIN, 0}, {signals, POLLIN, 0}};
    if (::poll(events, 3, -1) < 0 && errno != EINTR) return std::nullopt;
    SaveMessage message;
    if (events[2].revents != 0) {
      signalfd_siginfo info;
      ending.terminated = ::read(signals, &info, sizeof info) == sizeof info || ending.terminated;
    }
    if (events[1].revents != 0) {
      auto passed = receive_struct(first_task.get(), message, 3);
      if (passed && message.kind == SaveMessageKind::tree && passed->size() >= 2) {
        auto tree = read_saved_tree(std::move((*passed)[0]), (*passed)[1].get(),
                                    passed->size() > 2 ? (*passed)[2].get() : -1,
                                    std::string(message.text.view()));
        if (!message.text.view().empty()) tell_what_is_known(first_task.get(), tree);
        if (tree) ending.tree = *std::move(tree);
      }
      first_task.reset();
    }
    if (events[0].revents == 0) continue;
    if (!receive_struct(kSaveSocket, message)) return std::nullopt;
    if (message.kind == SaveMessageKind::entered) ++ending.entered;
    if (message.kind == SaveMessageKind::save) {
      ending.tasks = message.tasks;
      ending.killed = message.killed;
      return ending;
    }
  }
}

/// Returns whether SIGTERM was received or is received within `milliseconds`.
bool is_cancelled(int signals, int milliseconds) {
  pollfd event{signals, POLLIN, 0};
  return ::poll(&event, 1, milliseconds) > 0;
}

/// Returns the reason not to save, or an empty optional. An empty string means that the tasks have
/// reported it.
std::optional<std::string> obstacle(const Ending& ending, int signals) {
  if (!ending.tree || ending.entered == 0) return "";  // the tasks have reported the reason
  // The tasks receive SIGTERM first.
  if (ending.killed > 0 && (ending.terminated || is_cancelled(signals, kSoon)))
    return "container not saved: the step was cancelled";
  if (ending.entered < ending.tasks) {
    return formatted("container not saved: {} of {} tasks of the node were not started",
                     ending.tasks - ending.entered, ending.tasks);
  }
  return std::nullopt;
}

/// Waits until slurmstepd has read the last message and closed the socket, then ends the process.
[[noreturn]] void end_with_slurmstepd() {
  SaveMessage message;
  while (receive_struct(kSaveSocket, message)) {
  }
  ::_exit(0);
}

/// Runs beside the writing thread: reports progress, and ends the process when slurmstepd closes
/// the socket or the user cancels.
void watch(Save& save, const std::string& path, int signals) {
  for (int pause = kFirstProgress;;) {
    pollfd events[] = {{kSaveSocket, POLLIN, 0}, {signals, POLLIN, 0}};
    const int ready = ::poll(events, 2, pause);
    if (ready == 0) {
      if (!says_progress()) continue;
      say(kSaveSocket, SaveMessageKind::progress,
          formatted("saving the container to {}: {}", path, save.progress()));
      pause = std::min(2 * pause, kLastProgress);
      continue;
    }
    if (ready < 0 && errno == EINTR) continue;
    SaveMessage message;
    if (events[1].revents == 0 && receive_struct(kSaveSocket, message)) continue;
    save.abandon();
    say(kSaveSocket, SaveMessageKind::failed,
        formatted("container not saved to {}: it was cancelled", path));
    end_with_slurmstepd();
  }
}

Result<void> save_container(Save& save, const SavedTree& tree, const std::string& path,
                            unsigned cpus, int signals) {
  SPC_TRY(save.prepare(tree));
  std::thread([&save, path, signals] { watch(save, path, signals); }).detach();
  auto done = save.run(tree, cpus);
  // The converter gets the same signals and may have ended before the watching thread notices.
  while (!done && is_cancelled(signals, 0)) ::pause();
  return done;
}

[[noreturn]] void run(const std::string& file, const std::string& name, unsigned cpus) {
  const UniqueFd signals = note_signals();
  const ImageTarget target = parse_image_target(file);
  const std::string path = printable(target.path);
  auto planned = NewFile::plan(target.path, Replace::yes);
  auto tried = planned ? planned->make() : std::move(planned).error();
  if (tried) planned->unmake();  // the unnamed file was never visible
  SaveMessage opened{.kind = tried ? SaveMessageKind::opened : SaveMessageKind::failed};
  if (!tried) opened.error = WireError(tried.error());
  [[maybe_unused]] const auto sent = send_struct(kSaveTaskSocket, opened, {}, WhenFull::fail);

  const auto ending = wait_for_the_end(signals.get());
  if (!ending) ::_exit(0);
  if (const auto why = obstacle(*ending, signals.get())) {
    say(kSaveSocket, why->empty() ? SaveMessageKind::done : SaveMessageKind::failed, *why);
    end_with_slurmstepd();
  }
  Save save(target, *std::move(planned));
  const std::uint64_t begin = now_us();
  const auto saved = save_container(save, *ending->tree, path, cpus, signals.get());
  const auto milliseconds = static_cast<int>((now_us() - begin) / 1000);
  if (!saved) {
    say(kSaveSocket, SaveMessageKind::failed,
        formatted("save the container to {}: {}", path, saved.error().message()));
  } else {
    if (milliseconds > kFirstProgress && says_progress()) {
      say(kSaveSocket, SaveMessageKind::progress,
          save.summary(static_cast<unsigned>(milliseconds / 1000)));
    }
    say(kSaveSocket, SaveMessageKind::done, formatted("exported container {} to {}", name, path));
  }
  for (;;) ::pause();  // the watching thread ends the process
}

}  // namespace

}  // namespace spc

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "save is started by the leader of a step, not manually\n");
    return 2;
  }
  spc::prefix = argv[4];
  try {
    spc::run(argv[1], argv[2], static_cast<unsigned>(std::strtoul(argv[3], nullptr, 10)));
  } catch (const std::exception& exception) {
    spc::say(spc::kSaveSocket, spc::SaveMessageKind::failed,
             std::string("save the container: ") + exception.what());
    ::_exit(1);
  }
}
