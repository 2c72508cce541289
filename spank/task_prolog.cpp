#include "task_prolog.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <vector>

/// Slurm's configuration in slurmstepd; a task's process has a copy of its own. The plugin is compiled with the header of the
/// very version that loads it.
extern "C" __attribute__((weak)) slurm_conf_t slurm_conf;

namespace spank_container {
namespace {

constexpr char kContext[] = "SLURM_SCRIPT_CONTEXT";
constexpr size_t kMostSaid = 1 << 20;

std::string_view without_spaces_before(std::string_view text) {
  while (!text.empty() && (text[0] == ' ' || text[0] == '\t')) text.remove_prefix(1);
  return text;
}

std::string_view without_spaces_behind(std::string_view text) {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// In the child, which has its own environment. Only what may be called between fork and exec.
[[noreturn]] void execute(const char* path, const char* const* environment, int output) {
  ::setpgid(0, 0);
  if (::dup2(output, STDOUT_FILENO) < 0 || ::close_range(3, ~0U, 0) != 0) ::_exit(127);
  const char* const arguments[] = {path, nullptr};
  ::execve(path, const_cast<char* const*>(arguments), const_cast<char* const*>(environment));
  ::_exit(127);
}

std::string read_all(int pipe) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::read(pipe, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    if (text.size() < kMostSaid) text.append(buffer, static_cast<size_t>(got));
  }
}

void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

/// One line of the script's output: `print TEXT`, `export NAME=VALUE` or `unset NAME`; others mean nothing.
void obey(std::string_view line, spank_t spank) {
  if (line.starts_with("print ")) {
    write_all(std::string(without_spaces_before(line.substr(6))) + "\n");
  } else if (line.starts_with("export ")) {
    const auto assignment = without_spaces_before(line.substr(7));
    const auto equals = assignment.find('=');
    if (equals == std::string_view::npos) return;
    const std::string name(without_spaces_behind(assignment.substr(0, equals)));
    if (!name.empty()) spank_setenv(spank, name.c_str(), std::string(assignment.substr(equals + 1)).c_str(), 1);
  } else if (line.starts_with("unset ")) {
    const std::string name(without_spaces_behind(without_spaces_before(line.substr(6))));
    if (!name.empty()) spank_unsetenv(spank, name.c_str());
  }
}

/// The descriptor of slurmstepd through which Slurm will start a user's --task-prolog inside: of `container-helper` instead.
void replace_slurms_launcher() {
  struct stat ours {};
  DIR* const descriptors = ::opendir("/proc/self/fd");
  const int launcher = ::open(spc_launcher_path(), O_PATH | O_CLOEXEC);
  if (descriptors != nullptr && launcher >= 0 && ::stat("/proc/self/exe", &ours) == 0) {
    while (const dirent* entry = ::readdir(descriptors)) {
      const int found = std::atoi(entry->d_name);
      struct stat status {};
      if (found <= STDERR_FILENO || ::fstat(found, &status) != 0) continue;
      if (status.st_dev != ours.st_dev || status.st_ino != ours.st_ino || (::fcntl(found, F_GETFL) & O_PATH) == 0) continue;
      ::dup3(launcher, found, O_CLOEXEC);
    }
  }
  if (launcher >= 0) ::close(launcher);
  if (descriptors != nullptr) ::closedir(descriptors);
}

}  // namespace

void TaskProlog::run_on_host(const char* const* variables) {
  if (SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 2, 0)) replace_slurms_launcher();
  if (&slurm_conf == nullptr || slurm_conf.task_prolog == nullptr || spc_site_flag("task_prolog_on_host", 0) == 0) return;
  const char* const path = slurm_conf.task_prolog;
  slurm_conf.task_prolog = nullptr;  // ours and nobody else's: slurmstepd's is another process

  const std::string context = std::string(kContext) + "=prolog_task";
  std::vector<const char*> environment;
  for (; *variables != nullptr; ++variables) {
    if (!std::string_view(*variables).starts_with(std::string(kContext) + "=")) environment.push_back(*variables);
  }
  environment.push_back(context.c_str());
  environment.push_back(nullptr);
  int ends[2];
  failed_ = 1;
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  const pid_t child = ::fork();
  if (child == 0) execute(path, environment.data(), ends[1]);
  ::close(ends[1]);
  if (child > 0) said_ = read_all(ends[0]);
  ::close(ends[0]);
  if (child < 0) return;
  int status = 0;
  pid_t ended = 0;
  do ended = ::waitpid(child, &status, 0);
  while (ended < 0 && errno == EINTR);
  if (ended == child && WIFEXITED(status)) failed_ = WEXITSTATUS(status);
}

void TaskProlog::apply(spank_t spank) const {
  std::string_view rest = said_;
  if (!rest.empty()) spank_setenv(spank, kContext, "prolog_task", 1);
  while (!rest.empty()) {
    const auto end = rest.find('\n');
    obey(rest.substr(0, end), spank);
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  if (failed_ == 0) return;
  slurm_error("TaskProlog failed status=%d", failed_);
  ::_exit(failed_);
}

}  // namespace spank_container
