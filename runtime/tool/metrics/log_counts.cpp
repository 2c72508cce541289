#include "tool/metrics/log_counts.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <optional>
#include <vector>

#include "base/format.hpp"
#include "base/unique_fd.hpp"
#include "tool/metrics/metric_rows.hpp"

namespace spc::tool {
namespace {

constexpr std::string_view kDigits = "0123456789";

/// Takes fixed parts off the front of a record; the first that is not as expected makes all the rest fail.
class RecordReader {
 public:
  explicit RecordReader(std::string_view text) : rest_(text) {}

  void literal(std::string_view wanted) {
    good_ = good_ && rest_.starts_with(wanted);
    if (good_) rest_.remove_prefix(wanted.size());
  }
  /// Up to the next blank or the end; it has no blank, quote or equals sign.
  std::string_view word() {
    const std::string_view found = rest_.substr(0, rest_.find(' '));
    good_ = good_ && !found.empty() && found.size() <= 256 && found.find_first_of("\"=") == std::string_view::npos;
    if (good_) rest_.remove_prefix(found.size());
    return good_ ? found : std::string_view();
  }
  std::uint64_t number() {
    const std::string_view found = word();
    std::uint64_t value = 0;
    good_ = good_ && found.size() <= 12 && found.find_first_not_of(kDigits) == std::string_view::npos;
    if (good_) std::from_chars(found.data(), found.data() + found.size(), value);
    return value;
  }
  /// 12.3 as 123.
  std::uint64_t tenths() {
    const std::string_view found = word();
    const auto dot = found.find('.');
    good_ = good_ && found.size() <= 12 && dot != 0 && dot != std::string_view::npos && dot + 2 == found.size() &&
            found.find_first_not_of(kDigits) == dot && found.find_last_not_of(kDigits) == dot;
    std::uint64_t whole = 0;
    if (!good_) return 0;
    std::from_chars(found.data(), found.data() + dot, whole);
    return whole * 10 + static_cast<std::uint64_t>(found.back() - '0');
  }
  /// Texts of users are in quotes, and nothing behind them has any: whatever they are, they end at the last one.
  void quoted_text() {
    const auto last = rest_.rfind('"');
    good_ = good_ && rest_.starts_with('"') && last != std::string_view::npos && last > 0;
    if (good_) rest_.remove_prefix(last + 1);
  }
  void fail_unless(bool condition) { good_ = good_ && condition; }
  [[nodiscard]] bool good() const { return good_; }
  [[nodiscard]] bool complete() const { return good_ && rest_.empty(); }
  [[nodiscard]] std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
  bool good_ = true;
};

/// The content of brackets at the front.
std::optional<std::string_view> bracketed(std::string_view& text) {
  const auto end = text.find("] ");
  if (!text.starts_with('[') || end == std::string_view::npos || end > 64) return std::nullopt;
  const std::string_view inside = text.substr(1, end - 1);
  text.remove_prefix(end + 2);
  return inside.find('[') == std::string_view::npos ? std::optional(inside) : std::nullopt;
}

void read_place(RecordReader& reader, std::string_view job) {
  reader.literal("job=");
  const std::string_view told = reader.word();
  // Components of a heterogeneous job have an ID of their own and its number and offset in the brackets.
  reader.fail_unless(job.find('+') != std::string_view::npos || told == job.substr(0, job.find('.')));
  reader.literal(" step=");
  reader.word();
  reader.literal(" node=");
  reader.word();
}

}  // namespace

void LogCounts::line(std::string_view text) {
  const auto time = bracketed(text);
  if (!time || time->empty()) return;
  const auto step = bracketed(text);
  if (!step || step->find('.') == std::string_view::npos || kDigits.find(step->front()) == std::string_view::npos) return;
  for (const std::string_view prefix : {"spank-container: ", "pyxis: "}) {
    if (!text.starts_with(prefix)) continue;
    const std::string_view record = text.substr(prefix.size());
    if (!start(record, *step)) failure(record, *step);
    return;
  }
}

bool LogCounts::start(std::string_view record, std::string_view job) {
  RecordReader reader(record);
  reader.literal("start ");
  read_place(reader, job);
  reader.literal(" uid=");
  reader.number();
  reader.literal(" user=");
  reader.word();
  reader.literal(" image=");
  reader.quoted_text();
  reader.literal(" digest=");
  reader.word();
  reader.literal(" from=");
  reader.word();
  reader.literal(" layers=");
  reader.number();
  reader.literal(" shared=");
  reader.number();
  reader.literal(" fuse=");
  const auto served = reader.number();
  reader.literal(" pulled=");
  const auto pulled = reader.number();
  std::array<std::uint64_t, std::size(kStartPhases)> times{};
  for (std::size_t i = 0; i < times.size(); ++i) {
    reader.literal(formatted(" {}_ms=", kStartPhases[i]));
    times[i] = reader.tenths();
  }
  if (!reader.complete() || pulled > 1) return false;
  ++starts_;
  by_fuse_ += served > 0 ? 1 : 0;
  pulls_ += pulled;
  for (std::size_t i = 0; i < times.size(); ++i) tenths_[i] += times[i];
  return true;
}

bool LogCounts::failure(std::string_view record, std::string_view job) {
  RecordReader reader(record);
  reader.literal("failed ");
  read_place(reader, job);
  reader.literal(" image=");
  reader.quoted_text();
  reader.literal(" kind=");
  const std::string_view kind = reader.word();
  if (!reader.complete()) return false;
  for (std::size_t i = 0; i < failures_.size(); ++i) failures_[i] += kind == kFailureKinds[i] ? 1 : 0;
  return true;
}

std::string LogCounts::samples() const {
  std::string text = sample("spank_container_starts_total", starts_) + sample("spank_container_fuse_starts_total", by_fuse_) +
                     sample("spank_container_pulls_total", pulls_);
  for (std::size_t i = 0; i < failures_.size(); ++i) {
    text += sample("spank_container_failures_total", formatted("kind=\"{}\"", kFailureKinds[i]), std::to_string(failures_[i]));
  }
  for (std::size_t i = 0; i < tenths_.size(); ++i) {
    char fraction[8];
    std::snprintf(fraction, sizeof fraction, "%04u", static_cast<unsigned>(tenths_[i] % 10'000));
    text += sample("spank_container_start_seconds_total", formatted("phase=\"{}\"", kStartPhases[i]),
                   formatted("{}.{}", tenths_[i] / 10'000, fraction));
  }
  return text;
}

Result<LogCounts> count_log(const std::string& path) {
  constexpr std::uint64_t kMostOfLog = std::uint64_t{1} << 30;
  constexpr std::size_t kMostOfLine = 4096;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return Error::from_errno(errno, "open slurmd's log " + in_quotes(path));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return Error(ErrorKind::invalid, "open slurmd's log " + in_quotes(path) + ": not a regular file");
  }
  LogCounts counts;
  std::string line;
  bool too_long = false;
  std::vector<char> buffer(1 << 16);
  for (std::uint64_t seen = 0; seen < kMostOfLog;) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, "read slurmd's log " + in_quotes(path));
    if (got == 0) break;  // what has no end yet is counted next time
    seen += static_cast<std::uint64_t>(got);
    for (std::string_view part(buffer.data(), static_cast<std::size_t>(got)); !part.empty();) {
      const auto end = part.find('\n');
      too_long = too_long || line.size() + std::min(end, part.size()) > kMostOfLine;
      if (!too_long) line += part.substr(0, end);
      if (end == std::string_view::npos) break;
      if (!too_long) counts.line(line);
      line.clear();
      too_long = false;
      part.remove_prefix(end + 1);
    }
  }
  return counts;
}

}  // namespace spc::tool
