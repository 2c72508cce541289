#include "tool/containers/node_step.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/socket.hpp"
#include "image/reference/file_url.hpp"
#include "protocol/wire_error.hpp"
#include "spank_container/runtime.h"
#include "tool/images/stored_images.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

std::vector<const char*> as_pointers(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  for (const auto& text : texts) pointers.push_back(text.c_str());
  pointers.push_back(nullptr);
  return pointers;
}

void show(int level, const char* line, void* display) {
  if (level == SPC_LOG_RECORD) return;  // for the log of a node that runs jobs
  static_cast<PullDisplay*>(display)->write(static_cast<LogLevel>(level), line);
}

void set_variable(const char* name, const char* value, void* environment) {
  (*static_cast<std::map<std::string, std::string>*>(environment))[name] = value;
}
void unset_variable(const char* name, void* environment) {
  static_cast<std::map<std::string, std::string>*>(environment)->erase(name);
}

}  // namespace

struct NodeStep::State {
  State(const std::string& image, bool quiet) : display(image, quiet) {}
  PullDisplay display;
  spc_runtime* runtime = nullptr;
};

NodeStep::NodeStep(NodeStep&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}

NodeStep::~NodeStep() {
  if (state_ == nullptr) return;
  spc_close(state_->runtime);
  delete state_;
}

Result<NodeStep> NodeStep::open(const std::string& image, bool quiet) {
  NodeStep step(new State(image, quiet));
  spc_runtime*& runtime = step.state_->runtime;
  if (spc_open(show, &step.state_->display, &runtime) != SPC_OK)
    return Error(ErrorKind::no_space, "out of memory");
  spc_step options{};
  options.size = sizeof options;
  options.uid = ::geteuid();
  options.gid = ::getegid();
  // A node where slurmd has not been started yet has no store. Where it has, that would release
  // what running jobs hold.
  const bool is_set_up =
      ::access(SPC_STORE_DIR "/records", F_OK) == 0 && ::access(SPC_RUN_DIR "/steps", F_OK) == 0;
  if ((!is_set_up && spc_node_setup(runtime) != SPC_OK) || spc_step_open(runtime) != SPC_OK ||
      spc_step_start(runtime, &options) != SPC_OK) {
    return Error(ErrorKind::system, spc_error_message(runtime));
  }
  return step;
}

Error NodeStep::pull(const std::vector<std::string>& options) {
  std::map<std::string, std::string> environment;
  return enter(options, environment, true).error();
}

Result<void> NodeStep::enter(const std::vector<std::string>& options,
                             std::map<std::string, std::string>& environment, bool only_pull) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  const auto variable_pointers = as_pointers(variables);
  const auto option_pointers = as_pointers(options);
  spc_options given{};
  given.size = sizeof given;
  given.given = option_pointers.data();
  given.only_pull = only_pull ? 1 : 0;
  spc_environment changes{};
  changes.size = sizeof changes;
  changes.variables = variable_pointers.data();
  changes.set = set_variable;
  changes.unset = unset_variable;
  changes.arg = &environment;
  spc_task_keep_privilege(state_->runtime);
  const int entered = spc_task_enter(state_->runtime, &given, &changes);
  if (entered == SPC_OK) return {};
  return Error(static_cast<ErrorKind>(SPC_E_INVALID - entered),
               spc_error_message(state_->runtime));  // in the same order
}

Result<Digest> pull_into_node_store(const Places& places, const Config& config,
                                    const Wanted& wanted) {
  if (wanted.platform) {
    return Error(ErrorKind::invalid,
                 "--platform: the node's store takes images for the node's architecture only");
  }
  std::vector<std::string> options{"container-image=" + wanted.image};
  if (wanted.verbose) options.emplace_back("container-verbose");
  if (wanted.pull) options.push_back(std::string("container-pull=") + name_of(*wanted.pull));
  {
    // Under the same rules as for a job.
    auto step = SPC_TRY(NodeStep::open(without_secrets(wanted.image), wanted.quiet));
    auto line = SPC_TRY(socket_pair());
    const auto enter = [&] {
      static_cast<void>(send_struct(line.second.get(), WireError(step.pull(options))));
      return 1;
    };
    auto child = SPC_TRY(Child::run(enter, "pull " + in_quotes(without_secrets(wanted.image)), 0));
    line.second.reset();
    WireError why;
    const auto told = receive_struct(line.first.get(), why);
    const bool pulled = child.wait().success();
    if (told) return why.error();
    if (!pulled)
      return Error(ErrorKind::internal, formatted("pull {}: its process exited",
                                                  in_quotes(without_secrets(wanted.image))));
  }
  const auto store = SPC_TRY(open_store(places.store));
  return SPC_TRY(find_image(store.get(), wanted.image, config.default_registry)).digest;
}

}  // namespace spc::tool
