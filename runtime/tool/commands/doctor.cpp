#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <deque>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/json.hpp"
#include "base/process/own_program.hpp"
#include "base/process/supervised.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "doctor/diagnose.hpp"
#include "doctor/node.hpp"
#include "doctor/preflight.hpp"
#include "tool/command.hpp"
#include "tool/surroundings/places.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

// --- log of a job ---

namespace {

/// Reads only the end of a longer file: a job reports its failure last.
constexpr off_t kMostOfFile = off_t{64} << 20;

Result<Diagnosis> diagnose_file(const std::string& path) {
  UniqueFd opened;
  int fd = STDIN_FILENO;
  if (path != "-") {
    opened = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened) return Error::from_errno(errno, "open " + in_quotes(path));
    fd = opened.get();
    struct stat status {};
    if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > kMostOfFile) {
      if (::lseek(fd, status.st_size - kMostOfFile, SEEK_SET) < 0)
        return Error::from_errno(errno, "seek in " + in_quotes(path));
      std::fprintf(stderr, "%s: only the last %lld MiB are read; line numbers start there\n",
                   printable(path).c_str(), static_cast<long long>(kMostOfFile >> 20));
    }
  }
  Diagnosis diagnosis;
  std::array<char, 1 << 16> buffer;
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got == 0) return diagnosis;
    if (got > 0) {
      diagnosis.read({buffer.data(), static_cast<std::size_t>(got)});
    } else if (errno != EINTR) {
      return Error::from_errno(errno, "read " + in_quotes(path));
    }
  }
}

void print_recognised(const Recognised& one) {
  const Failure& failure = *one.failure;
  std::string where = "line " + std::to_string(one.line);
  if (one.times > 1)
    where += formatted(", and {}{}", one.times - 1, one.times == 2 ? " more" : " more lines");
  if (!one.task.empty()) where += ", first by task " + one.task;
  std::puts(formatted("{} ({})", coloured(failure.says, Colour::bold), where).c_str());
  std::puts(("  text:   " + one.text).c_str());
  if (one.consequence)
    std::puts("  note:   caused by the failure above; check it only if it persists");
  std::puts(("  cause:  " + one.cause).c_str());
  std::puts(("  fix:    " + one.cure).c_str());
  if (*failure.look != '\0') std::puts(("  see:    " + std::string(failure.look)).c_str());
  if (!failure.checks.empty())
    std::puts(
        ("  check:  srun scontainer doctor --job checks " + joined(failure.checks, ", ")).c_str());
  std::puts("");
}

Json in_json(const Recognised& one) {
  const Failure& failure = *one.failure;
  return {{"failure", failure.id},
          {"says", failure.says},
          {"line", one.line},
          {"times", one.times},
          {"task", one.task},
          {"text", one.text},
          {"cause", one.cause},
          {"cure", one.cure},
          {"look", failure.look},
          {"checks", Json::array(Json::Array(failure.checks.begin(), failure.checks.end()))},
          {"consequence", one.consequence}};
}

/// Prints the known failures in a file (- is standard input) with cause and fix. Returns whether
/// there were any.
Result<bool> explain_log(const std::string& path, bool as_json) {
  Diagnosis diagnosis = SPC_TRY(diagnose_file(path));
  const std::vector<Recognised> findings = diagnosis.findings();
  if (as_json) {
    Json list = Json::array();
    for (const Recognised& one : findings) list.push_back(in_json(one));
    std::puts(list.str(2).c_str());
  } else {
    for (const Recognised& one : findings) print_recognised(one);
    if (findings.empty()) {
      const std::string count =
          std::to_string(diagnosis.lines()) + (diagnosis.lines() == 1 ? " line" : " lines");
      std::puts(formatted("{}, no failure in {} known to doctor", count,
                          diagnosis.lines() == 1 ? "it" : "them")
                    .c_str());
    }
  }
  return !findings.empty();
}

}  // namespace

// --- doctor ---

namespace {

const char* name_of(Finding::Verdict verdict) {
  switch (verdict) {
    case Finding::Verdict::ok: return "ok";
    case Finding::Verdict::warning: return "warning";
    case Finding::Verdict::failed: return "failed";
  }
  return "";
}

Colour colour_of(Finding::Verdict verdict) {
  switch (verdict) {
    case Finding::Verdict::ok: return Colour::green;
    case Finding::Verdict::warning: return Colour::yellow;
    case Finding::Verdict::failed: return Colour::red;
  }
  return Colour::none;
}

void print_finding(const Finding& finding) {
  char verdict[16];
  std::snprintf(verdict, sizeof verdict, "%-8s", name_of(finding.verdict));
  std::string line = formatted("{}{}: {}", coloured(verdict, colour_of(finding.verdict)),
                               finding.what, printable(finding.detail));
  if (!finding.cure.empty()) line += formatted(" (fix: {})", finding.cure);
  std::puts(line.c_str());
}

/// Checks what a job needs on this node, as the calling process sees it.
std::vector<Finding> examine_job() {
  // Jobs use the site's settings, not the user's own.
  const auto config = read_config(SPC_CONFIG_FILE);
  auto findings =
      preflight(surroundings_of_this_process(config ? config->site.driver_root : std::string()));
  findings.push_back(examine_image_way());
  findings.push_back(examine_peers());
  return findings;
}

std::vector<Finding> examine_machine(const std::string& registry) {
  std::vector<Finding> findings = examine_kernel();
  const auto add = [&](std::vector<Finding> more) {
    for (auto& finding : more) findings.push_back(std::move(finding));
  };
  const auto places = Places::find();
  const std::string config = places ? places->config : SPC_CONFIG_FILE;
  if (!places) {
    findings.push_back(
        {"your store", Finding::Verdict::failed, places.error().message(), "set XDG_DATA_HOME"});
  } else if (places->own_store) {
    const auto store = make_own_store(*places);
    findings.push_back(store ? examine_own_store(places->store, store->get())
                             : Finding{"your store", Finding::Verdict::failed,
                                       store.error().message(),
                                       "set XDG_DATA_HOME to a writable directory"});
  }
  findings.push_back(examine_config(config));
  add(examine_node());
  findings.push_back(examine_registry(config, registry));
  return findings;
}

/// Reports only warnings and failures, as error messages.
void report_wrong(const std::vector<Finding>& findings) {
  for (const Finding& one : findings) {
    if (one.verdict == Finding::Verdict::ok) continue;
    const char* kind = one.verdict == Finding::Verdict::warning ? "warning: " : "";
    const std::string hint = one.cure.empty() ? "" : formatted(" (hint: {})", one.cure);
    report_error(formatted("{}{}: {}{}", kind, one.what, printable(one.detail), hint));
  }
}

void report(const std::vector<Finding>& findings, bool as_json) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"check", finding.what},
                    {"verdict", name_of(finding.verdict)},
                    {"detail", finding.detail},
                    {"cure", finding.cure}});
    if (!as_json) print_finding(finding);
  }
  if (as_json) std::puts(list.str(2).c_str());
}

int examine_for_slurm(bool quiet, bool as_json) {
  constexpr int kStatus[] = {0, 3, 1};  // ok, warning, failed; 2 is wrong usage
  const auto findings = examine_health();
  if (quiet) {
    report_wrong(findings);
  } else {
    report(findings, as_json);
  }
  return kStatus[static_cast<std::size_t>(worst_of(findings))];
}

// --- report ---

constexpr char kSlurmdLog[] = "/var/log/slurm/slurmd.log";
constexpr std::size_t kReportedFailures = 20;
constexpr char kRemoved[] = "(removed)";

/// Removes the parts of a text in which people write secrets: values of variables, a user in front
/// of a host, and the query of a URL.
std::string redacted(std::string text) {
  if (const auto equals = text.find('=');
      equals != std::string::npos && is_shell_name(std::string_view(text).substr(0, equals)))
    return text.substr(0, equals + 1) + kRemoved;
  if (const auto query = text.find('?'); query != std::string::npos)
    text = text.substr(0, query + 1) + kRemoved;
  const auto at = text.rfind('@');
  if (at == std::string::npos || std::string_view(text).substr(at).starts_with("@sha256:"))
    return text;
  const auto scheme = text.find("://");
  const std::size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  return text.substr(0, begin) + kRemoved + text.substr(std::max(at, begin));
}

/// Does the same with each word of a message, and removes texts in quotes that are not paths: they
/// can be a wrong value.
std::string redacted_message(std::string_view message) {
  std::string shown;
  while (!message.empty()) {
    const auto open = message.find('"');
    shown += message.substr(0, open);
    if (open == std::string_view::npos) break;
    message.remove_prefix(open + 1);
    std::size_t end = 0;
    while (end < message.size() && message[end] != '"') end += message[end] == '\\' ? 2 : 1;
    end = std::min(end, message.size());
    const std::string_view quoted = message.substr(0, end);
    shown += formatted("\"{}\"", quoted.starts_with('/') ? quoted : kRemoved);
    message.remove_prefix(std::min(end + 1, message.size()));
  }
  std::vector<std::string> words;
  for (const std::string_view word : split(shown, ' '))
    words.push_back(redacted(std::string(word)));
  return joined(words, " ");
}

/// Prints the settings that differ from their defaults. Comments and unknown keys, which could
/// contain anything, are not in the values that are printed.
void report_config(const std::string& path) {
  auto config = read_config(path);
  if (!config) {
    std::puts(("not valid: " + printable(redacted_message(config.error().message()))).c_str());
    return;
  }
  const auto print = [](const std::string& table, const Keys& keys) {
    for (const Key& key : keys) {
      std::vector<std::string> texts = key.texts();
      const bool is_default = texts.empty() || (texts.size() == 1 && texts[0] == key.default_text);
      if (is_default) continue;
      for (std::string& text : texts) text = redacted(std::move(text));
      std::puts(formatted("{}{} = {}", table, key.name, printable(joined(texts, ", "))).c_str());
    }
  };
  for (const KeyTable& table : config->tables())
    print(table.name.empty() ? "" : table.name + ".", table.keys);
  for (auto& [name, registry] : config->registries)
    print(formatted("registries.\"{}\".", redacted(name)), registry.keys());
  for (auto& [name, nodes] : config->partitions)
    print(formatted("partitions.\"{}\".", name), nodes.keys());
  for (auto& [name, nodes] : config->features)
    print(formatted("features.\"{}\".", name), nodes.keys());
}

/// Prints the last failed starts of slurmd's log. Only whole records count, so no text of a user
/// but an image's name is printed.
void report_failures(const std::string& log) {
  std::deque<std::string> last;
  const auto read = for_each_log_line(log, [&](std::string_view line) {
    const auto record = read_log_record(line);
    if (!record || record->event != LogRecord::Event::failed) return;
    last.push_back(formatted("{} job {} step {} on {}: {}, image {}", record->time, record->job,
                             record->step, record->node, record->kind,
                             redacted(std::string(record->image))));
    if (last.size() > kReportedFailures) last.pop_front();
  });
  if (!read) {
    std::puts(read.error().message().c_str());
    return;
  }
  for (const std::string& line : last) std::puts(printable(line).c_str());
  if (last.empty()) std::puts("none");
}

/// Returns what the command prints, or why it printed nothing.
std::string answer_of(const char* program, const std::string& argument) {
  const auto end = run_supervised({.path = program, .arguments = {program, argument}}, {},
                                  {.time = std::chrono::seconds(10), .output = 1 << 16},
                                  [](std::string_view) {});
  if (!end) return "not installed";
  return end->good() ? std::string(trimmed(end->output)) : "failed";
}

std::string name_of_distribution() {
  const UniqueFd file(::open("/etc/os-release", O_RDONLY | O_CLOEXEC));
  const auto text = read_file(file.get(), 1 << 16);
  if (!text) return "unknown";
  for (const std::string_view line : split(*text, '\n')) {
    if (line.starts_with("PRETTY_NAME=")) return std::string(unquoted(line.substr(12)));
  }
  return "unknown";
}

/// Prints a description of the node for an issue, without secrets.
void print_report(const std::string& log) {
  const auto places = Places::find();
  const std::string config = places ? places->config : SPC_CONFIG_FILE;
  utsname system{};
  ::uname(&system);
  std::puts("--- versions");
  std::puts(("spank-container " SPC_VERSION ", " + Platform::host().str()).c_str());
  std::puts(formatted("{} {} {}", system.sysname, system.release, system.version).c_str());
  std::puts(printable(name_of_distribution()).c_str());
  std::puts(("slurmd: " + printable(answer_of("/usr/sbin/slurmd", "-V"))).c_str());
  std::puts(("srun: " + printable(answer_of("/usr/bin/srun", "-V"))).c_str());
  std::puts(formatted("\n--- settings of {} that are not defaults", printable(config)).c_str());
  report_config(config);
  std::puts("\n--- checks");
  auto findings = ::geteuid() == 0 ? examine_health() : examine_kernel();
  for (Finding& finding : findings) finding.detail = redacted_message(finding.detail);
  report(findings, false);
  std::puts(formatted("\n--- last failed starts in {}", printable(log)).c_str());
  report_failures(log);
}

}  // namespace

Result<int> run_doctor(const Arguments& arguments) {
  const int asked =
      static_cast<int>(!arguments.words.empty()) + static_cast<int>(arguments.has("job")) +
      static_cast<int>(arguments.has("registry")) + static_cast<int>(arguments.has("node")) +
      static_cast<int>(arguments.has("report"));
  if (asked > 1) {
    return Error(ErrorKind::invalid,
                 "doctor takes only one of FILE, --job, --node, --registry and --report")
        .hint("scontainer doctor --help");
  }
  const bool as_json = arguments.has("json");
  if (arguments.has("quiet") && (!arguments.has("node") || as_json)) {
    return Error(ErrorKind::invalid, "doctor --quiet belongs to --node, without --json")
        .hint("scontainer doctor --help");
  }
  if (arguments.has("log") && !arguments.has("report")) {
    return Error(ErrorKind::invalid, "doctor --log belongs to --report")
        .hint("scontainer doctor --help");
  }
  if (arguments.has("report")) {
    print_report(arguments.has("log") ? arguments.value("log") : kSlurmdLog);
    return 0;
  }
  if (arguments.has("node")) return examine_for_slurm(arguments.has("quiet"), as_json);
  if (!arguments.words.empty()) {
    const bool recognised = SPC_TRY(explain_log(arguments.words[0], as_json));
    return recognised ? 1 : 0;
  }
  const auto findings =
      arguments.has("job") ? examine_job() : examine_machine(arguments.value("registry"));
  report(findings, as_json);
  return worst_of(findings) == Finding::Verdict::failed ? 1 : 0;
}

// --- metrics ---

namespace {

/// Returns a percentage as the ratio that Prometheus expects.
std::string ratio(std::uint32_t percent) {
  char text[16];
  std::snprintf(text, sizeof text, "%u.%02u", percent / 100, percent % 100);
  return text;
}

std::string store_samples() {
  std::string text;
  if (const auto state = state_of_store(SPC_STORE_DIR)) {
    if (state->images) text += sample("spank_container_images", *state->images);
    if (state->layers) {
      text += sample("spank_container_layers", *state->layers) +
              sample("spank_container_layer_bytes", state->layer_bytes);
    }
    text += sample("spank_container_spool_bytes", state->spool_bytes);
    if (state->containers) text += sample("spank_container_named_containers", *state->containers);
    text += sample("spank_container_store_size_bytes", state->size) +
            sample("spank_container_store_free_bytes", state->free);
    if (state->inodes > 0) text += sample("spank_container_store_free_inodes", state->free_inodes);
  }
  if (const auto config = read_config(SPC_CONFIG_FILE)) {
    text +=
        sample("spank_container_store_limit_bytes", config->store.max_size) +
        sample("spank_container_high_watermark_ratio", "", ratio(config->store.high_watermark)) +
        sample("spank_container_low_watermark_ratio", "", ratio(config->store.low_watermark));
  }
  return text;
}

}  // namespace

Result<int> run_metrics(const Arguments& arguments) {
  if (::geteuid() != 0)
    return Error(ErrorKind::refused, "read the node's store: only root may").hint("run it as root");
  std::string samples =
      sample("spank_container_info", "version=\"" SPC_VERSION "\"", "1") +
      sample("spank_container_node_status", static_cast<std::uint64_t>(worst_of(examine_health())));
  samples +=
      answer_before(std::chrono::steady_clock::now() + std::chrono::seconds(5), store_samples)
          .value_or("");
  if (arguments.has("log")) {
    const LogCounts counts = SPC_TRY(count_log(arguments.value("log")));
    samples += counts.samples();
  }
  std::fputs(metrics_text(samples).c_str(), stdout);
  return 0;
}

// --- audit ---

namespace {

/// Replaces bytes that are not UTF-8 by U+FFFD. Escapes of the log stay escaped.
Json as_json(const LogRecord& record) {
  constexpr const char* kEvents[] = {"start", "failed", "pull"};
  Json object{{"time", record.time}, {"event", kEvents[static_cast<std::size_t>(record.event)]},
              {"job", record.job},   {"step", record.step},
              {"node", record.node}, {"image", record.image}};
  if (record.event == LogRecord::Event::failed) {
    object["kind"] = record.kind;
    return object;
  }
  if (record.event == LogRecord::Event::pull) {
    object["digest"] = record.digest;
    for (std::size_t i = 0; i < kPullNumbers.size(); ++i) object[kPullNumbers[i]] = record.pull[i];
    object["pull_ms"] = static_cast<double>(record.tenths[0]) / 10;
    return object;
  }
  object["uid"] = record.uid;
  object["user"] = record.user;
  object["digest"] = record.digest == "-" ? Json() : Json(record.digest);
  object["from"] = record.from;
  object["layers"] = record.layers;
  object["shared"] = record.shared;
  object["fuse"] = record.by_fuse;
  object["pulled"] = record.pulled;
  for (std::size_t i = 0; i < record.tenths.size(); ++i) {
    object[formatted("{}_ms", kStartPhases[i])] = static_cast<double>(record.tenths[i]) / 10;
  }
  return object;
}

}  // namespace

Result<int> run_audit(const Arguments& arguments) {
  for (const std::string& path : arguments.words) {
    SPC_TRY(for_each_log_line(path, [](std::string_view line) {
      if (const auto record = read_log_record(line))
        std::puts(as_json(*record).str(0, ' ', Json::Order::kept).c_str());
    }));
  }
  return 0;
}

// --- info ---

Result<int> run_info(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config));
  utsname system{};
  ::uname(&system);
  const std::string import = own_program("import");
  const std::pair<const char*, std::string> lines[] = {
      {"version", SPC_VERSION},
      {"store", places.store},
      {"store_of_the_node", SPC_STORE_DIR},
      {"config", ::access(places.config.c_str(), F_OK) == 0
                     ? places.config
                     : places.config + " (missing: defaults)"},
      {"default_registry", config.default_registry},
      {"pull", name_of(config.pull)},
      {"platform", Platform::host().str()},
      {"kernel", system.release},
      {"programs", import.substr(0, import.rfind('/'))},
  };
  if (arguments.has("json")) {
    Json object = Json::object();
    for (const auto& [key, value] : lines) object[key] = value;
    std::puts(object.str(2).c_str());
    return 0;
  }
  for (const auto& [key, value] : lines) std::printf("%-18s %s\n", key, printable(value).c_str());
  return 0;
}

}  // namespace spc::tool
