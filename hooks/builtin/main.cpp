// The built-in hooks as a separate program: builtin-hook NAME, or a link to it called NAME. Like a
// hook of a site, it reads a context as JSON and prints edits as JSON. So each hook can be tried
// and debugged separately, and used by other runtimes.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/format.hpp"
#include "hooks/hook.hpp"
#include "hooks/hook_json.hpp"

using namespace spc;

namespace {

constexpr std::size_t kMostInput = 64 << 20;

int say(const std::string& why) {
  std::fprintf(stderr, "builtin-hook: %s\n", why.c_str());
  return 1;
}

const Hook* find(std::string_view name) {
  for (const Hook* hook : builtin_hooks()) {
    if (name == hook->name) return hook;
  }
  return nullptr;
}

std::string stages_of(const Hook& hook) {
  std::string text;
  if (hook.prepare != nullptr) text += " prepare";
  if (hook.create != nullptr) text += " create";
  if (hook.task != nullptr) text += " task";
  return text.empty() ? text : text.substr(1);
}

void help(const Hook* hook) {
  if (hook != nullptr) {
    std::printf("%s: %s\nstages: %s\n\n", hook->name, hook->says, stages_of(*hook).c_str());
  } else {
    std::printf("usage: builtin-hook NAME [--time N] < CONTEXT.json > EDITS.json\n\nhooks:\n");
    for (const Hook* known : builtin_hooks()) {
      std::printf("  %-18s %s (%s)\n", known->name, known->says, stages_of(*known).c_str());
    }
    std::printf("\n");
  }
  std::printf(
      "Reads a context as JSON and prints the hook's edits as JSON. A minimal context:\n"
      "  {\"stage\": \"task\", \"job\": {\"SLURM_STEP_NUM_TASKS\": \"4\"}}\n"
      "Image files are read below image.root, host files below hostRoot, if given.\n"
      "With --time, the hook runs N times and the median time is printed in microseconds.\n"
      "In stage create, \"prepared\" is the output of stage prepare. See "
      "spank-container-hooks(7).\n");
}

/// Reads all of standard input.
Result<std::string> read_input() {
  std::string text;
  char buffer[64 * 1024];
  for (;;) {
    const ssize_t size = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (size < 0) return Error::from_errno(errno, "read standard input");
    if (size == 0) return text;
    text.append(buffer, static_cast<std::size_t>(size));
    if (text.size() > kMostInput) return Error(ErrorKind::invalid, "standard input is too long");
  }
}

/// Returns the hook's edits in this call; empty if the hook does not take part.
Result<Edits> run(const Hook& hook, HookCall& call) {
  if (hook.when != nullptr && !hook.when(call.context)) return Edits();
  if (call.stage == "prepare" && hook.prepare != nullptr) return hook.prepare(call.context);
  if (call.stage == "task" && hook.task != nullptr) return hook.task(call.context);
  if (call.stage != "create") return Edits();
  // Run `prepare` again: the findings that it passes to `create` besides its edits stay in one
  // process.
  if (hook.prepare != nullptr) call.prepared.found = SPC_TRY(hook.prepare(call.context)).found;
  if (hook.create != nullptr) SPC_TRY(hook.create(call.context, call.prepared));
  return std::move(call.prepared);
}

Result<std::string> answer(const Hook& hook, int times) {
  const auto input = SPC_TRY(read_input());
  auto call = SPC_TRY_DURING("context", context_from_json(input));
  if (times > 0) {
    std::vector<std::uint64_t> took;
    for (int i = 0; i < times; ++i) {
      HookCall again = call;
      const std::uint64_t begin = now_us();
      SPC_TRY(run(hook, again));
      took.push_back(now_us() - begin);
    }
    std::nth_element(took.begin(), took.begin() + times / 2, took.end());
    return std::to_string(took[static_cast<std::size_t>(times / 2)]);
  }
  return edits_to_json(SPC_TRY(run(hook, call)));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view path = argc > 0 ? argv[0] : "";
  const std::string_view own_name = path.substr(path.rfind('/') + 1);
  const Hook* hook = find(own_name);
  const int first = hook == nullptr ? 1 : 0;  // index of the hook's name
  if (hook == nullptr && argc > 1) hook = find(argv[1]);
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--help") == 0 || std::strcmp(argv[i], "-h") == 0)
      return help(hook), 0;
  }
  // List the names, for the installation of the links.
  if (hook == nullptr && argc == 2 && std::strcmp(argv[1], "--names") == 0) {
    for (const Hook* known : builtin_hooks()) std::printf("%s\n", known->name);
    return 0;
  }
  if (hook == nullptr && argc > 1)
    return say(
        formatted("unknown hook {} (hint: builtin-hook --help lists them)", in_quotes(argv[1])));
  int times = 0;
  if (hook != nullptr && argc == first + 3 && std::strcmp(argv[first + 1], "--time") == 0) {
    times = std::atoi(argv[first + 2]);
    argc = times > 0 ? first + 1 : argc;
  }
  if (hook == nullptr || argc > first + 1)
    return say("expected the name of one hook (hint: builtin-hook --help)");
  const auto text = answer(*hook, times);
  if (!text) return say(formatted("{}: {}", hook->name, text.error().message()));
  std::printf("%s\n", text->c_str());
  return std::fflush(stdout) == 0 ? 0 : say("write standard output");
}
