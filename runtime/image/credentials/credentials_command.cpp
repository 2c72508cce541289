#include "image/credentials/credentials_command.hpp"

#include <climits>
#include <cstdlib>

#include "base/format.hpp"
#include "base/process/supervised.hpp"

namespace spc {
namespace {

constexpr std::size_t kMaxOutput = 64 << 10;
constexpr std::size_t kMaxComplaints = 200;

std::string complaints_of(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (text.size() > kMaxComplaints) text.erase(0, text.size() - kMaxComplaints);
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return printable(text);
}

}  // namespace

Result<CommandOutput> run_command(const std::vector<std::string>& command, std::string_view input,
                                  std::chrono::seconds limit) {
  const char* path = std::getenv("PATH");
  auto found = find_program(command.front(), path != nullptr ? path : "/usr/bin:/bin");
  if (!found)
    return std::move(found).error().hint(
        "install it on this node, or add its directory to the job's PATH");
  const std::string what = "run " + in_quotes(*found);
  std::string errors;
  const auto complain = [&](std::string_view line) {
    errors.append(line).push_back('\n');
    if (errors.size() > 2 * kMaxComplaints) errors.erase(0, errors.size() - kMaxComplaints - 1);
  };
  // An agent that it leaves behind is not ours to end.
  auto ran = run_supervised(
      {.path = *found,
       .arguments = command,
       .descriptors = {},
       .signals = Program::Signals::defaults},
      input,
      {.time = limit, .output = kMaxOutput, .lines = INT_MAX - 1, .group = RunLimits::Group::left},
      complain);
  if (!ran) return Error::from_errno(ran.error().sys_errno(), what);
  CommandOutput result;
  result.out = SecretText(std::move(ran->output));
  switch (ran->kind) {
    case RunEnd::Kind::exited: result.status = ran->number; break;
    case RunEnd::Kind::signalled: result.status = 128 + ran->number; break;
    case RunEnd::Kind::timed_out:
      return Error(ErrorKind::unavailable,
                   formatted("{}: did not finish within {} s", what, limit.count()));
    case RunEnd::Kind::printed_too_much:
      return Error(ErrorKind::unavailable, what + ": wrote more than 64 KiB");
  }
  result.complaints = complaints_of(std::move(errors));
  return result;
}

std::string CommandOutput::ending() const {
  if (complaints.empty()) return formatted("exited with status {}", status);
  return formatted("exited with status {} (it says: {})", status, complaints);
}

}  // namespace spc
