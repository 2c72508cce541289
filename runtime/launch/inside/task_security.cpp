#include "launch/inside/task_security.hpp"

#include <charconv>
#include <cstdint>
#include <cstring>

#include "base/format.hpp"
#include "base/records.hpp"
#include "task/exec_label.hpp"
#include "task/seccomp_profile.hpp"

namespace spc {
namespace {

// A record has no NUL, and a program many. An instruction of the kernel's filter has 8 bytes:
// struct sock_filter.
constexpr std::size_t kInstruction = sizeof(std::uint64_t);
constexpr std::size_t kDigits = 2 * kInstruction;

std::string in_digits(std::string_view program) {
  std::string text;
  for (; program.size() >= kInstruction; program.remove_prefix(kInstruction)) {
    std::uint64_t instruction = 0;
    std::memcpy(&instruction, program.data(), kInstruction);
    text += formatted("{:016x}", instruction);
  }
  return text;
}

std::string from_digits(std::string_view text) {
  std::string program;
  for (; text.size() >= kDigits; text.remove_prefix(kDigits)) {
    std::uint64_t instruction = 0;
    std::from_chars(text.data(), text.data() + kDigits, instruction, 16);
    program.append(reinterpret_cast<const char*>(&instruction), kInstruction);
  }
  return program;
}

}  // namespace

std::string TaskSecurity::serialize() const {
  std::string records;
  add_record(records, "seccomp", asked);
  for (const std::string& program : programs)
    add_record(records, "seccomp-program", in_digits(program));
  if (!apparmor.empty()) add_record(records, "apparmor", apparmor);
  if (!selinux.empty()) add_record(records, "selinux", selinux);
  return records;
}

TaskSecurity TaskSecurity::parse(std::string_view records) {
  TaskSecurity security;
  for (Records record(records); record.next();) {
    if (record.key() == "apparmor") security.apparmor = record.value();
    if (record.key() == "selinux") security.selinux = record.value();
    if (record.key() == "seccomp") security.asked = record.value();
    if (record.key() == "seccomp-program") security.programs.push_back(from_digits(record.value()));
  }
  return security;
}

Result<void> TaskSecurity::check(const LaunchRequest& request) const {
  if (request.seccomp.empty() || request.seccomp == asked) return {};
  const std::string has =
      asked.empty() ? "without one of the job" : "with seccomp=" + printable(asked);
  return Error(ErrorKind::refused,
               formatted("--container-security=seccomp={}: the container was started {}",
                         printable(request.seccomp), has))
      .hint("it is running already: use the option in the step that starts it");
}

Result<void> TaskSecurity::apply() const {
  if (!apparmor.empty())
    SPC_TRY_DURING("apparmor_profile of the site",
                   set_exec_label(SecurityModule::apparmor, apparmor));
  if (!selinux.empty())
    SPC_TRY_DURING("selinux_label of the site", set_exec_label(SecurityModule::selinux, selinux));
  for (const std::string& program : programs) SPC_TRY(load_seccomp_program(program));
  return {};
}

}  // namespace spc
