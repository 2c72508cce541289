// The leader's notes for the tasks, with security and hook edits, and the records of a start for
// the administrator's log.

#include "launch/task/task_notes.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/result.hpp"
#include "base/text.hpp"
#include "task/security.hpp"

namespace spc {

// --- start record ---

namespace {

std::string milliseconds(std::uint64_t microseconds) {
  char text[40];
  std::snprintf(text, sizeof text, "%.1f", static_cast<double>(microseconds) / 1000.0);
  return text;
}

const char* name_of(ContainerSpec::From from) {
  switch (from) {
    case ContainerSpec::From::store: return "store";
    case ContainerSpec::From::file: return "file";
    case ContainerSpec::From::directory: return "directory";
  }
  return "-";
}

const char* name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid: return "invalid";
    case ErrorKind::not_found: return "not_found";
    case ErrorKind::refused: return "refused";
    case ErrorKind::unavailable: return "unavailable";
    case ErrorKind::no_space: return "no_space";
    case ErrorKind::corrupt: return "corrupt";
    case ErrorKind::system: return "system";
    case ErrorKind::internal: return "internal";
  }
  return "internal";
}

/// Returns job, step and node from Slurm's variables.
std::string place_of(const std::map<std::string, std::string>& job) {
  const auto variable = [&](const char* name) {
    const auto found = job.find(name);
    return found == job.end() || found->second.empty() ? std::string("-")
                                                       : printable(found->second);
  };
  return formatted("job={} step={} node={}", variable("SLURM_JOB_ID"), variable("SLURM_STEP_ID"),
                   variable("SLURMD_NODENAME"));
}

}  // namespace

void tell_image(const std::string& image, ContainerSpec& spec) {
  spec.environment.erase(
      "SCONTAINER_IMAGE_NAME");  // of the source image of this container, as is the digest
  if (!image.empty()) spec.environment["SCONTAINER_IMAGE_NAME"] = {image, Origin::container};
  spec.environment.erase("SCONTAINER_IMAGE_DIGEST");
  if (spec.manifest)
    spec.environment["SCONTAINER_IMAGE_DIGEST"] = {spec.manifest->str(), Origin::container};
}

void tell_name(const std::optional<ContainerName>& name, ContainerSpec& spec) {
  spec.environment.erase("SCONTAINER_CONTAINER_NAME");
  if (name && !name->step_key())
    spec.environment["SCONTAINER_CONTAINER_NAME"] = {name->text, Origin::container};
}

void tell_prompt(ContainerSpec& spec) {
  if (::isatty(STDIN_FILENO) == 0) return;
  const auto name = spec.environment.find("SCONTAINER_CONTAINER_NAME");
  const std::string short_name = spec.image.substr(0, spec.image.find('@'));
  std::string where = name != spec.environment.end() ? name->second.value
                                                     : short_name.substr(short_name.rfind('/') + 1);
  std::replace_if(
      where.begin(), where.end(),
      [](unsigned char c) { return std::isalnum(c) == 0 && std::strchr("._:+-", c) == nullptr; },
      '_');
  spec.environment.try_emplace("debian_chroot", Variable{where, Origin::container});
  spec.environment.try_emplace("PS1", Variable{where + ":\\w\\$ ", Origin::container});
}

std::string start_record(const std::string& image, const UserIdentity& user,
                         const ContainerSpec& spec, const TaskMessage& ready, bool pulled,
                         std::uint64_t microseconds,
                         const std::map<std::string, std::string>& job) {
  const auto ms = [&](Phase phase) {
    return milliseconds(ready.times[static_cast<std::size_t>(phase)]);
  };
  return formatted(
      "start {} uid={} user={} image={} digest={} from={} layers={} shared={} fuse={} pulled={} "
      "import_ms={} "
      "sources_ms={} layers_ms={} overlay_ms={} pivot_ms={} root_ms={} start_ms={}",
      place_of(job), user.uid, user.name.empty() ? "-" : printable(user.name), in_quotes(image),
      spec.manifest ? spec.manifest->str() : "-", name_of(spec.from), ready.layers,
      ready.layers_shared, ready.layers_served, pulled ? 1 : 0, ms(Phase::import),
      ms(Phase::sources), ms(Phase::layers), ms(Phase::overlay), ms(Phase::pivot),
      ms(Phase::root_setup), milliseconds(microseconds));
}

std::string failure_record(const std::string& image, ErrorKind kind,
                           const std::map<std::string, std::string>& job) {
  return formatted("failed {} image={} kind={}", place_of(job), in_quotes(image), name_of(kind));
}

std::string pull_record(const std::string& image, std::string_view said,
                        const std::map<std::string, std::string>& job) {
  return formatted("pull {} image={} {}", place_of(job), in_quotes(image), printable(said));
}

std::string timing_line(const TaskMessage& ready, std::uint64_t microseconds,
                        std::uint64_t entrypoint) {
  const auto ms = [&](Phase phase) {
    return ready.times[static_cast<std::size_t>(phase)] / 1000.0;
  };
  char line[400];
  std::snprintf(line, sizeof line,
                "start %.2f ms: image %.2f, sources %.2f, %u layers (%u shared, %u by FUSE) %.2f, "
                "overlay %.2f, pivot %.2f, root file system %.2f",
                static_cast<double>(microseconds) / 1000.0, ms(Phase::import), ms(Phase::sources),
                ready.layers, ready.layers_shared, ready.layers_served, ms(Phase::layers),
                ms(Phase::overlay), ms(Phase::pivot), ms(Phase::root_setup));
  if (entrypoint == 0) return line;
  return line + (", entrypoint " + std::to_string(entrypoint / 1000));
}

// --- task security ---

namespace {

// Programs contain NUL, records must not. An instruction of the kernel's filter, struct
// sock_filter, has 8 bytes.
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
      .hint("use it in its first step");
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

// --- task entry ---

namespace {

constexpr std::size_t kMostTaskNotes = 16 << 20;

/// The sections of the notes. The file begins with the length of the notes, a std::uint64_t. The
/// notes are `key=value\0`: step, image, from, writable, site (KEY=VALUE), keep (NAME), value
/// (NAME=VALUE), and the records of HookEdits and TaskSecurity.
struct Parts {
  std::string notes;
  std::string behind;
};

Result<Parts> read_parts(int file) {
  const std::string bytes =
      SPC_TRY_DURING("read the leader's notes", read_file(file, kMostTaskNotes));
  const auto length = bytes.size() < sizeof(std::uint64_t) ? 0 : number_at<std::uint64_t>(bytes, 0);
  if (bytes.size() < sizeof length || length > bytes.size() - sizeof length) {
    return Error(ErrorKind::internal, "read the leader's notes: incomplete");
  }
  return Parts{bytes.substr(sizeof length, length), bytes.substr(sizeof length + length)};
}

}  // namespace

std::string TaskEntry::step_of(const std::map<std::string, std::string>& job_environment) {
  const auto value = [&](const char* name) {
    const auto found = job_environment.find(name);
    return found == job_environment.end() ? std::string() : found->second;
  };
  return value("SLURM_JOB_ID") + "." + value("SLURM_STEP_ID");
}

Result<void> TaskEntry::write(int file) const {
  std::string records;
  add_record(records, "step", step);
  add_record(records, "image", spec.image);
  add_record(records, "workdir", workdir);
  add_record(records, "from", std::to_string(static_cast<int>(spec.from)));
  add_record(records, "writable", spec.writable ? "1" : "0");
  for (const auto& [key, value] : site.records()) add_record(records, "site", key + "=" + value);
  records += wishes.serialize();
  records += edits.serialize();
  records += security.serialize();
  std::string bytes;
  append_number(bytes, std::uint64_t{records.size()});
  return write_all(file, bytes.append(records));
}

Result<TaskEntry> TaskEntry::read(int file) {
  const Parts parts = SPC_TRY(read_parts(file));
  TaskEntry entry;
  const Keys site = entry.site.record_keys();
  int from = 0;
  for (Records record(parts.notes); record.next();) {
    const std::string_view key = record.key();
    const std::string_view value = record.value();
    if (key == "step") entry.step = value;
    if (key == "image") entry.spec.image = value;
    if (key == "workdir") entry.workdir = value;
    if (key == "from") std::from_chars(value.data(), value.data() + value.size(), from);
    if (key == "writable") entry.spec.writable = value == "1";
    const auto equals = value.find('=');
    if (key == "site" && equals != std::string_view::npos)
      set_member(site, value.substr(0, equals), value.substr(equals + 1));
  }
  entry.spec.from = static_cast<ContainerSpec::From>(from);
  entry.wishes = EnvironmentWishes::parse(parts.notes);
  entry.edits = HookEdits::parse(parts.notes);
  entry.security = TaskSecurity::parse(parts.notes);
  return entry;
}

Result<std::string> read_behind_notes(int file) {
  auto parts = SPC_TRY(read_parts(file));
  return std::move(parts.behind);
}

}  // namespace spc
