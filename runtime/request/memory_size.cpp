#include "request/memory_size.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"

namespace spc {

namespace {

constexpr std::string_view kGrammar = "bytes with suffix K, M, G or T, or N% of the job's memory";
/// Bytes: above the memory of any machine, and sums of it do not overflow.
constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
constexpr std::uint64_t kPage = 4096;

/// Parses all of `text` or returns false. Larger numbers become `kMost`, which exceeds every limit.
bool read_size(std::string_view text, std::uint64_t& number) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem == std::errc::result_out_of_range) number = kMost;
  return problem != std::errc::invalid_argument && end == text.data() + text.size();
}

std::string contents(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  constexpr std::size_t kSane = 1 << 16;
  const auto text = file ? read_file(file.get(), kSane) : Result<std::string>(std::string());
  return text ? *text : std::string();
}

/// Returns the smallest limit of this cgroup and its ancestors: slurmd sets limits on job, step and
/// task.
std::uint64_t least_limit(const std::string& mounted_at, std::string group, const char* file) {
  std::uint64_t least = kMost;
  for (;;) {
    std::string text = contents(mounted_at + group + "/" + file);
    if (!text.empty() && text.back() == '\n') text.pop_back();
    std::uint64_t limit = kMost;  // "max" is not a number, and version 1 writes a very large one
    if (read_size(text, limit) && limit != 0) least = std::min(least, limit);
    const auto slash = group.rfind('/');
    if (slash == std::string::npos) return least;
    group.resize(slash);
  }
}

std::uint64_t limit_of_cgroup() {
  std::uint64_t least = kMost;
  const std::string groups = contents("/proc/self/cgroup");
  for (std::string_view rest = groups; !rest.empty();) {
    // "4:memory:/slurm/job_7" or "0::/slurm/job_7"
    const std::string_view line = next_part(rest, '\n');
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string group(line.substr(second + 1));
    if (controllers.empty())
      least = std::min(least, least_limit("/sys/fs/cgroup", group, "memory.max"));
    if (controllers == "memory")
      least = std::min(least, least_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
  }
  return least;
}

std::uint64_t number_of(const std::map<std::string, std::string>& environment, const char* name) {
  const auto found = environment.find(name);
  std::uint64_t number = 0;
  return found != environment.end() && read_size(found->second, number) ? number : 0;
}

/// Returns the memory requested from Slurm on this node; 0 if unset, or if all of it was requested.
std::uint64_t asked_of_slurm(const std::map<std::string, std::string>& environment) {
  constexpr std::uint64_t kMegabyte = 1 << 20;
  const std::uint64_t a_node = number_of(environment, "SLURM_MEM_PER_NODE");
  if (a_node != 0) return std::min(a_node, kMost / kMegabyte) * kMegabyte;
  const std::uint64_t a_cpu = number_of(environment, "SLURM_MEM_PER_CPU");
  const std::uint64_t cpus =
      std::min(number_of(environment, "SLURM_CPUS_ON_NODE"), std::uint64_t{1} << 16);
  return std::min(a_cpu, kMost / kMegabyte / (std::uint64_t{1} << 16)) * cpus * kMegabyte;
}

}  // namespace

Result<MemorySize> MemorySize::parse(std::string_view text) {
  const auto refuse = [&](const char* why) {
    return Error(ErrorKind::invalid, in_quotes(text) + why).hint(kGrammar);
  };
  MemorySize size;
  const auto digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string_view unit = text.substr(digits);
  std::uint64_t number = 0;
  if (digits == 0 || !read_size(text.substr(0, digits), number) || unit.size() > 1)
    return refuse(" is not a size");
  if (number == 0) return refuse(": too small");
  if (unit == "%") {
    if (number > 100) return refuse(" is more than 100%");
    size.percent = static_cast<std::uint32_t>(number);
    return size;
  }
  static constexpr std::string_view kUnits = "KMGTkmgt";
  const auto which = unit.empty() ? 0 : kUnits.find(unit[0]) % 4 + 1;
  if (!unit.empty() && kUnits.find(unit[0]) == std::string_view::npos)
    return refuse(" is not a size");
  if (number >= kMost >> (10 * which)) return refuse(" is too large");
  size.bytes = number << (10 * which);
  return size;
}

std::uint64_t memory_of_job(const std::map<std::string, std::string>& job_environment) {
  const std::uint64_t machine = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                                static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (const auto limit = limit_of_cgroup(); limit < machine) return limit;
  const auto asked = asked_of_slurm(job_environment);
  return asked != 0 ? std::min(asked, machine) : machine;
}

Result<std::uint64_t> bytes_of(const MemorySize& size, std::uint64_t memory,
                               const std::string& most) {
  const auto in_bytes = [&](const MemorySize& some) {
    return std::max(kPage, some.percent != 0 ? memory / 100 * some.percent : some.bytes);
  };
  const std::uint64_t bytes = in_bytes(size);
  if (most.empty()) return bytes;
  const auto limit = MemorySize::parse(most);
  if (limit && bytes > in_bytes(*limit)) {
    return Error(ErrorKind::refused,
                 formatted("{} bytes exceed the {} allowed by this site", bytes, most))
        .hint("request less");
  }
  return bytes;
}

}  // namespace spc
