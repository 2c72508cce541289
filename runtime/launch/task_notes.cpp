#include "launch/task_notes.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/file.hpp"

namespace spc {
namespace {

constexpr std::size_t kMost = 16 << 20;

/// The whole file, and how many bytes of it belong to the hooks.
struct Parts {
  std::string bytes;
  std::uint64_t of_hooks = 0;
};

Result<Parts> read_parts(int notes) {
  Parts parts;
  parts.bytes = SPC_TRY_DURING("read the notes of the first task", read_file(notes, kMost));
  if (parts.bytes.size() < sizeof parts.of_hooks) return Error(ErrorKind::internal, "the notes of the first task are incomplete");
  std::memcpy(&parts.of_hooks, parts.bytes.data(), sizeof parts.of_hooks);
  parts.bytes.erase(0, sizeof parts.of_hooks);
  if (parts.of_hooks > parts.bytes.size()) return Error(ErrorKind::internal, "the notes of the first task are incomplete");
  return parts;
}

}  // namespace

Result<UniqueFd> make_task_notes() {
  UniqueFd notes(::memfd_create("spank-container notes", MFD_CLOEXEC));
  if (!notes) return Error::from_errno(errno, "make the notes for the other tasks");
  return notes;
}

Result<void> write_hook_part(int notes, std::string_view records) {
  const std::uint64_t size = records.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
  return write_all(notes, bytes.append(records));
}

Result<std::string> read_hook_part(int notes) {
  auto parts = SPC_TRY(read_parts(notes));
  parts.bytes.resize(parts.of_hooks);
  return std::move(parts.bytes);
}

Result<std::string> read_entrypoint_part(int notes) {
  auto parts = SPC_TRY(read_parts(notes));
  return parts.bytes.substr(parts.of_hooks);
}

}  // namespace spc
