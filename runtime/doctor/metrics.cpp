#include "doctor/node.hpp"

#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "base/format.hpp"
#include "base/json.hpp"
#include "base/process/supervised.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"

namespace spc {

// --- metric rows ---

std::string sample(std::string_view name, std::string_view labels, std::string_view value) {
  return labels.empty() ? formatted("{} {}\n", name, value)
                        : formatted("{}{{{}}} {}\n", name, labels, value);
}

std::string sample(std::string_view name, std::uint64_t value) {
  return sample(name, "", std::to_string(value));
}

namespace {

/// Returns whether the sample `name` belongs to the metric.
bool is_of(const MetricRow& row, std::string_view name) {
  if (std::string_view(row.type) == "histogram") {
    for (const std::string_view ending : {"_bucket", "_sum", "_count"}) {
      if (!name.ends_with(ending)) continue;
      name.remove_suffix(ending.size());
      return name == row.name;
    }
  }
  return name == row.name;
}

}  // namespace

std::string metrics_text(const std::string& samples) {
  std::string text;
  const auto lines = split(samples, '\n');
  for (const MetricRow& row : kMetricRows) {
    std::string own;
    for (const std::string_view line : lines) {
      if (is_of(row, line.substr(0, line.find_first_of("{ ")))) own += std::string(line) + "\n";
    }
    if (!own.empty())
      text +=
          formatted("# HELP {} {}\n# TYPE {} {}\n", row.name, row.help, row.name, row.type) + own;
  }
  return text;
}

// --- histograms ---

namespace {

/// The upper limits of the buckets but the last, as numbers and as labels.
struct Buckets {
  std::array<std::uint64_t, kBuckets - 1> most;
  std::array<const char*, kBuckets - 1> labels;
};

/// Tenths of milliseconds. A warm start takes 30 ms, its shortest phases less than 1 ms, the pull
/// of a large image minutes.
constexpr Buckets kSeconds = {{5, 10, 20, 50, 100, 200, 500, 1'000, 2'000, 5'000, 10'000, 20'000,
                               50'000, 100'000, 300'000, 1'200'000, 6'000'000},
                              {"0.0005", "0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1",
                               "0.2", "0.5", "1", "2", "5", "10", "30", "120", "600"}};

constexpr std::uint64_t kMega = 1'000'000;
constexpr Buckets kSizes = {
    {kMega, 2 * kMega, 5 * kMega, 10 * kMega, 20 * kMega, 50 * kMega, 100 * kMega, 200 * kMega,
     500 * kMega, 1'000 * kMega, 2'000 * kMega, 5'000 * kMega, 10'000 * kMega, 20'000 * kMega,
     50'000 * kMega, 100'000 * kMega, 200'000 * kMega},
    {"1e+06", "2e+06", "5e+06", "1e+07", "2e+07", "5e+07", "1e+08", "2e+08", "5e+08", "1e+09",
     "2e+09", "5e+09", "1e+10", "2e+10", "5e+10", "1e+11", "2e+11"}};

void add_to(Histogram& histogram, const Buckets& buckets, std::uint64_t value) {
  const auto bucket = std::ranges::lower_bound(buckets.most, value);
  ++histogram.counts[static_cast<std::size_t>(bucket - buckets.most.begin())];
  histogram.sum += value;
}

std::string seconds(std::uint64_t tenths) {
  char fraction[8];
  std::snprintf(fraction, sizeof fraction, "%04u", static_cast<unsigned>(tenths % 10'000));
  return formatted("{}.{}", tenths / 10'000, fraction);
}

/// `label`: as `phase="import"`; may be empty.
std::string samples_of(const Histogram& histogram, const Buckets& buckets, const std::string& name,
                       const std::string& label) {
  const std::string before = label.empty() ? "" : label + ",";
  std::string text;
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    count += histogram.counts[i];
    const char* const most = i < buckets.labels.size() ? buckets.labels[i] : "+Inf";
    text += sample(name + "_bucket", formatted("{}le=\"{}\"", before, most), std::to_string(count));
  }
  const bool is_time = &buckets == &kSeconds;
  return text +
         sample(name + "_sum", label,
                is_time ? seconds(histogram.sum) : std::to_string(histogram.sum)) +
         sample(name + "_count", label, std::to_string(count));
}

}  // namespace

// --- log counts ---

std::size_t kind_of_image(const LogRecord& start) {
  const std::string_view image = start.image;
  const auto begins = [&](std::initializer_list<std::string_view> parts) {
    return std::ranges::any_of(parts, [&](auto part) { return image.starts_with(part); });
  };
  const auto ends = [&](std::initializer_list<std::string_view> parts) {
    return std::ranges::any_of(parts, [&](auto part) { return image.ends_with(part); });
  };
  std::string_view kind = "file";
  if (start.from == "directory") {
    kind = "directory";
  } else if (start.from == "store") {
    const bool is_local =
        begins({"docker-archive:", "oci-archive:", "oci:", "podman://", "dockerd://"});
    kind = is_local || ends({".tar", ".tar.gz", ".tar.zst", ".tgz"}) ? "archive"
           : start.pulled                                            ? "registry"
           : start.by_fuse > 0                                       ? "fuse"
                                                                     : "store";
  } else if (ends({".sqsh", ".squashfs", ".sqfs"})) {
    kind = "squashfs";
  } else if (ends({".sif"})) {
    kind = "sif";
  }
  return static_cast<std::size_t>(std::ranges::find(kImageKinds, kind) - kImageKinds.begin());
}

void LogCounts::add(const LogRecord& record) {
  if (record.event == LogRecord::Event::failed) {
    for (std::size_t i = 0; i < failures_.size(); ++i)
      failures_[i] += record.kind == kFailureKinds[i] ? 1 : 0;
    return;
  }
  if (record.event == LogRecord::Event::pull) {
    std::uint64_t bytes = 0;
    const auto* const first = record.pull.end() - kPullSources.size();
    for (std::size_t i = 0; i < kPullSources.size(); ++i) {
      pull_bytes_[i] += first[i];
      bytes += first[i];
    }
    add_to(pull_times_, kSeconds, record.tenths[0]);
    add_to(pull_sizes_, kSizes, bytes);
    return;
  }
  ++starts_;
  by_fuse_ += record.by_fuse > 0 ? 1 : 0;
  pulls_ += record.pulled ? 1 : 0;
  for (std::size_t i = 0; i < tenths_.size(); ++i) tenths_[i] += record.tenths[i];
  for (std::size_t i = 0; i < by_phase_.size(); ++i)
    add_to(by_phase_[i], kSeconds, record.tenths[i]);
  add_to(by_image_[kind_of_image(record)], kSeconds, record.tenths.back());
}

std::string LogCounts::samples() const {
  std::string text = sample("spank_container_starts_total", starts_) +
                     sample("spank_container_fuse_starts_total", by_fuse_) +
                     sample("spank_container_pulls_total", pulls_);
  for (std::size_t i = 0; i < failures_.size(); ++i) {
    text += sample("spank_container_failures_total", formatted("kind=\"{}\"", kFailureKinds[i]),
                   std::to_string(failures_[i]));
  }
  for (std::size_t i = 0; i < tenths_.size(); ++i) {
    text += sample("spank_container_start_seconds_total",
                   formatted("phase=\"{}\"", kStartPhases[i]), seconds(tenths_[i]));
  }
  for (std::size_t i = 0; i < by_image_.size(); ++i) {
    text += samples_of(by_image_[i], kSeconds, "spank_container_start_duration_seconds",
                       formatted("image=\"{}\"", kImageKinds[i]));
  }
  for (std::size_t i = 0; i < by_phase_.size(); ++i) {
    text += samples_of(by_phase_[i], kSeconds, "spank_container_phase_duration_seconds",
                       formatted("phase=\"{}\"", kStartPhases[i]));
  }
  text += samples_of(pull_times_, kSeconds, "spank_container_pull_duration_seconds", "") +
          samples_of(pull_sizes_, kSizes, "spank_container_pull_size_bytes", "");
  for (std::size_t i = 0; i < pull_bytes_.size(); ++i) {
    text += sample("spank_container_pull_bytes_total", formatted("source=\"{}\"", kPullSources[i]),
                   std::to_string(pull_bytes_[i]));
  }
  return text;
}

std::vector<std::uint64_t*> LogCounts::numbers() {
  std::vector<std::uint64_t*> all{&starts_, &by_fuse_, &pulls_};
  const auto add_each = [&](auto& numbers) {
    for (std::uint64_t& number : numbers) all.push_back(&number);
  };
  const auto add_histogram = [&](Histogram& histogram) {
    add_each(histogram.counts);
    all.push_back(&histogram.sum);
  };
  add_each(tenths_);
  add_each(failures_);
  std::ranges::for_each(by_image_, add_histogram);
  std::ranges::for_each(by_phase_, add_histogram);
  add_histogram(pull_times_);
  add_histogram(pull_sizes_);
  add_each(pull_bytes_);
  return all;
}

// --- rotated log ---

namespace {

/// Changes with the order of the numbers, the buckets or the labels.
constexpr std::uint64_t kStateVersion = 1;

/// Makes this process one of the service user, which owns no file of the store but its images.
bool leave_root() {
  constexpr uid_t kNobody = 65534;
  const passwd* const user = ::getpwnam("spank-container");
  const uid_t uid = user != nullptr ? user->pw_uid : kNobody;
  const gid_t gid = user != nullptr ? user->pw_gid : kNobody;
  return ::setgroups(0, nullptr) == 0 && ::setresgid(gid, gid, gid) == 0 &&
         ::setresuid(uid, uid, uid) == 0;
}

}  // namespace

Result<CountedLog> CountedLog::parse(std::string_view text) {
  const Json state = SPC_TRY(Json::parse(text, {.bytes = kMostText, .values = 1'000}));
  CountedLog log;
  const auto values = SPC_TRY(state.list("numbers"));
  const auto numbers = log.counts.numbers();
  if (SPC_TRY(state.number("version")) != kStateVersion || values->size() != numbers.size())
    return Error(ErrorKind::invalid, "has another version");
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (!(*values)[i].is_number()) return Error(ErrorKind::corrupt, "numbers are not numbers");
    *numbers[i] = (*values)[i].as_number();
  }
  log.inode = SPC_TRY(state.number("inode")).value_or(0);
  log.bytes = SPC_TRY(state.number("bytes")).value_or(0);
  return log;
}

std::string CountedLog::text() {
  Json state{{"version", kStateVersion}, {"inode", inode}, {"bytes", bytes}};
  state["numbers"] = Json::array();
  for (const std::uint64_t* const number : counts.numbers()) state["numbers"].push_back(*number);
  return state.str() + "\n";
}

void CountedLog::read(int log, int rotated) {
  const auto count = [&](std::string_view line) {
    if (const auto record = read_log_record(line)) counts.add(*record);
  };
  struct stat now {
  }, before{};
  if (::fstat(log, &now) != 0) return;
  if (inode != now.st_ino) {
    const bool was_rotated =
        inode != 0 && rotated >= 0 && ::fstat(rotated, &before) == 0 && before.st_ino == inode;
    if (was_rotated) for_each_log_line(rotated, bytes, count);
    bytes = 0;
  } else if (bytes > static_cast<std::uint64_t>(now.st_size)) {
    bytes = 0;  // emptied in place
  }
  inode = now.st_ino;
  bytes = for_each_log_line(log, bytes, count);
}

Result<CountedLog> count_log(const std::string& path, const CountedLog& previous) {
  constexpr std::chrono::seconds kLimit{50};  // the timer calls each minute
  const UniqueFd log = SPC_TRY(open_log(path));
  const auto rotated = open_log(path + ".1");
  const auto answer = answer_before(std::chrono::steady_clock::now() + kLimit, [&] {
    CountedLog next = previous;
    if (::geteuid() == 0 && !leave_root()) return std::string();
    next.read(log.get(), rotated ? rotated->get() : -1);
    return next.text();
  });
  const std::string step = "count the starts in slurmd's log " + in_quotes(path);
  if (!answer) return Error(ErrorKind::unavailable, step + ": no answer in time");
  return SPC_TRY_DURING(step, CountedLog::parse(*answer));
}

// --- log records ---

namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr std::size_t kMostDigitsOfBytes = 16;

/// A parser that consumes fixed parts from the front of a record. After the first mismatch all
/// further calls fail.
class RecordReader {
 public:
  explicit RecordReader(std::string_view text) : rest_(text) {}

  void literal(std::string_view wanted) {
    good_ = good_ && rest_.starts_with(wanted);
    if (good_) rest_.remove_prefix(wanted.size());
  }
  /// Reads up to the next blank or the end. The word contains no blank, quote or equals sign.
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
  /// Reads 12.3 as 123.
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
  /// Reads a quoted string of a user. No later field contains quotes, so the string ends at the
  /// last one, whatever it contains.
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

/// Returns the content of brackets at the front.
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
  // Components of a heterogeneous job have their own job ID. The brackets contain the job's number
  // and the component's offset.
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

Result<UniqueFd> open_log(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return Error::from_errno(errno, "open slurmd's log " + in_quotes(path));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return Error(ErrorKind::invalid,
                 "open slurmd's log " + in_quotes(path) + ": not a regular file");
  }
  return file;
}

std::uint64_t for_each_log_line(int log, std::uint64_t begin,
                                const std::function<void(std::string_view)>& use) {
  constexpr std::uint64_t kMostOfLog = std::uint64_t{1} << 30;
  constexpr std::size_t kMostOfLine = 4096;
  std::string line;
  bool too_long = false;
  std::vector<char> buffer(1 << 16);
  std::uint64_t at = begin, whole = begin;
  while (at - begin < kMostOfLog) {
    const ssize_t got = ::pread(log, buffer.data(), buffer.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;  // an incomplete line is read next time
    std::string_view part(buffer.data(), static_cast<std::size_t>(got));
    for (; !part.empty();) {
      const auto end = part.find('\n');
      too_long = too_long || line.size() + std::min(end, part.size()) > kMostOfLine;
      if (!too_long) line += part.substr(0, end);
      at += std::min(end, part.size());
      if (end == std::string_view::npos) break;
      whole = ++at;
      if (!too_long) use(line);
      line.clear();
      too_long = false;
      part.remove_prefix(end + 1);
    }
  }
  // A GiB without a line end is skipped, so that the next call does not read it again.
  return whole == begin && at - begin >= kMostOfLog ? at : whole;
}

Result<void> for_each_log_line(const std::string& path,
                               const std::function<void(std::string_view)>& use) {
  const UniqueFd log = SPC_TRY(open_log(path));
  for_each_log_line(log.get(), 0, use);
  return {};
}

}  // namespace spc
