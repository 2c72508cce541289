#include "launch/after/saver.hpp"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.hpp"
#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/records.hpp"
#include "base/socket.hpp"
#include "launch/request/save_path.hpp"
#include "protocol/save.hpp"
#include "task/entering/enter.hpp"

namespace spc {
namespace {

/// In the child, which still is us: who it is, is what the kernel says of the sender.
bool introduce_itself(int slurmstepd) {
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  if (!give_up_privilege()) return false;
  SaveMessage message;
  message.kind = SaveMessageKind::started;
  return send_struct(slurmstepd, message).has_value();
}

/// The saver has ended, and that is about to be told: takes back its word that it is here, so that
/// slurmstepd does not tell it once more. False if there is none to take: then whoever has it
/// tells.
bool take_back(int step) {
  SaveMessage message;
  return ::recv(step, &message, sizeof message, MSG_DONTWAIT) == sizeof message;
}

/// The step's record of an image that is a mere file system says nothing; what it has in files is
/// known by now.
Result<UniqueFd> settings_file(const ImageSettings& image) {
  std::string records;
  add_record(records, "settings", "files");
  for (const std::string& variable : image.environment) add_record(records, "env", variable);
  if (!image.workdir.empty()) add_record(records, "workdir", image.workdir);
  return sealed_memory_file("spank-container settings", records);
}

}  // namespace

Result<Saver> Saver::start(const StepChannel& step, const std::string& path,
                           const std::string& name, MessageStyle style,
                           const std::map<std::string, std::string>& job) {
  const std::string program = own_program("save");
  if (::access(program.c_str(), X_OK) != 0) {
    return Error::from_errno(errno, "start " + in_quotes(program))
        .hint("install spank-container on this node");
  }
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const auto cpus = job.find("SLURM_CPUS_ON_NODE");
  const std::string cpus_text = cpus == job.end() ? "0" : cpus->second;
  const std::string shown_name =
      (style == MessageStyle::pyxis ? "pyxis_" : "") + (name.empty() ? step_name(job) : name);
  std::vector<std::string> environment;
  if (const auto latest = job.find("SOURCE_DATE_EPOCH"); latest != job.end())
    environment = {latest->first + "=" + latest->second};
  // A child of slurmstepd, not of the task, which could wait for it: and Slurm signals only its own
  // children when it begins to cancel a step, before it kills.
  const int slurmstepd = step.save.get();
  auto started =
      Child::start({.path = program,
                    .arguments = {"save", path, shown_name, cpus_text, message_prefix(style)},
                    .environment = std::move(environment),
                    .descriptors = {{slurmstepd, kSaveSocket}, {theirs.get(), kSaveTaskSocket}},
                    .death_signal = 0,
                    .group = Program::Group::session,
                    .parent = ChildOf::our_parent,
                    .prepare = [slurmstepd] { return introduce_itself(slurmstepd); }});
  if (!started) {
    take_back(step.step.get());  // it may have come as far as that
    return std::move(started).error().during("start the saver");
  }
  theirs.reset();

  SaveMessage answer;
  if (!receive_struct(ours.get(), answer)) {
    take_back(step.step.get());
    return Error(ErrorKind::unavailable, "the saver could not be started");
  }
  if (answer.kind != SaveMessageKind::opened) return answer.error.error();
  Saver saver;
  saver.line_ = std::move(ours);
  saver.step_ = step.step.get();
  return saver;
}

/// If the saver has ended: an Error only if nobody else tells it.
Result<void> Saver::give(int root, int record, const ImageSettings& settings,
                         const std::string& image) {
  const UniqueFd line = std::move(line_);
  UniqueFd in_files;
  if (settings.in_files) in_files = SPC_TRY(settings_file(settings));
  SaveMessage message;
  message.kind = SaveMessageKind::tree;
  message.text.set(image);
  const int passed[] = {root, record, in_files.get()};
  SaveMessage known{.kind = SaveMessageKind::known};
  const bool is_given =
      send_struct(line.get(), message, std::span(passed, in_files ? 3 : 2)).has_value();
  const bool is_known = is_given && (image.empty() || receive_struct(line.get(), known));
  if (known.kind == SaveMessageKind::failed) return known.error.error();
  if (is_known || !take_back(step_)) return {};
  return Error(ErrorKind::unavailable, "the saver exited unexpectedly");
}

void tell_saver_of_task(const StepChannel& step) {
  SaveMessage message;
  message.kind = SaveMessageKind::entered;
  [[maybe_unused]] const auto sent = send_struct(step.step.get(), message, {}, WhenFull::fail);
}

}  // namespace spc
