// Built-in hooks as separate programs behave as in the process. SPC_BUILTIN_HOOK is the program.

#include <sys/wait.h>
#include <unistd.h>

#include "hooks/hook.hpp"
#include "hooks/hook_json.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

/// Returns the standard output of the hook's program for this standard input.
std::string say(const char* hook, const std::string& input) {
  int in[2], out[2];
  REQUIRE(::pipe(in) == 0);
  REQUIRE(::pipe(out) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(in[0], 0);
    ::dup2(out[1], 1);
    for (const int fd : {in[0], in[1], out[0], out[1]}) ::close(fd);
    ::execl(SPC_BUILTIN_HOOK, hook, nullptr);  // as a link of this name
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  REQUIRE(input.size() < 65536);
  REQUIRE(::write(in[1], input.data(), input.size()) == static_cast<ssize_t>(input.size()));
  ::close(in[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t size = 0; (size = ::read(out[0], buffer, sizeof buffer)) > 0;)
    said.append(buffer, static_cast<std::size_t>(size));
  ::close(out[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  return said;
}

HookContext some_context() {
  HookContext context;
  context.job = {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "2"},
                 {"SLURM_LOCALID", "0"},        {"SLURM_NODEID", "1"},
                 {"SLURM_JOB_ID", "17"},        {"SLURM_STEP_ID", "0"},
                 {"SLURM_NTASKS", "4"},         {"SLURM_STEP_NODELIST", "node[01-02]"},
                 {"SLURM_MPI_TYPE", "pmix"},    {"PMIX_RANK", "2"},
                 {"CUDA_VISIBLE_DEVICES", "0"}};
  context.image = {{"PYTORCH_VERSION", "2.1"}, {"PATH", "/usr/bin"}};
  context.image_name = "docker://ubuntu";
  context.uid = ::getuid();
  context.gid = ::getgid();
  context.user = "alice";
  context.home = "/home/alice";
  context.host_root = "/nonexistent";
  context.granted_devices.emplace();
  return context;
}

}  // namespace

TEST_CASE("builtin_hook_program_and_function_return_same_edits") {
  for (const Hook* hook : builtin_hooks()) {
    INFO(hook->name);
    HookCall call;
    call.context = some_context();
    const bool wanted = hook->when == nullptr || hook->when(call.context);
    call.stage = "prepare";
    Edits edits;
    if (wanted && hook->prepare != nullptr) {
      auto prepared = hook->prepare(call.context);
      if (!prepared) continue;  // it refuses this context
      edits = *std::move(prepared);
    }
    Edits visible = edits;
    visible.found = nullptr;  // only the process itself has this member
    CHECK(edits_from_json(say(hook->name, context_to_json(call))).value() == visible);

    call.stage = "create";
    call.prepared = visible;
    if (wanted && hook->create != nullptr && !hook->create(call.context, edits)) continue;
    edits.found = nullptr;
    CHECK(edits_from_json(say(hook->name, context_to_json(call))).value() == edits);

    call.stage = "task";
    call.context.environment = {{"PATH", "/usr/bin"}, {"HOME", "/home/alice"}};
    edits = Edits();
    if (wanted && hook->task != nullptr) edits = hook->task(call.context).value();
    CHECK(edits_from_json(say(hook->name, context_to_json(call))).value() == edits);
  }
}
