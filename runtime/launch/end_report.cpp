// The report of a step's end: why a task may have failed, and files that end with the container.

#include "launch/end_report.hpp"

#include <fcntl.h>
#include <ftw.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "base/clock.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "launch/task/image_files.hpp"
#include "protocol/save.hpp"
#include "share/tracker.hpp"

namespace spc {

// --- files that the container lacks ---

std::vector<std::string> possible_files(std::string_view text, bool is_script) {
  constexpr std::string_view kEnds = " \t\r\n;|&()<>=,'\"`";
  std::vector<std::string> words;
  while (!text.empty()) {
    std::string_view line = next_part(text, '\n');
    if (is_script && trimmed(line).starts_with('#')) continue;
    bool is_output = false;  // a shell creates the file
    while (!line.empty()) {
      const std::size_t size = std::min(line.find_first_of(kEnds), line.size());
      const std::string_view word = line.substr(0, size);
      const bool is_name = !word.empty() && word.front() != '-' && word.front() != '$' &&
                           word.find_first_not_of("./") != std::string_view::npos;
      if (is_name && !is_output) words.emplace_back(word);
      if (!word.empty()) is_output = false;
      if (size < line.size() && line[size] == '>') is_output = true;
      line.remove_prefix(std::min(size + 1, line.size()));
    }
  }
  return words;
}

namespace {

constexpr std::size_t kMostWords = 200;
constexpr std::size_t kMostScript = 64 << 10;

UniqueFd open_on_host(const EndFacts& facts, const std::string& path, int flags) {
  return open_resolved(facts.host.get(), path.c_str(), flags, RESOLVE_IN_ROOT);
}

/// Returns whether the host has a file of this name that a program would read. A directory counts
/// only if the name looks like a path.
bool is_on_host(const EndFacts& facts, const std::string& path) {
  struct stat status {};
  const UniqueFd file = open_on_host(facts, path, O_PATH);
  if (!file || ::fstat(file.get(), &status) != 0) return false;
  return S_ISREG(status.st_mode) ||
         (S_ISDIR(status.st_mode) && path.find('/', 1) != std::string::npos);
}

bool is_inside(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

/// Returns the words of the command, without its program, and of a batch step's script.
std::vector<std::string> words_of(const EndFacts& facts) {
  std::vector<std::string> words;
  const auto add = [&](std::string_view text, bool is_script) {
    std::ranges::move(possible_files(text, is_script), std::back_inserter(words));
  };
  for (std::size_t i = 1; i < facts.command.size(); ++i) {
    words.push_back(facts.command[i]);  // a name with blanks
    add(facts.command[i], false);
  }
  if (!facts.batch_script.empty()) {
    const UniqueFd script = open_on_host(facts, facts.batch_script, O_RDONLY | O_NOCTTY);
    if (const auto text = read_file(script.get(), kMostScript)) add(*text, true);
  }
  if (words.size() > kMostWords) words.resize(kMostWords);
  return words;
}

/// Returns a line about the first named file that only the host has, or an empty text.
std::string missing_file(const EndFacts& facts) {
  for (const std::string& word : words_of(facts)) {
    const bool is_absolute = word.starts_with('/');
    const std::string on_host = normal_path(is_absolute ? word : facts.host_directory + "/" + word);
    const std::string inside = is_absolute ? word : facts.workdir + "/" + word;
    if (on_host == "/" || is_inside(inside) || !is_on_host(facts, on_host)) continue;
    const std::string directory =
        is_absolute ? on_host.substr(0, std::max<std::size_t>(on_host.rfind('/'), 1))
                    : facts.host_directory;
    if (is_inside(on_host))
      return formatted(
          "open {}: it is in {}, and the work directory of the container is {} (hint: "
          "--container-workdir={})",
          in_quotes(word), directory, facts.workdir, printable(directory));
    // A mount of a directory that the image has would hide the image's files.
    const std::string& mounted = is_absolute && is_inside(directory) ? on_host : directory;
    return formatted(
        "open {}: it is in {} of the host, which is not mounted in the container (hint: "
        "--container-mounts={}{})",
        in_quotes(word), directory, printable(mounted),
        is_absolute ? "" : " --container-workdir=" + printable(directory));
  }
  return {};
}

// --- MPI ---

/// Returns a line about an MPI program or script in a step without PMI, or an empty text.
std::string mpi_without_pmi(const EndFacts& facts) {
  constexpr std::size_t kHead = 1 << 20;
  constexpr int kMostFiles = 8;
  if (facts.has_pmi || facts.command.empty()) return {};
  const char* const path = std::getenv("PATH");
  // A program that was not executed has been explained by its task.
  if (!why_missing(facts.command[0], path == nullptr ? "" : path, "").empty()) return {};
  std::vector<std::string> words = words_of(facts);
  if (facts.is_one_task) words.insert(words.begin(), facts.command[0]);
  std::string head;
  for (int files = 0; const std::string& word : words) {
    struct stat status {};
    std::string place = word.starts_with('/') ? word : facts.workdir + "/" + word;
    if (word.find('/') == std::string::npos && !is_inside(place)) place = "/usr/local/bin/" + word;
    const UniqueFd file(::open(place.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (++files > kMostFiles) break;
    head.resize(kHead);
    const ssize_t size = ::pread(file.get(), head.data(), kHead, 0);
    head.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    if (head.find("libmpi") == std::string::npos && head.find("mpi4py") == std::string::npos)
      continue;
    return formatted(
        "start MPI for {}: the step has no PMI, by which its tasks find each other "
        "(hint: srun --mpi=pmix, or --mpi=pmi2 for MPICH)",
        in_quotes(word));
  }
  return {};
}

// --- writable layer ---

std::string in_megabytes(std::uint64_t bytes) {
  constexpr std::uint64_t kMegabyte = 1 << 20;
  return std::to_string((bytes + kMegabyte / 2) / kMegabyte) + " MB";
}

struct Usage {
  std::uint64_t size = 0, used = 0, free = 0;
  bool has_no_inode = false;
};

Usage usage_of(const char* path) {
  struct statfs status {};
  if (::statfs(path, &status) != 0) return {};
  const auto block = static_cast<std::uint64_t>(status.f_bsize);
  return {.size = status.f_blocks * block,
          .used = (status.f_blocks - status.f_bfree) * block,
          .free = status.f_bavail * block,
          .has_no_inode = status.f_files > 0 && status.f_ffree == 0};
}

/// Returns a line about a full tmpfs of the container, or an empty text.
std::string full_layer(const EndFacts& facts) {
  constexpr std::uint64_t kLittle = 1 << 20;
  if (!facts.has_own_layer) return {};
  for (const auto& [path, name] : {std::pair("/", "the container"), std::pair("/tmp", "/tmp")}) {
    const Usage usage = usage_of(path);
    const bool is_ours = usage.size > 0 && usage.size <= facts.tmpfs_size;
    if (!is_ours || (usage.free > std::min(kLittle, usage.size / 50) && !usage.has_no_inode))
      continue;
    return formatted(
        "write to {}: its {} in memory are full (hint: --container-tmpfs-size=SIZE, or "
        "mount a directory for the files: --container-mounts=DIRECTORY)",
        name, usage.has_no_inode ? "files" : in_megabytes(usage.size));
  }
  return {};
}

// --- discarded files ---

/// State of the walk, which has a limit of entries and of time. nftw passes no argument.
struct Walk {
  std::time_t begin = 0;
  dev_t device = 0;
  std::uint64_t bytes = 0, files = 0, end_us = 0;
  unsigned entries = 0;
  std::string first, largest;
  std::uint64_t largest_bytes = 0;
};
Walk walk;

/// Caches are made again.
bool is_cache(std::string_view name) { return name == ".cache" || name == "__pycache__"; }

int visit(const char* path, const struct stat* status, int type, struct FTW* at) {
  constexpr unsigned kMostEntries = 20'000;
  if (++walk.entries > kMostEntries || now_us() > walk.end_us) return FTW_STOP;
  // Not FTW_MOUNT: overlayfs shows files with the device number of their layer.
  if (type == FTW_D && (is_cache(path + at->base) || status->st_dev != walk.device))
    return FTW_SKIP_SUBTREE;
  // A file of the image has an older ctime, which no program can set.
  if (type != FTW_F || !S_ISREG(status->st_mode) || status->st_ctime < walk.begin)
    return FTW_CONTINUE;
  const auto bytes = static_cast<std::uint64_t>(status->st_blocks) * 512;
  ++walk.files;
  walk.bytes += bytes;
  if (walk.first.empty()) walk.first = path;
  if (bytes > walk.largest_bytes) {
    walk.largest_bytes = bytes;
    walk.largest = path;
  }
  return FTW_CONTINUE;
}

/// Returns a line about files that end with the container, or an empty text. `is_short`: only their
/// number and size, for the end of another line.
std::string discarded_files(const EndFacts& facts, std::time_t begin, bool is_short) {
  constexpr std::uint64_t kMostTime = 200'000;  // microseconds
  if (!facts.has_own_layer || facts.discarded == 0 || usage_of("/").used < facts.discarded)
    return {};
  struct stat root {};
  struct stat place {};
  ::stat("/", &root);
  walk = {.begin = begin, .device = root.st_dev, .end_us = now_us() + kMostTime};
  std::vector<std::string> places = facts.places;
  std::ranges::sort(places);
  std::string last;
  for (const std::string& path : places) {
    const bool is_walked = !last.empty() && (path == last || path.starts_with(last + "/"));
    if (path == "/" || is_walked || ::lstat(path.c_str(), &place) != 0 ||
        place.st_dev != root.st_dev)
      continue;
    last = path;
    ::nftw(path.c_str(), visit, 16, FTW_PHYS | FTW_ACTIONRETVAL);
  }
  if (walk.bytes < facts.discarded) return {};
  if (is_short)
    return formatted(", and {} {} of {} end{} with the container", walk.files,
                     walk.files == 1 ? "file" : "files", in_megabytes(walk.bytes),
                     walk.files == 1 ? "s" : "");
  if (walk.first == walk.largest)
    return formatted(
        "{} file of {} ends with the container: {} (hint: --container-mounts=$PWD or "
        "--container-mount-home, and write there)",
        walk.files, in_megabytes(walk.bytes), in_quotes(walk.largest));
  return formatted(
      "{} files of {} end with the container, among them {} and {} (hint: "
      "--container-mounts=$PWD or --container-mount-home, and write there)",
      walk.files, in_megabytes(walk.bytes), in_quotes(walk.largest), in_quotes(walk.first));
}

// --- many nodes ---

/// Names a text for srun's tracker. Not a hash for security: it is compared within one step.
Digest name_of_line(std::string_view line) {
  Digest name;
  std::uint64_t sum = 0xcbf29ce484222325;  // FNV-1a
  for (const char byte : line) sum = (sum ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  std::memcpy(name.bytes.data(), &sum, sizeof sum);
  return name;
}

/// Returns whether this node prints the line: of the nodes that have it, the first that asks srun,
/// as if the line were an image that they lack. Without srun it is the step's first node.
bool is_ours_to_print(const EndFacts& facts, const std::string& line) {
  if (facts.tracker.empty()) return facts.is_first_node;
  ::setenv(kTrackerVariable, facts.tracker.c_str(), 1);
  ::setenv("SLURM_LAUNCH_NODE_IPADDR", facts.srun.c_str(), 1);
  ::setenv("SLURMD_NODENAME", facts.node.c_str(), 1);
  TrackerClient srun;
  TrackerRecord record{.kind = TrackerKind::join, .image = name_of_line(line)};
  const auto answer = srun.ask(record);
  if (!answer) return facts.is_first_node;
  record.kind = TrackerKind::done;  // otherwise srun counts a node that failed
  (void)srun.tell(record);
  return answer->index == 0;
}

// --- process ---

void send_line(int stepd, const std::string& line, SaveMessageKind kind) {
  SaveMessage message{.kind = kind};
  message.text.set(line);
  [[maybe_unused]] const auto sent = send_struct(stepd, message, {}, WhenFull::fail);
}

/// Runs in the child.
[[noreturn]] void wait_and_report(int stepd, const EndFacts& facts) {
  ::prctl(PR_SET_NAME, "report");
  // Signals for the tasks do not end this process. SIGKILL of the step does.
  for (int number = 1; number < SIGRTMIN; ++number) {
    if (number != SIGALRM && number != SIGKILL && number != SIGSTOP) ::signal(number, SIG_IGN);
  }
  ::signal(SIGALRM, SIG_DFL);
  // An open pipe would keep srun waiting for more output.
  const int host = facts.host.get();
  const auto close = [](unsigned first, unsigned last) {
    if (first <= last) ::syscall(SYS_close_range, first, last, 0);
  };
  const auto low = static_cast<unsigned>(std::min(stepd, host));
  const auto high = static_cast<unsigned>(std::max(stepd, host));
  if (low > 0) close(0, low - 1);
  close(low + 1, high - 1);
  close(high + 1, ~0U);
  const std::time_t begin = std::time(nullptr);

  SaveMessage end;
  unsigned entered = 0;
  while (end.kind != SaveMessageKind::save) {
    if (!receive_struct(stepd, end)) ::_exit(0);
    if (end.kind == SaveMessageKind::entered) ++entered;
  }
  constexpr unsigned kMostSeconds = 2;  // of a file system that does not answer
  ::alarm(kMostSeconds);
  sigset_t alarm;
  ::sigemptyset(&alarm);
  ::sigaddset(&alarm, SIGALRM);
  ::sigprocmask(SIG_UNBLOCK, &alarm, nullptr);

  // A task that has not entered has reported its error.
  std::string line;
  if (facts.explains && end.failed > 0 && end.killed == 0 && entered > 0) {
    line = full_layer(facts);
    if (line.empty()) line = missing_file(facts);
    if (line.empty()) line = mpi_without_pmi(facts);
    if (!line.empty() && !is_ours_to_print(facts, line)) line.clear();
  }
  line += discarded_files(facts, begin, !line.empty());
  if (!line.empty()) send_line(stepd, facts.prefix + line, SaveMessageKind::progress);
  send_line(stepd, "", SaveMessageKind::done);
  ::_exit(0);  // the messages stay in the socket
}

}  // namespace

Result<void> report_at_end(const StepChannel& step, const EndFacts& facts) {
  // slurmstepd does not wait for a process that has not been announced when the tasks end. The
  // leader announces it, so that tasks need not wait until it runs. slurmstepd does not adopt it,
  // and waits for the end of its socket.
  SPC_TRY(send_struct(step.save.get(),
                      SaveMessage{.kind = SaveMessageKind::started, .may_be_lost = true}));
  const auto work = [&]() -> int { wait_and_report(step.save.get(), facts); };
  auto process = SPC_TRY(Child::run(work, "watch the end of the step", 0));
  process.release();
  return {};
}

}  // namespace spc
