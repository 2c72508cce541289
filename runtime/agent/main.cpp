// /usr/libexec/spank-container/agent
//   agent step UID GID JOB STEP   the root side of one step, on descriptor 3; started by the plugin
//                                 in slurmstepd
//   agent setup UID GID           makes the node's directories; UID and GID are the service user's;
//                                 started by slurmd
//   agent epilog UID JOB          removes containers, sockets and held layers of an ended job;
//                                 started by slurmd, and by scontainer gc

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "agent/agent.hpp"
#include "agent/named_container.hpp"
#include "agent/node_setup.hpp"
#include "agent/privilege.hpp"

namespace spc::agent {
namespace {

Result<AgentTools> prepare_tools() {
  AgentTools tools;
  tools.store = SPC_TRY(ImageStore::open(SPC_STORE_DIR));
  tools.policy_file =
      SPC_TRY(current_policy(tools.store.service_uid(), tools.store.service_gid(), tools.policy));
  return tools;
}

int run_step(uid_t uid, gid_t gid, std::uint32_t job, std::uint32_t step) {
  // Not started by the plugin.
  if (::chdir("/") != 0 || ::isfdtype(kAgentSocket, S_IFSOCK) != 1) return 1;
  auto reduced = keep_needed_privileges();
  auto tools = reduced ? prepare_tools() : Result<AgentTools>(std::move(reduced).error());
  // Tasks receive a failure up to here, since they can report it to the user.
  Agent agent({.uid = uid, .gid = gid, .job = job, .step = step}, UniqueFd(kAgentSocket),
              std::move(tools));
  agent.run();
  return 0;
}

int run_setup(uid_t uid, gid_t gid) {
  auto done = set_up_node(uid, gid);
  if (done) done = sweep_containers();
  const auto held = set_up_held_layers();  // without it steps only start later
  if (!done || !held)
    std::fprintf(stderr, "agent: %s\n", (done ? held : done).error().message().c_str());
  return done ? 0 : 1;
}

}  // namespace
}  // namespace spc::agent

int main(int argc, char** argv) {
  unsigned ids[4] = {};
  ::signal(SIGPIPE, SIG_IGN);
  // If it were ignored, the verifier's verdict would be lost. Exec keeps the setting.
  ::signal(SIGCHLD, SIG_DFL);
  ::umask(022);
  const std::string_view command = argc > 1 ? argv[1] : "";
  bool good = argc >= 2 && argc <= 6;
  for (int i = 2; good && i < argc; ++i) {
    const char* const end = argv[i] + std::strlen(argv[i]);
    good = std::from_chars(argv[i], end, ids[i - 2]).ptr == end && ids[i - 2] != ~0U;
  }
  if (good && command == "step" && argc == 6)
    return spc::agent::run_step(ids[0], ids[1], ids[2], ids[3]);
  if (good && command == "setup" && argc == 4) return spc::agent::run_setup(ids[0], ids[1]);
  if (good && command == "epilog" && argc == 4)
    return spc::agent::remove_containers_of(ids[0], ids[1]) ? 0 : 1;
  std::fputs("agent is started by spank_container.so, not manually\n", stderr);
  return 2;
}
