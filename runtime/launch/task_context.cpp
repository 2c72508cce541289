#include "launch/task_context.hpp"

#include "image/reference/file_url.hpp"
#include "image/reference/location.hpp"
#include "launch/request/save_path.hpp"

namespace spc {

std::optional<std::string> TaskContext::save_path() const {
  return asked.save.empty() || asked.explain ? std::nullopt : save_path_here(asked.save, job);
}

void say_import(const TaskContext& task, Event event) {
  const LaunchRequest& asked = task.asked;
  const auto location = ImageLocation::parse(asked.image);
  if (*asked.style == MessageStyle::own || !location) return;
  if (location->kind == ImageLocation::Kind::path) return;
  const auto tasks = task.job.find("SLURM_STEP_NUM_TASKS");
  const bool one_task = tasks != task.job.end() && tasks->second == "1";
  const bool alone = !asked.batch_script.empty() || one_task;
  if (event == Event::import_begins && !alone) return;
  task.log.write(LogLevel::notice, in_words_of_pyxis(event, without_secrets(asked.image)));
}

}  // namespace spc
