#include "tool/metrics/log_records.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <vector>

#include "base/format.hpp"
#include "base/unique_fd.hpp"

namespace spc::tool {
namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr std::size_t kMostDigitsOfBytes = 16;

/// Takes fixed parts off the front of a record; the first that is not as expected makes all the
/// rest fail.
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
    good_ = good_ && !found.empty() && found.size() <= 256 &&
            found.find_first_of("\"=") == std::string_view::npos;
    if (good_) rest_.remove_prefix(found.size());
    return good_ ? found : std::string_view();
  }
  std::uint64_t number(std::size_t digits = 12) {
    const std::string_view found = word();
    std::uint64_t value = 0;
    good_ = good_ && found.size() <= digits &&
            found.find_first_not_of(kDigits) == std::string_view::npos;
    if (good_) std::from_chars(found.data(), found.data() + found.size(), value);
    return value;
  }
  /// 12.3 as 123.
  std::uint64_t tenths() {
    const std::string_view found = word();
    const auto dot = found.find('.');
    good_ = good_ && found.size() <= 12 && dot != 0 && dot != std::string_view::npos &&
            dot + 2 == found.size() && found.find_first_not_of(kDigits) == dot &&
            found.find_last_not_of(kDigits) == dot;
    std::uint64_t whole = 0;
    if (!good_) return 0;
    std::from_chars(found.data(), found.data() + dot, whole);
    return whole * 10 + static_cast<std::uint64_t>(found.back() - '0');
  }
  /// Texts of users are in quotes, and nothing behind them has any: whatever they are, they end at
  /// the last one.
  std::string_view quoted_text() {
    const auto last = rest_.rfind('"');
    good_ = good_ && rest_.starts_with('"') && last != std::string_view::npos && last > 0;
    const std::string_view found = good_ ? rest_.substr(1, last - 1) : std::string_view();
    if (good_) rest_.remove_prefix(last + 1);
    return found;
  }
  void fail_unless(bool condition) { good_ = good_ && condition; }
  [[nodiscard]] bool complete() const { return good_ && rest_.empty(); }

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

/// `written_by`: the step whose slurmstepd wrote the line, JOB.STEP.
void read_place(RecordReader& reader, std::string_view written_by, LogRecord& record) {
  reader.literal("job=");
  record.job = reader.word();
  // Components of a heterogeneous job have an ID of their own and its number and offset in the
  // brackets.
  reader.fail_unless(written_by.find('+') != std::string_view::npos ||
                     record.job == written_by.substr(0, written_by.find('.')));
  reader.literal(" step=");
  record.step = reader.word();
  reader.literal(" node=");
  record.node = reader.word();
}

bool read_start(std::string_view text, std::string_view written_by, LogRecord& record) {
  RecordReader reader(text);
  reader.literal("start ");
  read_place(reader, written_by, record);
  reader.literal(" uid=");
  record.uid = reader.number();
  reader.literal(" user=");
  record.user = reader.word();
  reader.literal(" image=");
  record.image = reader.quoted_text();
  reader.literal(" digest=");
  record.digest = reader.word();
  reader.literal(" from=");
  record.from = reader.word();
  reader.literal(" layers=");
  record.layers = reader.number();
  reader.literal(" shared=");
  record.shared = reader.number();
  reader.literal(" fuse=");
  record.by_fuse = reader.number();
  reader.literal(" pulled=");
  const auto pulled = reader.number();
  record.pulled = pulled == 1;
  for (std::size_t i = 0; i < record.tenths.size(); ++i) {
    reader.literal(formatted(" {}_ms=", kStartPhases[i]));
    record.tenths[i] = reader.tenths();
  }
  return reader.complete() && pulled <= 1;
}

bool read_pull(std::string_view text, std::string_view written_by, LogRecord& record) {
  RecordReader reader(text);
  record.event = LogRecord::Event::pull;
  reader.literal("pull ");
  read_place(reader, written_by, record);
  reader.literal(" image=");
  record.image = reader.quoted_text();
  reader.literal(" digest=");
  record.digest = reader.word();
  for (std::size_t i = 0; i < kPullNumbers.size(); ++i) {
    reader.literal(formatted(" {}=", kPullNumbers[i]));
    record.pull[i] = reader.number(kMostDigitsOfBytes);
  }
  reader.literal(" pull_ms=");
  record.tenths[0] = reader.tenths();
  return reader.complete();
}

bool read_failure(std::string_view text, std::string_view written_by, LogRecord& record) {
  RecordReader reader(text);
  record.event = LogRecord::Event::failed;
  reader.literal("failed ");
  read_place(reader, written_by, record);
  reader.literal(" image=");
  record.image = reader.quoted_text();
  reader.literal(" kind=");
  record.kind = reader.word();
  return reader.complete();
}

}  // namespace

std::optional<LogRecord> read_log_record(std::string_view line) {
  const auto time = bracketed(line);
  if (!time || time->empty()) return std::nullopt;
  const auto step = bracketed(line);
  if (!step || step->find('.') == std::string_view::npos ||
      kDigits.find(step->front()) == std::string_view::npos)
    return std::nullopt;
  for (const std::string_view prefix : {"spank-container: ", "pyxis: "}) {
    if (!line.starts_with(prefix)) continue;
    const std::string_view text = line.substr(prefix.size());
    LogRecord start;
    start.time = *time;
    if (read_start(text, *step, start)) return start;
    LogRecord failure;
    failure.time = *time;
    if (read_failure(text, *step, failure)) return failure;
    LogRecord pull;
    pull.time = *time;
    if (read_pull(text, *step, pull)) return pull;
  }
  return std::nullopt;
}

Result<void> for_each_log_line(const std::string& path,
                               const std::function<void(std::string_view)>& use) {
  constexpr std::uint64_t kMostOfLog = std::uint64_t{1} << 30;
  constexpr std::size_t kMostOfLine = 4096;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return Error::from_errno(errno, "open slurmd's log " + in_quotes(path));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return Error(ErrorKind::invalid,
                 "open slurmd's log " + in_quotes(path) + ": not a regular file");
  }
  std::string line;
  bool too_long = false;
  std::vector<char> buffer(1 << 16);
  for (std::uint64_t seen = 0; seen < kMostOfLog;) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, "read slurmd's log " + in_quotes(path));
    if (got == 0) break;  // what has no end yet is told next time
    seen += static_cast<std::uint64_t>(got);
    for (std::string_view part(buffer.data(), static_cast<std::size_t>(got)); !part.empty();) {
      const auto end = part.find('\n');
      too_long = too_long || line.size() + std::min(end, part.size()) > kMostOfLine;
      if (!too_long) line += part.substr(0, end);
      if (end == std::string_view::npos) break;
      if (!too_long) use(line);
      line.clear();
      too_long = false;
      part.remove_prefix(end + 1);
    }
  }
  return {};
}

}  // namespace spc::tool
