#include "processes.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iterator>

#include "base/file.hpp"
#include "base/unique_fd.hpp"
#include "job_containers.hpp"
#include "tool/containers/running.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::enroot {

using namespace tool;

namespace {

using Row = std::array<std::string, 9>;

std::string file_of(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  auto text = file ? read_file(file.get(), 1 << 20) : Result<std::string>(std::string());
  return text ? *std::move(text) : std::string();
}

/// The number in `mnt:[4026531840]`.
std::string name_space(const std::string& process, const char* which) {
  std::array<char, 64> link{};
  const ssize_t size = ::readlink((process + "ns/" + which).c_str(), link.data(), link.size() - 1);
  const std::string text(link.data(), size < 0 ? 0U : static_cast<std::size_t>(size));
  const auto begin = text.find('[');
  return begin == std::string::npos ? "-" : text.substr(begin + 1, text.size() - begin - 2);
}

/// As ps has it: [[days-]hours:]minutes:seconds.
std::string elapsed(long seconds) {
  std::array<char, 64> text{};
  const long days = seconds / 86400;
  const long hours = seconds / 3600 % 24;
  const long minutes = seconds / 60 % 60;
  if (days > 0) {
    std::snprintf(text.data(), text.size(), "%ld-%02ld:%02ld:%02ld", days, hours, minutes,
                  seconds % 60);
  } else if (hours > 0) {
    std::snprintf(text.data(), text.size(), "%02ld:%02ld:%02ld", hours, minutes, seconds % 60);
  } else {
    std::snprintf(text.data(), text.size(), "%02ld:%02ld", minutes, seconds % 60);
  }
  return text.data();
}

/// The time of day, or the date of what was started longer ago.
std::string started(std::time_t since, long seconds) {
  std::array<char, 64> text{};
  std::tm local{};
  ::localtime_r(&since, &local);
  return {text.data(),
          std::strftime(text.data(), text.size(), seconds < 86400 ? "%H:%M:%S" : "%b %d", &local)};
}

std::vector<RunningContainer> running_of_jobs() {
  std::vector<RunningContainer> running;
  for (const JobContainer& one : job_containers()) {
    for (const pid_t task : one.tasks)
      running.push_back({.name = one.name, .image = {}, .pid = task});
  }
  return running;
}

Row row_of(const RunningContainer& container) {
  const std::string process = "/proc/" + std::to_string(container.pid) + "/";
  std::string comm = file_of(process + "comm");
  while (!comm.empty() && comm.back() == '\n') comm.pop_back();
  std::string command = file_of(process + "cmdline");
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::replace(command.begin(), command.end(), '\0', ' ');
  // Behind the name, which may have blanks and parentheses in it: state is field 3, the start in
  // ticks field 22.
  const std::string all = file_of(process + "stat");
  const auto name_end = all.rfind(')');
  std::string state = "-";
  unsigned long long ticks = 0;
  if (name_end != std::string::npos && name_end + 2 < all.size()) {
    state = all.substr(name_end + 2, 1);
    std::size_t at = name_end + 2;
    for (int field = 3; field < 22 && at != std::string::npos; ++field) at = all.find(' ', at + 1);
    if (at != std::string::npos) ticks = std::strtoull(all.c_str() + at, nullptr, 10);
  }
  std::timespec boot{};
  ::clock_gettime(CLOCK_BOOTTIME, &boot);
  const long seconds = std::max(
      0L,
      boot.tv_sec - static_cast<long>(ticks / static_cast<unsigned long>(::sysconf(_SC_CLK_TCK))));
  return {container.name,
          std::to_string(container.pid),
          comm,
          state,
          started(std::time(nullptr) - seconds, seconds),
          elapsed(seconds),
          name_space(process, "mnt"),
          name_space(process, "user"),
          command};
}

}  // namespace

Result<std::string> table_of(const std::vector<std::string>& names) {
  std::vector<Row> rows{
      {"NAME", "PID", "COMM", "STATE", "STARTED", "TIME", "MNTNS", "USERNS", "COMMAND"}};
  const auto places = SPC_TRY(Places::find());
  auto running = SPC_TRY(running_containers(places.running));
  std::ranges::move(running_of_jobs(), std::back_inserter(running));
  for (const auto& name : names) {
    const bool runs = std::any_of(running.begin(), running.end(),
                                  [&](const auto& one) { return one.name == name; });
    if (!runs) running.push_back({.name = name, .image = {}});
  }
  std::stable_sort(running.begin(), running.end(),
                   [](const auto& a, const auto& b) { return a.name < b.name; });
  for (const auto& container : running) {
    rows.push_back(container.pid > 0 ? row_of(container) : Row{container.name});
  }
  std::array<std::size_t, 9> widths{};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string table;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    line.resize(line.find_last_not_of(' ') + 1);
    table += printable(line) + "\n";
  }
  return table;
}

}  // namespace spc::enroot
