#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.hpp"
#include "launch/task/task_notes.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

/// Creates the file as the agent does.
UniqueFd notes_file() { return UniqueFd(::memfd_create("notes", MFD_CLOEXEC)); }

TaskEntry some_notes() {
  TaskEntry notes;
  notes.spec.image = "a:1";
  notes.spec.writable = false;
  notes.step = "12.3";
  notes.site.set("mounts", "/a:/b");
  notes.site.set("env", "A=B=C");
  Edits edits;
  edits.environment.unset = {"GONE"};
  edits.environment.set = {{"SET", "a=b\nc"}, {"EMPTY", ""}};
  edits.environment.prepend = {{"LD_LIBRARY_PATH", "/x:/y"}};
  edits.environment.defaults = {{"RANK", "0"}};
  edits.limits = {{"memlock", UINT64_MAX}, {"nofile", 4096}};
  edits.notes = {"why = not"};
  notes.wishes = {.keep = {"A*"}, .values = {{"B", "c=d\ne"}, {"EMPTY", ""}}};
  notes.edits.off = {"10-aptfix"};
  notes.edits.of_hooks = {{"50-nccl", edits}, {"98-nvidia", {}}};
  return notes;
}

}  // namespace

TEST_CASE("task_notes_survive_serialization") {
  const auto written = some_notes();
  const auto file = notes_file();
  REQUIRE(written.write(file.get()));
  const auto read = *TaskEntry::read(file.get());
  REQUIRE(read.step == "12.3");
  REQUIRE(read.spec.image == "a:1");
  REQUIRE_FALSE(read.spec.writable);
  REQUIRE(read.site.records() == written.site.records());
  REQUIRE(read.wishes.keep == written.wishes.keep);
  REQUIRE(read.wishes.values == written.wishes.values);
  REQUIRE(read.edits.off == written.edits.off);
  REQUIRE(read.edits.of_hooks == written.edits.of_hooks);
  REQUIRE(read_behind_notes(file.get())->empty());
}

TEST_CASE("task_notes_end_before_appended_data") {
  const auto file = notes_file();
  REQUIRE(some_notes().write(file.get()));
  REQUIRE(write_all(file.get(), std::string_view("end=\0", 5)));
  REQUIRE(*read_behind_notes(file.get()) == std::string("end=\0", 5));
  REQUIRE(TaskEntry::read(file.get())->edits.of_hooks.size() == 2);
}

TEST_CASE("task_notes_truncated_are_refused") {
  const auto whole = notes_file();
  REQUIRE(some_notes().write(whole.get()));
  const std::string bytes = *read_file(whole.get(), 1 << 20);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{7}, std::size_t{8}, bytes.size() - 1}) {
    const auto cut = notes_file();
    REQUIRE(write_all(cut.get(), std::string_view(bytes).substr(0, size)));
    REQUIRE_FALSE(TaskEntry::read(cut.get()));
  }
}

TEST_CASE("task_notes_step_is_job_and_step_id") {
  REQUIRE(TaskEntry::step_of({{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "1"}}) == "7.1");
  REQUIRE(TaskEntry::step_of({}) == ".");
}
