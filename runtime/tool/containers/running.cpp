#include "tool/containers/running.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/unique_fd.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {
namespace {

/// Returns the entries' prefix for this machine. Machines may share a home directory, but PIDs are
/// valid on one machine only.
std::string prefix_of_this_machine() {
  utsname machine{};
  ::uname(&machine);
  return std::string(machine.nodename) + ".";
}

/// Returns four lines: name, image, process, supervisor.
std::string serialize(const RunningContainer& container) {
  return container.name + "\n" + container.image + "\n" + std::to_string(container.pid) + "\n" +
         std::to_string(container.supervisor) + "\n";
}

RunningContainer parse(const std::string& text) {
  std::vector<std::string> lines(4);
  std::size_t at = 0;
  for (auto& line : lines) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    line = text.substr(at, end - at);
    at = std::min(end + 1, text.size());
  }
  return {.name = lines[0],
          .image = lines[1],
          .pid = std::atoi(lines[2].c_str()),
          .supervisor = std::atoi(lines[3].c_str())};
}

}  // namespace

Result<RunningEntry> RunningEntry::add(const std::string& directory,
                                       const RunningContainer& container) {
  SPC_TRY(make_directories(directory));
  const std::string path =
      directory + "/" + prefix_of_this_machine() + std::to_string(container.pid);
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0)
    return Error::from_errno(errno, "note the container in " + in_quotes(path));
  SPC_TRY(write_all(file.get(), serialize(container)));
  return RunningEntry(path, std::move(file));
}

RunningEntry::~RunningEntry() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

Result<std::vector<RunningContainer>> running_containers(const std::string& directory) {
  std::vector<RunningContainer> containers;
  const std::string prefix = prefix_of_this_machine();
  DirectoryReader entries(directory);
  while (entries.next()) {
    if (!entries.name().starts_with(prefix)) continue;
    const std::string path = directory + "/" + entries.c_name();
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!file) continue;
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      ::unlink(path.c_str());  // its owner was killed
      continue;
    }
    if (const auto text = read_file(file.get(), 64 << 10)) containers.push_back(parse(*text));
  }
  const int failed = entries.error();
  if (failed != 0 && failed != ENOENT)
    return Error::from_errno(failed, "read " + in_quotes(directory));
  return containers;
}

Result<RunningContainer> find_container(const std::string& directory, const std::string& text) {
  const auto all = SPC_TRY(running_containers(directory));
  std::string names;
  for (const RunningContainer& one : all) {
    if (one.name == text || std::to_string(one.pid) == text ||
        std::to_string(one.supervisor) == text)
      return one;
    names += formatted("{}{} ({})", names.empty() ? "" : ", ", printable(one.name), one.pid);
  }
  return Error(ErrorKind::not_found, "no running container " + in_quotes(text))
      .hint(names.empty() ? "start one with scontainer run" : "running containers: " + names);
}

}  // namespace spc::tool
