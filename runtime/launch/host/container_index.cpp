#include "launch/host/container_index.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/directory.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "base/records.hpp"

namespace spc {
namespace {

std::string value_of(const std::map<std::string, std::string>& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

void make_directories(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1))
    ::mkdir(path.substr(0, slash).c_str(), 0700);
  ::mkdir(path.c_str(), 0700);
}

}  // namespace

std::string directory_of_container_notes(const std::map<std::string, std::string>& environment) {
  const std::string data = value_of(environment, "XDG_DATA_HOME");
  const std::string home = value_of(environment, "HOME");
  if (data.starts_with('/')) return data + "/spank-container/named";
  return home.starts_with('/') && home != "/" ? home + "/.local/share/spank-container/named" : "";
}

std::vector<NotedContainer> noted_containers(const std::string& directory) {
  constexpr std::size_t kMostNotes = 64 << 10;
  std::vector<NotedContainer> containers;
  for (DirectoryReader entries(directory); entries.next();) {
    const UniqueFd file(::openat(entries.descriptor(), entries.c_name(),
                                 O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status {};
    if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    const auto text = read_file(file.get(), kMostNotes);
    if (!text) continue;
    NotedContainer one{.notes = ContainerNotes::parse(*text),
                       .node = {},
                       .job = {},
                       .made_at = status.st_mtim.tv_sec,
                       .path = {}};
    for (Records record(*text); record.next();) {
      if (record.key() == "node") one.node = record.value();
      if (record.key() == "job") one.job = record.value();
    }
    one.path = directory + "/" + entries.c_name();
    if (!one.notes.name.empty() && !one.node.empty()) containers.push_back(std::move(one));
  }
  return containers;
}

ContainerNote ContainerNote::open(const ContainerName& name, bool of_job,
                                  const std::map<std::string, std::string>& environment) {
  ContainerNote note;
  const std::string node = value_of(environment, "SLURMD_NODENAME");
  const std::string job = of_job ? value_of(environment, "SLURM_JOB_ID") : "";
  const std::string directory = directory_of_container_notes(environment);
  if (directory.empty() || node.empty() || node.find('/') != std::string::npos) return note;
  make_directories(directory);
  note.directory_.reset(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  note.file_ =
      formatted("{}.{}{}{}", node, job, job.empty() ? "" : ".", name.key().hex().substr(0, 32));
  add_record(note.place_, "node", node);
  if (!job.empty()) add_record(note.place_, "job", job);
  return note;
}

void ContainerNote::write(const ContainerNotes& notes, bool is_new) const {
  if (!directory_ || notes.name.empty()) return;
  const int how =
      O_WRONLY | O_CREAT | (is_new ? O_TRUNC : O_EXCL) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const UniqueFd file(::openat(directory_.get(), file_.c_str(), how, 0600));
  if (file) [[maybe_unused]]
    const auto written = write_all(file.get(), notes.serialize() + place_);
}

void ContainerNote::remove() const {
  if (directory_) ::unlinkat(directory_.get(), file_.c_str(), 0);
}

}  // namespace spc
