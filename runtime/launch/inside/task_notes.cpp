#include "launch/inside/task_notes.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/file.hpp"
#include "base/records.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostTaskNotes = 16 << 20;

/// The file begins with the length of the notes, a std::uint64_t. They are `key=value\0`: step, site (KEY=VALUE), and from the
/// first `hook` on what TaskEdits knows.
struct Parts {
  std::string notes;
  std::string behind;
};

Result<Parts> read_parts(int file) {
  const std::string bytes = SPC_TRY_DURING("read the leader's notes", read_file(file, kMostTaskNotes));
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

Result<UniqueFd> TaskNotes::make_file() {
  UniqueFd file(::memfd_create("spank-container notes", MFD_CLOEXEC));
  if (!file) return Error::from_errno(errno, "create the notes for the followers");
  return file;
}

Result<void> TaskNotes::write(int file) const {
  std::string records;
  add_record(records, "step", step);
  for (const auto& [key, value] : site.records()) add_record(records, "site", key + "=" + value);
  records += edits.serialize();
  const std::uint64_t length = records.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  return write_all(file, bytes.append(records));
}

Result<TaskNotes> TaskNotes::read(int file) {
  const Parts parts = SPC_TRY(read_parts(file));
  TaskNotes notes;
  for (Records record(parts.notes); record.next() && record.key() != "hook";) {
    if (record.key() == "step") notes.step = record.value();
    const auto equals = record.value().find('=');
    if (record.key() != "site" || equals == std::string_view::npos) continue;
    notes.site.set(record.value().substr(0, equals), record.value().substr(equals + 1));
  }
  notes.edits = TaskEdits::parse(parts.notes);
  return notes;
}

Result<std::string> read_behind_notes(int file) {
  auto parts = SPC_TRY(read_parts(file));
  return std::move(parts.behind);
}

}  // namespace spc
