#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "agent/privilege.hpp"
#include "base/socket.hpp"
#include "files.hpp"
#include "scene.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
using namespace spc::agent;
namespace fs = std::filesystem;

namespace {

/// Waits until the process sleeps. It has then executed its program and the loader has closed the
/// libraries.
void await_sleep(pid_t pid) {
  const auto sleeps = [&] {
    return proc_file(pid, "comm") == "sleep\n" &&
           proc_file(pid, "syscall").starts_with(std::to_string(SYS_clock_nanosleep) + " ");
  };
  CHECK(becomes_true(sleeps));
}

void end(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

}  // namespace

TEST_CASE("helper_has_only_given_descriptors_and_no_privileges") {
  auto [ours, theirs] = std::move(socket_pair()).value();
  const UniqueFd unrelated(::open("/dev/zero", O_RDONLY));  // not close-on-exec
  const pid_t pid = start_helper("sleep", "1000", 12345, 12346,
                                 {theirs.get(), theirs.get(), theirs.get(), theirs.get()})
                        .value();
  await_sleep(pid);
  CHECK(status_line(pid, "Uid") == "12345\t12345\t12345\t12345");
  CHECK(status_line(pid, "Gid") == "12346\t12346\t12346\t12346");
  CHECK(status_line(pid, "Groups") == " ");
  CHECK(status_line(pid, "CapPrm") == "0000000000000000");
  CHECK(status_line(pid, "CapEff") == "0000000000000000");
  CHECK(proc_file(pid, "environ").empty());
  int descriptors = 0;
  for (const auto& fd : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    CHECK(std::stoi(fd.path().filename()) <= 6);
    CHECK(fs::read_symlink(fd) != "/dev/zero");
    ++descriptors;
  }
  CHECK(descriptors == 7);
  end(pid);
}

TEST_CASE("helper_dies_with_its_parent") {
  int out[2];
  REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const auto child = start_helper("sleep", "1000", 12345, 12345, {});
    const pid_t pid = child ? *child : -1;
    [[maybe_unused]] const auto written = ::write(out[1], &pid, sizeof pid);
    ::pause();
    ::_exit(0);
  }
  pid_t helper = -1;
  REQUIRE(::read(out[0], &helper, sizeof helper) == sizeof helper);
  REQUIRE(helper > 0);
  await_sleep(helper);
  end(parent);
  bool gone = false;
  for (int attempt = 0; attempt < 200 && !gone; ++attempt) {
    const std::string state = status_line(helper, "State");
    gone = state.empty() || state.starts_with("Z");
    ::usleep(10'000);
  }
  CHECK(gone);
}

TEST_CASE("helper_without_service_user_is_refused") {
  const auto started = start_helper("sleep", "1", 0, 0, {});
  REQUIRE_FALSE(started);
  CHECK(started.error().what() == "no service user for images");
  CHECK(started.error().advice() == "create the system user spank-container and restart slurmd");
}

TEST_CASE("agent_keeps_needed_capabilities_and_groups_only") {
  const pid_t child = ::fork();
  if (child == 0) {
    const gid_t job[] = {4711, 4712};
    if (::setgroups(2, job) != 0 || !keep_needed_privileges()) ::_exit(10);
    cap_t set = ::cap_get_proc();
    const std::string text = ::cap_to_text(set, nullptr);
    const std::string wanted =
        "cap_chown,cap_dac_override,cap_fowner,cap_fsetid,cap_kill,cap_setgid,cap_setuid,cap_sys_"
        "chroot,cap_sys_admin,"
        "cap_setfcap=ep";
    if (text != wanted) ::_exit(11);
    if (::cap_get_bound(CAP_NET_ADMIN) != 0 || ::cap_get_bound(CAP_SYS_MODULE) != 0) ::_exit(12);
    if (::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) ::_exit(13);
    gid_t groups[2] = {};  // for the builder's overlay
    if (::getgroups(2, groups) != 2 || groups[0] != job[0] || groups[1] != job[1]) ::_exit(14);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
}
