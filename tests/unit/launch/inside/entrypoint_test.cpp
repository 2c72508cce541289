#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <thread>

#include "base/unique_fd.hpp"
#include "launch/task/entrypoint.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
using Kind = ProcessEnd::Kind;

namespace {

Environment given(std::initializer_list<std::pair<const char*, const char*>> variables) {
  Environment environment;
  for (const auto& [name, value] : variables) environment[name] = {value, Origin::image};
  return environment;
}

/// Returns the variables as the probe writes them, each followed by NUL.
std::string found(std::initializer_list<const char*> texts) {
  std::string all;
  for (const char* text : texts) all += std::string(text) + '\0';
  return all;
}

struct Run {
  ProcessEnd end;
  std::vector<std::string> lines;
};

Run run_script(const std::string& script, std::chrono::seconds limit = std::chrono::seconds(20)) {
  const UniqueFd probe(::open("/bin/true", O_PATH | O_CLOEXEC));
  const UniqueFd memory(::memfd_create("found", MFD_CLOEXEC));
  Run run;
  const auto end = run_process(
      {.path = "/bin/sh",
       .arguments = {"sh", "-c", script},
       .environment = {{"PATH=/usr/bin:/bin"}},
       .descriptors = {{probe.get(), kProbeDescriptor}, {memory.get(), kFoundDescriptor}}},
      limit, [&](std::string_view line) { run.lines.emplace_back(line); });
  REQUIRE(end);
  run.end = *end;
  return run;
}

/// Returns whether the process has ended or ends within a moment.
bool ends(const std::string& pid) {
  for (int attempt = 0; attempt < 300; ++attempt) {
    if (::kill(std::atoi(pid.c_str()), 0) != 0 && errno == ESRCH) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

TEST_CASE("entrypoint_changes_are_differences_to_its_input") {
  const auto changes = EntrypointChanges::between(
      given({{"SAME", "1"}, {"OTHER", "1"}, {"GONE", "1"}, {"PWD", "/a"}, {"ODD%%", "1"}}), "/a",
      found({"/b", "SAME=1", "OTHER=2=3", "NEW=", "PWD=/b", "OLDPWD=/a", "SHLVL=2", "_=/x", "=1",
             "no"}));
  CHECK(changes.set == std::map<std::string, std::string>{{"OTHER", "2=3"}, {"NEW", ""}});
  // Shells drop variables with invalid names.
  CHECK(changes.unset == std::set<std::string>{"GONE"});
  CHECK(changes.workdir == "/b");
}

TEST_CASE("entrypoint_without_report_changes_nothing") {
  const auto changes = EntrypointChanges::between(given({{"A", "1"}}), "/a", "");
  CHECK((changes.set.empty() && changes.unset.empty() && changes.workdir.empty()));
}

TEST_CASE("entrypoint_changes_yield_to_user_settings") {
  ContainerSpec spec;
  ContainerSpec with_workdir;
  spec.workdir = with_workdir.workdir = "/a";
  spec.environment = with_workdir.environment = {{"KEPT", {"job", Origin::kept}},
                                                 {"SET", {"1", Origin::option}},
                                                 {"FREE", {"1", Origin::image}}};
  const EntrypointChanges changes{.set = {{"KEPT", "2"}, {"SET", "2"}, {"FREE", "2"}},
                                  .unset = {"KEPT", "SET"},
                                  .workdir = "/b"};
  LaunchRequest request;
  apply(changes, request, spec);
  CHECK(spec.environment["KEPT"].value == "job");
  CHECK(spec.environment["SET"].value == "1");
  CHECK(spec.environment["FREE"].value == "2");
  CHECK(spec.environment["FREE"].origin == Origin::entrypoint);
  CHECK(spec.workdir == "/b");
  CHECK(spec.environment["PWD"].value == "/b");
  request.workdir = "/a";
  apply(changes, request, with_workdir);
  CHECK(with_workdir.workdir == "/a");
}

TEST_CASE("environment_scripts_yield_to_user_and_step") {
  ContainerSpec spec;
  ContainerSpec of_entrypoint;
  spec.environment = of_entrypoint.environment = {{"HOME", {"/home/alice", Origin::user}},
                                                  {"SLURM_JOB_ID", {"7", Origin::slurm}},
                                                  {"SLURM_STEP_NUM_TASKS", {"2", Origin::slurm}},
                                                  {"RANK", {"1", Origin::hook}},
                                                  {"FREE", {"1", Origin::image}}};
  const EntrypointChanges changes{.set = {{"HOME", "/x"},
                                          {"SLURM_JOB_ID", "9"},
                                          {"RANK", "0"},
                                          {"WORLD_SIZE", "1"},
                                          {"FREE", "2"}},
                                  .unset = {},
                                  .workdir = ""};
  spec.settings.environment_scripts = {"/env.sh"};
  apply(changes, LaunchRequest{}, spec);
  CHECK(spec.environment["HOME"].value == "/home/alice");
  CHECK(spec.environment["SLURM_JOB_ID"].value == "7");
  CHECK(spec.environment["RANK"].value == "1");
  CHECK_FALSE(spec.environment.contains("WORLD_SIZE"));
  CHECK(spec.environment["FREE"].value == "2");
  apply(changes, LaunchRequest{}, of_entrypoint);
  CHECK(of_entrypoint.environment["RANK"].value == "0");
}

TEST_CASE("entrypoint_outcome_survives_transfer_partial_fails") {
  EntrypointOutcome outcome;
  outcome.changes = {.set = {{"A", "1=2\n3"}, {"B", ""}}, .unset = {"C"}, .workdir = "/w"};
  outcome.output = {"one", "two"};
  const auto records = outcome.serialize();
  const auto arrived = EntrypointOutcome::parse(records);
  CHECK(arrived.changes.set == outcome.changes.set);
  CHECK(arrived.changes.unset == outcome.changes.unset);
  CHECK(arrived.changes.workdir == "/w");
  CHECK(arrived.output == outcome.output);
  CHECK(arrived.failure.empty());
  for (std::size_t size = 0; size < records.size(); ++size) {
    CHECK_FALSE(EntrypointOutcome::parse(records.substr(0, size)).failure.empty());
  }
}

TEST_CASE("entrypoint_end_and_output_are_reported") {
  const auto good = run_script("printf 'one\\ntwo'; echo >&2");
  CHECK(good.end.kind == Kind::exited);
  CHECK(good.end.number == 0);
  CHECK(good.lines == std::vector<std::string>{"one", "two"});
  const auto bad = run_script("exit 7");
  CHECK(bad.end.kind == Kind::exited);
  CHECK(bad.end.number == 7);
  const auto killed = run_script("kill -9 $$");
  CHECK(killed.end.kind == Kind::signalled);
  CHECK(killed.end.number == SIGKILL);
}

TEST_CASE("entrypoint_has_only_probe_descriptors") {
  const auto run = run_script("cd /proc/self/fd && echo *; readlink 0");
  REQUIRE(run.lines.size() == 2);
  CHECK(run.lines[0] == "0 1 2 20 21 3");  // 3: the directory that the shell is reading
  CHECK(run.lines[1] == "/dev/null");
}

TEST_CASE("entrypoint_failure_kills_its_children") {
  const auto run =
      run_script("(trap '' HUP TERM; setsid sleep 99 & echo $!; wait) & sleep 0.2; exit 1");
  CHECK(run.end.number == 1);
  REQUIRE(run.lines.size() == 1);
  CHECK(ends(run.lines[0]));
}

TEST_CASE("entrypoint_timeout_kills_its_children") {
  const auto run = run_script("setsid sleep 99 & echo $!; exec sleep 98", std::chrono::seconds(1));
  CHECK(run.end.kind == Kind::timed_out);
  REQUIRE(run.lines.size() == 1);
  CHECK(ends(run.lines[0]));
}

TEST_CASE("entrypoint_with_closed_output_is_waited_for") {
  const auto run = run_script("exec >/dev/null 2>&1; sleep 0.2; exit 5");
  CHECK(run.end.number == 5);
}

TEST_CASE("entrypoint_success_keeps_its_servers") {
  const auto run = run_script(
      "(for i in 1 2 3 4 5; do echo tick; sleep 0.1; done; exec sleep 98) >&2 & echo $!");
  CHECK(run.end.number == 0);
  std::string pid;
  for (const auto& line : run.lines) {
    if (line != "tick") pid = line;
  }
  REQUIRE_FALSE(pid.empty());
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  CHECK(::kill(std::atoi(pid.c_str()), 0) == 0);
  ::kill(std::atoi(pid.c_str()), SIGKILL);
}

TEST_CASE("entrypoint_that_cannot_execute_is_reported") {
  const auto end = run_process({.path = "/not/there", .arguments = {"x"}, .descriptors = {}},
                               std::chrono::seconds(0), [](std::string_view) {});
  REQUIRE_FALSE(end);
  CHECK(end.error().sys_errno() == ENOENT);
}
