// The program `import`, started by the agent as the service user: for one image (see
// protocol/import.hpp), or as `import policy` to check config.toml (see protocol/policy.hpp), by
// the leader, as the user, as `import trust`, or by srun, as the user, as `import resolve`.

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <csignal>
#include <exception>
#include <span>

#include "base/process/processors.hpp"
#include "image/import/fill_shared.hpp"
#include "image/import/import.hpp"
#include "image/import/policy.hpp"
#include "image/import/resolve.hpp"
#include "image/import/sandbox.hpp"
#include "image/import/trust.hpp"
#include "protocol/import.hpp"
#include "protocol/submit.hpp"

using namespace spc;

namespace {

void give_up_what_is_not_needed() {
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  ::umask(022);
  std::signal(SIGPIPE, SIG_IGN);
}

Result<Digest> import_as_asked(AgentLink& agent, const Result<ImageStore>& store) {
  std::string bytes(kMostImportRequest, '\0');
  const ssize_t size =
      ::recv(kImportSource, bytes.data(), bytes.size(), 0);  // and no descriptor with it
  if (size <= 0) return Error(ErrorKind::unavailable, "read the import request: there is none");
  bytes.resize(static_cast<std::size_t>(size));
  const auto request = SPC_TRY(ImportRequest::parse(bytes));
  const auto config = SPC_TRY(read_config(request.config));
  use_processors(config.import_cpus);
  ImportSandbox sandbox{.store = request.only_shared ? -1 : kImportStore,
                        .paths = {config.shared.directory}};
  // Of a step on several nodes: the relay's descriptors are made later.
  sandbox.may_start = request.meet >= 2 && config.peers.enabled && !request.user_store;
  SPC_TRY_DURING("entering the sandbox", enter_import_sandbox(sandbox));
  if (request.only_shared) return fill_shared_store(request, config, agent);
  if (!store) return store.error();
  UserSourceLink user(kImportSource, agent);
  return import_image(request, config, *store, agent, user);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "policy") {
    give_up_what_is_not_needed();
    if (!enter_import_sandbox({})) return 1;
    return answer_policy(kImportSocket);
  }
  if (argc > 1 && std::string_view(argv[1]) == "trust") {
    give_up_what_is_not_needed();
    if (!enter_import_sandbox({})) return 1;
    return answer_trust(std::span(argv + 2, argv + argc), kImportSocket);
  }
  if (argc > 1 && std::string_view(argv[1]) == kResolve) {
    give_up_what_is_not_needed();
    return answer_resolve(std::span(argv + 2, argv + argc));
  }
  // First: a process that is not dumpable cannot ask for the path of a descriptor of its own.
  AgentLink agent(kImportSocket);
  const auto store = ImageStore::open(kImportStore, &agent);
  give_up_what_is_not_needed();
  try {
    const auto image = import_as_asked(agent, store);
    const auto told = image ? agent.done(*image) : agent.failed(image.error());
    return image && told ? 0 : 1;
  } catch (const std::exception& error) {  // out of memory
    static_cast<void>(
        agent.failed(Error(ErrorKind::internal, std::string("import: ") + error.what())));
    return 1;
  }
}
