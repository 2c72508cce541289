#include "launch/inside/task_notes.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>

#include "base/file.hpp"
#include "base/records.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostTaskNotes = 16 << 20;

/// The file begins with the length of the notes, a std::uint64_t. They are `key=value\0`: step,
/// image, from, writable, site (KEY=VALUE), keep (NAME), value (NAME=VALUE), and what TaskEdits and
/// TaskSecurity know.
struct Parts {
  std::string notes;
  std::string behind;
};

Result<Parts> read_parts(int file) {
  const std::string bytes =
      SPC_TRY_DURING("read the leader's notes", read_file(file, kMostTaskNotes));
  std::uint64_t length = 0;
  if (bytes.size() >= sizeof length) std::memcpy(&length, bytes.data(), sizeof length);
  if (bytes.size() < sizeof length || length > bytes.size() - sizeof length) {
    return Error(ErrorKind::internal, "read the leader's notes: incomplete");
  }
  return Parts{bytes.substr(sizeof length, length), bytes.substr(sizeof length + length)};
}

}  // namespace

std::string TaskNotes::step_of(const std::map<std::string, std::string>& job_environment) {
  const auto value = [&](const char* name) {
    const auto found = job_environment.find(name);
    return found == job_environment.end() ? std::string() : found->second;
  };
  return value("SLURM_JOB_ID") + "." + value("SLURM_STEP_ID");
}

Result<void> TaskNotes::write(int file) const {
  std::string records;
  add_record(records, "step", step);
  add_record(records, "image", image);
  add_record(records, "from", std::to_string(static_cast<int>(from)));
  add_record(records, "writable", writable ? "1" : "0");
  for (const auto& [key, value] : site.records()) add_record(records, "site", key + "=" + value);
  for (const auto& name : wishes.keep) add_record(records, "keep", name);
  for (const auto& [name, value] : wishes.values) add_record(records, "value", name + "=" + value);
  records += edits.serialize();
  records += security.serialize();
  const std::uint64_t length = records.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  return write_all(file, bytes.append(records));
}

Result<TaskNotes> TaskNotes::read(int file) {
  const Parts parts = SPC_TRY(read_parts(file));
  TaskNotes notes;
  int from = 0;
  for (Records record(parts.notes); record.next();) {
    const std::string_view key = record.key();
    const std::string_view value = record.value();
    if (key == "step") notes.step = value;
    if (key == "image") notes.image = value;
    if (key == "from") std::from_chars(value.data(), value.data() + value.size(), from);
    if (key == "writable") notes.writable = value == "1";
    if (key == "keep") notes.wishes.keep.emplace_back(value);
    const auto equals = value.find('=');
    if (key == "value" && equals != std::string_view::npos) {
      notes.wishes.values[std::string(value.substr(0, equals))] = value.substr(equals + 1);
    }
    if (key == "site" && equals != std::string_view::npos)
      notes.site.set(value.substr(0, equals), value.substr(equals + 1));
  }
  notes.from = static_cast<ContainerSpec::From>(from);
  notes.edits = TaskEdits::parse(parts.notes);
  notes.security = TaskSecurity::parse(parts.notes);
  return notes;
}

Result<std::string> read_behind_notes(int file) {
  auto parts = SPC_TRY(read_parts(file));
  return std::move(parts.behind);
}

}  // namespace spc
