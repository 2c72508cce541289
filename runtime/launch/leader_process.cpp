#include "launch/leader_process.hpp"

#include <exception>
#include <utility>
#include <vector>

#include "base/socket.hpp"
#include "launch/leader.hpp"

namespace spc {
namespace {

Result<void> ask_for_user_source(int task, int socket, const std::string& location) {
  LeaderMessage message;
  message.kind = LeaderMessage::start_user_source;
  message.location.set(location);
  const int passed[] = {socket};
  return send_struct(task, message, passed);
}

/// Holds lines back until it is known whether another leader says the same.
class FirstLog final : public Log {
 public:
  FirstLog(Log& log, bool holds) : log_(log), holds_(holds) {}
  void write(LogLevel level, std::string_view line) noexcept override {
    if (!holds_) return log_.write(level, line);
    lines_.emplace_back(level, line);
  }
  void tell() {
    holds_ = false;
    for (const auto& [level, line] : std::exchange(lines_, {})) log_.write(level, line);
  }

 private:
  Log& log_;
  bool holds_;
  std::vector<std::pair<LogLevel, std::string>> lines_;
};

Result<Led> read_and_lead(const TaskCall& call, AgentLine& line, const LeaderStart& start,
                          bool& explains) {
  if (call.before_leading) call.before_leading(start.policy.manifest == Digest());
  const Asked asked = SPC_TRY(call.read(ReadAt::node));
  if (asked.verdict == Asked::outside) return Led::outside;
  if (asked.verdict == Asked::left) return Led::left;
  explains = asked.request.explain;
  FirstLog log(call.log, start.parent == ChildOf::us);
  const auto tell = [&] { log.tell(); };
  const TaskContext task{asked.request, asked.job, call.step, log};
  auto led = Leader(task, line, start.notes, start.parent).lead(start.policy, tell);
  if (!led || *led != Led::again) tell();
  return led;
}

}  // namespace

int lead(const TaskCall& call, const LeaderStart& start) try {
  AgentLine line(UniqueFd(start.agent), call.style, call.log);
  line.user_source().start_for_podman([task = start.task](int socket, const std::string& location) {
    return ask_for_user_source(task, socket, location);
  });
  LeaderMessage message;
  const auto led = read_and_lead(call, line, start, message.explains);
  message.kind = led ? LeaderMessage::led : LeaderMessage::failed;
  if (led) message.how = *led;
  if (!led) message.error = WireError(line.fail(led.error()));
  return send_struct(start.task, message) ? 0 : 1;
} catch (const std::exception&) {  // out of memory: the task sees that we are gone
  return 1;
}

}  // namespace spc
