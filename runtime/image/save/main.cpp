// `save FILE NAME CPUS PREFIX`: waits beside a step until its tasks have ended, then writes its
// container to FILE. Started by the first task (launch/after/saver.hpp), as the user, with the
// descriptors and messages of protocol/save.hpp.

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>

#include "base/clock.hpp"
#include "base/format.hpp"
#include "base/socket.hpp"
#include "image/save/save.hpp"
#include "protocol/save.hpp"

namespace spc {
namespace {

constexpr int kFirstProgress = 5'000;  // milliseconds
constexpr int kLastProgress = 60'000;
constexpr int kSoon = 300;

/// Before every line for the user: the words of pyxis, or ours.
const char* prefix = "";

/// Scripts that look for lines of pyxis count on no other.
bool says_progress() { return std::string_view(prefix) != "pyxis: "; }

void say(int socket, SaveMessageKind kind, const std::string& text) {
  SaveMessage message;
  message.kind = kind;
  const bool is_for_user = socket == kSaveSocket && !text.empty();
  message.text.set((is_for_user ? prefix : "") + text);
  [[maybe_unused]] const auto sent = send_struct(socket, message, {}, WhenFull::fail);
}

/// Signals for the step's tasks are none of ours. SIGTERM is noted: with it a step's cancellation
/// begins, but also what a job wants to be told before its time is over.
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

/// What there is to know when all tasks have ended.
struct Ending {
  std::optional<SavedTree> tree;  ///< nothing: the step did not come as far as that
  std::uint32_t tasks = 0, entered = 0, killed = 0;
  bool terminated = false;  ///< SIGTERM came meanwhile
};

/// The tasks wait for that.
void tell_what_is_known(int first_task, const Result<SavedTree>& tree) {
  SaveMessage known{.kind = tree ? SaveMessageKind::known : SaveMessageKind::failed};
  if (!tree) known.error = WireError(tree.error());
  [[maybe_unused]] const auto sent = send_struct(first_task, known, {}, WhenFull::fail);
}

/// Nothing when slurmstepd is gone.
std::optional<Ending> wait_for_the_end(int signals) {
  Ending ending;
  UniqueFd first_task(kSaveTaskSocket);
  for (;;) {
    // In this order: what came first must not be overlooked for what came last.
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

/// Whether SIGTERM has come, or comes within so many milliseconds.
bool is_cancelled(int signals, int milliseconds) {
  pollfd event{signals, POLLIN, 0};
  return ::poll(&event, 1, milliseconds) > 0;
}

/// Why nothing is saved; nothing if all is as it should be.
std::optional<std::string> obstacle(const Ending& ending, int signals) {
  if (!ending.tree || ending.entered == 0) return "";  // the tasks have told why
  // The tasks get it first.
  if (ending.killed > 0 && (ending.terminated || is_cancelled(signals, kSoon)))
    return "container not saved: the step was cancelled";
  if (ending.entered < ending.tasks) {
    return formatted("container not saved: {} of {} tasks of the node were not started",
                     ending.tasks - ending.entered, ending.tasks);
  }
  return std::nullopt;
}

/// The last word has been said; slurmstepd takes its time to read it.
[[noreturn]] void end_with_slurmstepd() {
  SaveMessage message;
  while (receive_struct(kSaveSocket, message)) {
  }
  ::_exit(0);
}

/// Beside the writing: ends the process as soon as slurmstepd or the user wants that, and tells how
/// far it is.
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
    say(kSaveSocket, SaveMessageKind::done,
        formatted("container not saved to {}: it was cancelled", path));
    end_with_slurmstepd();
  }
}

Result<void> save_container(Save& save, const SavedTree& tree, const std::string& path,
                            unsigned cpus, int signals) {
  SPC_TRY(save.prepare(tree));
  std::thread([&save, path, signals] { watch(save, path, signals); }).detach();
  auto done = save.run(tree, cpus);
  // The converter gets the same signals and may be gone before the watching thread has noticed.
  while (!done && is_cancelled(signals, 0)) ::pause();
  return done;
}

[[noreturn]] void run(const std::string& file, const std::string& name, unsigned cpus) {
  const UniqueFd signals = note_signals();
  const ImageTarget target = parse_image_target(file);
  const std::string path = printable(target.path);
  auto planned = NewFile::plan(target.path, Replace::yes);
  auto tried = planned ? planned->make() : std::move(planned).error();
  if (tried) planned->unmake();  // until then nothing of it can be seen, on no file system
  SaveMessage opened{.kind = tried ? SaveMessageKind::opened : SaveMessageKind::failed};
  if (!tried) opened.error = WireError(tried.error());
  [[maybe_unused]] const auto sent = send_struct(kSaveTaskSocket, opened, {}, WhenFull::fail);

  const auto ending = wait_for_the_end(signals.get());
  if (!ending) ::_exit(0);
  if (const auto why = obstacle(*ending, signals.get())) {
    say(kSaveSocket, SaveMessageKind::done, *why);
    end_with_slurmstepd();
  }
  Save save(target, *std::move(planned));
  const std::uint64_t begin = now_us();
  const auto saved = save_container(save, *ending->tree, path, cpus, signals.get());
  const auto milliseconds = static_cast<int>((now_us() - begin) / 1000);
  if (!saved) {
    say(kSaveSocket, SaveMessageKind::done,
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
