#include "scene.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "agent/node_setup.hpp"
#include "agent/privilege.hpp"
#include "base/file.hpp"
#include "base/socket.hpp"
#include "protocol/fuse.hpp"
#include "unit/catch2_compat.hpp"

namespace fs = std::filesystem;

namespace spc {

using namespace agent;

Step::Step(const std::function<void(AgentTools&)>& change) {
  auto [ours, theirs] = std::move(socket_pair()).value();
  common_ = std::move(ours);
  auto [keeper, agents_end] = std::move(socket_pair()).value();
  keeper_ = std::move(keeper);
  agent_ = ::fork();
  REQUIRE(agent_ >= 0);
  if (agent_ > 0) return;
  common_.reset();
  theirs =
      // Frees the keeper's descriptor number.
      UniqueFd(::fcntl(theirs.get(), F_DUPFD_CLOEXEC, 100));
  REQUIRE(::dup2(UniqueFd(::fcntl(agents_end.get(), F_DUPFD_CLOEXEC, 100)).get(), kAgentKeeper) ==
          kAgentKeeper);
  AgentTools tools;
  tools.store = std::move(ImageStore::open(SPC_STORE_DIR)).value();
  tools.policy_file.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  change(tools);
  Agent agent({.uid = kUser, .gid = kUser}, std::move(theirs), std::move(tools));
  agent.run();
  ::_exit(0);
}

Step::~Step() { kill_agent(); }

void Step::kill_agent() {
  if (agent_ < 0) return;
  ::kill(agent_, SIGKILL);
  ::waitpid(agent_, nullptr, 0);
  agent_ = -1;
}

std::uint64_t Step::used_bytes_of_kept_tmpfs() const {
  std::uint64_t bytes = 0;
  char message{};
  // The agent has ended: the stream ends after the last mount.
  for (auto mount = receive_struct(keeper_.get(), message, 1); mount;
       mount = receive_struct(keeper_.get(), message, 1)) {
    struct statvfs status {};
    REQUIRE(::fstatvfs(mount->at(0).get(), &status) == 0);
    bytes += (status.f_blocks - status.f_bfree) * status.f_frsize;
  }
  return bytes;
}

void Step::leave() {
  socket_.reset();
  container_.reset();
}

bool Step::join(int mount_namespace) {
  TaskMessage message{.kind = TaskMessageKind::join};
  REQUIRE(send_struct(common_.get(), message));
  char byte = 0;
  auto line = receive_struct(common_.get(), byte, 1);
  if (!line || line->empty()) return false;
  socket_ = std::move(line->front());
  const auto told = receive_struct(socket_.get(), message, kMaxDescriptorsPerMessage);
  if (!told || message.kind != TaskMessageKind::lead) return false;
  const UniqueFd own(::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
  const int passed[] = {mount_namespace >= 0 ? mount_namespace : own.get()};
  return told->size() == 3 && send_struct(told->back().get(), char{}, passed);
}

bool Step::end() {
  common_.reset();
  const bool ended = becomes_true([&] { return ::waitpid(agent_, nullptr, WNOHANG) == agent_; });
  if (ended) agent_ = -1;
  return ended;
}

void Step::order(std::uint32_t flags, const UniqueFd& request, const UniqueFd& image,
                 const Digest& manifest, std::uint64_t offset) {
  REQUIRE(join());
  const bool is_file = (flags & TaskMessage::start_squashfs) != 0;
  TaskMessage message{.kind = TaskMessageKind::start, .start_flags = flags, .manifest = manifest};
  message.servers = is_file ? 1 : 0;
  REQUIRE(send_struct(socket_.get(), message));
  if ((flags & TaskMessage::start_known) != 0) return;
  const auto asked = receive_struct(socket_.get(), message, 1);
  REQUIRE(asked);
  const int opened[] = {image.get()};
  if (message.kind == TaskMessageKind::import_asks) {
    const std::string wishes = read_file(request.get(), 1000).value();
    REQUIRE(send_message(asked->at(0).get(), std::as_bytes(std::span(wishes)), {}));
  } else if (message.kind == TaskMessageKind::serves) {
    REQUIRE(send_struct(asked->at(0).get(), FuseLoan{.offset = offset}, opened));
  } else {
    REQUIRE(message.kind == TaskMessageKind::sources);
    REQUIRE(send_struct(socket_.get(), TaskMessage{.kind = TaskMessageKind::source}, opened));
  }
}

TaskMessage Step::start(std::uint32_t flags, const UniqueFd& request, const UniqueFd& image,
                        const Digest& manifest, std::uint64_t offset) {
  order(flags, request, image, manifest, offset);
  for (;;) {
    TaskMessage message;
    auto descriptors = receive_struct(socket_.get(), message, kMaxDescriptorsPerMessage);
    REQUIRE(descriptors);
    if (message.kind == TaskMessageKind::sources) continue;
    if (message.kind == TaskMessageKind::set_up) {
      message.kind = TaskMessageKind::set_up_done;
      REQUIRE(send_struct(socket_.get(), message));
      continue;
    }
    if (message.kind == TaskMessageKind::ready) container_ = std::move(descriptors->at(0));
    return message;
  }
}

bool Step::hear(TaskMessage& message) const {
  return receive_struct(socket_.get(), message, kMaxDescriptorsPerMessage).has_value();
}

bool Step::inside(const std::function<bool()>& check) const {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (::setns(container_.get(), CLONE_NEWNS) != 0 || ::setresgid(kUser, kUser, kUser) != 0 ||
        ::setresuid(kUser, kUser, kUser) != 0) {
      ::_exit(2);
    }
    ::_exit(check() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0;
}

std::vector<pid_t> processes_of(const std::string& program) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::string comm;
    struct stat status {};
    std::ifstream(entry.path() / "comm") >> comm;
    std::ifstream state(entry.path() / "stat");
    std::string word;
    for (int i = 0; i < 3; ++i) state >> word;
    if (comm == program && word != "Z" && ::stat(entry.path().c_str(), &status) == 0) {
      std::ifstream lines(entry.path() / "status");
      for (std::string line; std::getline(lines, line);)
        if (line.starts_with("Uid:\t" + std::to_string(Step::kUser)))
          found.push_back(std::stoi(entry.path().filename()));
    }
  }
  return found;
}

int running(const std::string& program) { return static_cast<int>(processes_of(program).size()); }

bool becomes_true(const std::function<bool()>& condition) {
  for (int attempt = 0; attempt < 1000; ++attempt, ::usleep(10'000)) {
    if (condition()) return true;
  }
  return false;
}

}  // namespace spc
