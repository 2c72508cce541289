#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <set>

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
#include "hook_engine/hook_directory.hpp"
#include "hooks/hook.hpp"
#include "launch/site/site_request.hpp"
#include "tool/command.hpp"
#include "tool/images/stored_images.hpp"
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

Json in_json(const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"check", finding.what},
                    {"verdict", name_of(finding.verdict)},
                    {"detail", finding.detail},
                    {"cure", finding.cure}});
  }
  return list;
}

void report(const std::vector<Finding>& findings, bool as_json) {
  if (as_json) return void(std::puts(in_json(findings).str(2).c_str()));
  for (const Finding& finding : findings) print_finding(finding);
}

/// Returns the exit status; 2 is wrong usage.
int status_of(Finding::Verdict verdict) {
  constexpr int kStatus[] = {0, 3, 1};
  return kStatus[static_cast<std::size_t>(verdict)];
}

/// Returns the name by which Slurm knows this machine, or else its host name.
std::string name_of_node() {
  if (const char* const name = std::getenv("SLURMD_NODENAME"); name != nullptr && *name != '\0')
    return name;
  utsname system{};
  ::uname(&system);
  const std::string_view name = system.nodename;
  return std::string(name.substr(0, name.find('.')));
}

/// Prints a JSON array with one finding a line, so that lines of several nodes can be mixed.
void print_lines(const std::vector<Finding>& findings) {
  const std::string node = name_of_node();
  std::puts("[");
  for (const Finding& finding : findings)
    std::puts((line_of(node, finding) + (&finding == &findings.back() ? "" : ",")).c_str());
  std::puts("]");
}

int examine_for_slurm(bool quiet, bool as_json) {
  const auto findings = examine_health();
  if (quiet) {
    report_wrong(findings);
  } else if (as_json) {
    print_lines(findings);
  } else {
    report(findings, false);
  }
  return status_of(worst_of(findings));
}

// --- many nodes ---

constexpr std::size_t kMostNodes = 100'000;

/// Returns the findings in the output of several `doctor --node --json`. Other lines, such as those
/// of a login script, are reported.
Result<std::vector<NodeFinding>> read_answers(const std::string& path) {
  constexpr std::size_t kMostText = 512 << 20;
  UniqueFd opened;
  if (path != "-") {
    opened = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened) return Error::from_errno(errno, "open " + in_quotes(path));
  }
  const int fd = path == "-" ? STDIN_FILENO : opened.get();
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (const ssize_t got = ::read(fd, buffer.data(), buffer.size())) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, "read " + in_quotes(path));
    text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() > kMostText)
      return Error(ErrorKind::invalid, "merge checks: more than 512 MiB of input");
  }
  std::vector<NodeFinding> found;
  std::size_t number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    auto one = read_node_line(line);
    if (!one) {
      return std::move(one)
          .error()
          .during(formatted("merge checks: line {}", number))
          .hint("srun -N4 scontainer doctor --node --json | scontainer doctor --merge");
    }
    const std::string_view words = trimmed(line);
    if (*one) {
      found.push_back(**std::move(one));
    } else if (!words.empty() && !words.ends_with('[') && !words.ends_with(']')) {
      report_error(formatted("warning: line {} is no check: {}", number, printable(words)));
    }
  }
  return found;
}

Json in_json(const std::vector<MergedCheck>& checks) {
  Json list = Json::array();
  for (const MergedCheck& check : checks) {
    Json answers = Json::array();
    for (const MergedAnswer& answer : check.answers) {
      answers.push_back({{"nodes", list_of_nodes(answer.nodes)},
                         {"verdict", name_of(answer.finding.verdict)},
                         {"detail", answer.finding.detail},
                         {"cure", answer.finding.cure}});
    }
    Json one{{"check", check.check}, {"verdict", name_of(check.worst)}};
    one["answers"] = std::move(answers);
    list.push_back(std::move(one));
  }
  return list;
}

void print_checks(const std::vector<MergedCheck>& checks) {
  std::vector<std::vector<std::string>> table{{"VERDICT", "CHECK", "NODES", "DETAIL"}};
  for (const MergedCheck& check : checks) {
    for (const auto& [nodes, finding] : check.answers) {
      const std::string fix = finding.cure.empty() ? "" : formatted(" (fix: {})", finding.cure);
      table.push_back({name_of(finding.verdict), printable(check.check),
                       printable(list_of_nodes(nodes)), printable(finding.detail + fix)});
    }
  }
  print_table(table);
}

/// Prints the checks of many nodes as one table. `expected`: a list of nodes that have to answer.
Result<int> merge_nodes(const std::string& path, const std::string& expected, bool as_json) {
  std::vector<NodeFinding> found = SPC_TRY(read_answers(path));
  std::map<std::string, Finding::Verdict> nodes;
  for (const auto& [node, finding] : found) nodes[node] = std::max(nodes[node], finding.verdict);
  for (const std::string& node : nodes_of_list(expected, kMostNodes)) {
    if (!nodes.try_emplace(node, Finding::Verdict::failed).second) continue;
    found.push_back(
        {node,
         {"answer", Finding::Verdict::failed, "none", "srun -w NODE scontainer doctor --node"}});
  }
  if (nodes.empty()) {
    return Error(ErrorKind::invalid, "merge checks: the input has none")
        .hint("srun -N4 scontainer doctor --node --json | scontainer doctor --merge");
  }
  std::vector<std::string> all, failed, warned;
  for (const auto& [node, verdict] : nodes) {
    all.push_back(node);
    if (verdict == Finding::Verdict::failed) failed.push_back(node);
    if (verdict == Finding::Verdict::warning) warned.push_back(node);
  }
  const auto checks = merge_findings(found);
  if (as_json) {
    Json object{{"nodes", list_of_nodes(all)},
                {"failed", list_of_nodes(failed)},
                {"warning", list_of_nodes(warned)}};
    object["checks"] = in_json(checks);
    std::puts(object.str(2).c_str());
  } else {
    const auto count = [](const char* what, const std::vector<std::string>& some) {
      return some.empty() ? std::string()
                          : formatted(", {} {} ({})", some.size(), what, list_of_nodes(some));
    };
    std::puts(printable(formatted("{} node{}{}{}", all.size(), all.size() == 1 ? "" : "s",
                                  count("failed", failed), count("with warnings", warned)))
                  .c_str());
    print_checks(checks);
  }
  return status_of(!failed.empty()   ? Finding::Verdict::failed
                   : !warned.empty() ? Finding::Verdict::warning
                                     : Finding::Verdict::ok);
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
  const std::string error = config ? config->site.config_error : config.error().message();
  if (!error.empty()) std::puts(("not valid: " + printable(redacted_message(error))).c_str());
  if (!config) return;
  if (!error.empty()) std::puts("settings of the last valid configuration, which is in use:");
  const auto print = [](const std::string& table, const Keys& keys) {
    for (const Key& key : keys) {
      std::vector<std::string> texts = key.texts();
      if (texts.empty()) continue;
      set_defaults({key});  // values are compared: a size may be written in several ways
      if (*key.default_text != '\0' && texts == key.texts()) continue;
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

// --- configuration to install ---

/// Configuration files by path, as a directory with config.toml and config.d has them.
using ConfigTexts = std::vector<std::pair<std::string, std::string>>;

constexpr char kConfigDirectory[] = "/config.d/";

/// Returns the directory of the installed configuration.
std::string site_directory() {
  const std::string_view file = SPC_CONFIG_FILE;
  return std::string(file.substr(0, file.rfind('/')));
}

Result<std::string> text_of_config(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return Error::from_errno(errno, "open " + in_quotes(path));
  return SPC_TRY_DURING("read " + in_quotes(path), read_file(file.get(), 1 << 20));
}

std::vector<std::string> names_of_drop_ins(const std::string& directory) {
  std::vector<std::string> names;
  for (DirectoryReader entries((directory + kConfigDirectory).c_str()); entries.next();)
    if (entries.name().ends_with(".toml") && !entries.name().starts_with('.'))
      names.emplace_back(entries.name());
  std::ranges::sort(names);
  return names;
}

/// Returns the files that are in force once `path` is installed: a directory with config.toml and
/// config.d, a file of a config.d, or else config.toml.
Result<ConfigTexts> texts_after_installing(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    return Error::from_errno(errno, "open " + in_quotes(path));
  const bool is_whole = S_ISDIR(status.st_mode);
  const std::string directory = is_whole ? path : site_directory();
  const auto slash = path.rfind('/');
  const bool is_drop_in = !is_whole && slash != std::string::npos &&
                          ("/" + path.substr(0, slash + 1)).ends_with(kConfigDirectory);
  std::map<std::string, std::string> drop_ins;  // name to path
  for (const std::string& name : names_of_drop_ins(directory))
    drop_ins[name] = directory + kConfigDirectory + name;
  if (is_drop_in) drop_ins[path.substr(slash + 1)] = path;
  const std::string main = is_whole || is_drop_in ? directory + "/config.toml" : path;
  ConfigTexts texts;
  if (::access(main.c_str(), F_OK) == 0) texts.emplace_back(main, SPC_TRY(text_of_config(main)));
  for (const auto& [name, file] : drop_ins) texts.emplace_back(file, SPC_TRY(text_of_config(file)));
  return texts;
}

struct Change {
  std::string key;
  std::vector<std::string> from, to;
  const char* matters_for;
};

/// Values of all keys by their full names. Missing tables have no entry.
using Values = std::map<std::string, std::vector<std::string>>;

Values values_of(Config& config) {
  Values values;
  const auto add = [&](const std::string& table, const Keys& keys) {
    for (const Key& key : keys) values[table + key.name] = key.texts();
  };
  for (const KeyTable& table : config.tables())
    add(table.name.empty() ? "" : table.name + ".", table.keys);
  for (auto& [name, one] : config.registries)
    add(formatted("registries.\"{}\".", name), one.keys());
  for (auto& [name, one] : config.partitions)
    add(formatted("partitions.\"{}\".", name), one.keys());
  for (auto& [name, one] : config.features) add(formatted("features.\"{}\".", name), one.keys());
  return values;
}

/// Returns the jobs for which a key matters. The first line that fits counts.
const char* matters_for(std::string_view key) {
  constexpr std::pair<const char*, const char*> kLines[] = {
      {"store.*", "pulls and containers on each node, from the next one on; running ones stay"},
      {"shared.*", "steps whose image is not yet in their node's store"},
      {"peers.*", "steps on several nodes whose image is not yet there"},
      {"nodes.*", "jobs that check_at_submit examines, at submission"},
      {"partitions.*", "jobs in this partition that check_at_submit examines, at submission"},
      {"features.*", "jobs with this constraint that check_at_submit examines, at submission"},
      {"registries.*", "steps and submissions with images of this registry"},
      {"default_registry", "jobs whose image name has no registry"},
      {"allowed_*", "jobs with images that the new list does not have: they are refused"},
      {"features_off", "jobs with these options: they are refused"},
      {"mounts_off", "jobs that mount these paths: they are refused"},
      {"hooks_off", "containers that these hooks change"},
      {"*_ttl", "steps with an image that the node already has"},
      {"pull", "steps with an image that the node already has and no --container-pull"},
      {"layer_*", "layers pulled from now on; those in the store stay"},
      {"import_*", "steps that pull an image"},
      {"max_parallel_layers", "steps that pull an image"},
      {"max_image_bytes", "steps that pull an image"},
      {"stall_timeout", "steps that pull an image"},
      {"*_proxy", "steps that pull an image, and srun's query of its tag"},
      {"importer", "steps with an image of a registry"},
      {"signature_policy", "every start of an image, also of those in the store"},
      {"writable", "jobs without --container-writable or --container-readonly"},
      {"mount_home", "jobs without --container-mount-home or --no-container-mount-home"},
      {"remap_root", "jobs without --container-remap-root or --no-container-remap-root"},
      {"mount_cwd", "jobs without --container-mount-cwd or --no-container-mount-cwd"},
      {"slurm", "jobs without --container-slurm"},
      {"batch", "sbatch with an image and without --container-batch"},
      {"entrypoint*", "containers of images that have an entrypoint"},
      {"container_scope", "named containers made from now on"},
      {"upper_size", "jobs that write in a container, without --container-tmpfs-size"},
      {"max_tmpfs_size", "jobs with --container-tmpfs-size above it: they are refused"},
      {"gpu*", "steps with GPUs"},
      {"driver_root", "steps with GPUs"},
      {"prefer_cdi", "steps with GPUs"},
      {"cuda_compat", "steps with GPUs"},
      {"mpi*", "steps with the node's MPI"},
      {"fabric*", "steps on several nodes, and MPI over the fabric"},
      {"frameworks", "jobs of PyTorch, TensorFlow and JAX"},
      {"check_at_submit", "srun, sbatch and salloc on hosts with this file"},
      {"environments", "jobs with --environment"},
      {"error_report", "steps on several nodes that fail"},
      {"failure_hints", "steps that fail"},
  };
  for (const auto& [pattern, jobs] : kLines)
    if (::fnmatch(pattern, std::string(key).c_str(), 0) == 0) return jobs;
  return "every container that starts from now on";
}

/// Gives both configurations the same named tables: a table without keys means the defaults.
template <typename Settings>
void match_tables(std::map<std::string, Settings, std::less<>>& one,
                  std::map<std::string, Settings, std::less<>>& other) {
  for (const auto& [name, settings] : one) other.try_emplace(name);
  for (const auto& [name, settings] : other) one.try_emplace(name);
}

std::vector<Change> changes_between(Config before, Config after) {
  match_tables(before.registries, after.registries);
  match_tables(before.partitions, after.partitions);
  match_tables(before.features, after.features);
  std::vector<Change> changes;
  Values from = values_of(before);
  for (auto& [key, texts] : values_of(after))
    if (from[key] != texts) changes.push_back({key, from[key], texts, matters_for(key)});
  return changes;
}

Finding warn_of(const std::string& key, const std::string& detail, const std::string& cure) {
  return {key, Finding::Verdict::warning, detail, cure};
}

/// Warns of files, directories and programs that this host does not have.
void find_missing_paths(std::vector<Finding>& findings, Config& config) {
  const auto examine = [&](const std::string& table, const Keys& keys) {
    for (const Key& key : keys) {
      const std::string_view type = key.type;
      if (type.find("file") == type.npos && type.find("director") == type.npos && type != "program")
        continue;
      for (const std::string& path : key.texts())
        if (path.starts_with('/') && ::access(path.c_str(), F_OK) != 0)
          findings.push_back(warn_of(table + key.name, path + " does not exist on this host",
                                     "create it on the hosts that use it"));
    }
  };
  for (const KeyTable& table : config.tables())
    examine(table.name.empty() ? "" : table.name + ".", table.keys);
  for (auto& [name, registry] : config.registries)
    examine(formatted("registries.\"{}\".", name), registry.keys());
  const auto mounts = site_mounts(config.site, UsersMounts::no);
  if (!mounts)
    findings.push_back({"mounts", Finding::Verdict::failed, mounts.error().message(),
                        "see MOUNTS in spank-container(7)"});
  for (const MountSpec& mount : mounts ? *mounts : std::vector<MountSpec>()) {
    const bool needs_source = mount.kind == MountSpec::Kind::bind && !mount.optional;
    if (needs_source && mount.source.starts_with('/') && ::access(mount.source.c_str(), F_OK) != 0)
      findings.push_back(warn_of(
          "mounts", mount.source + " does not exist on this host: containers there do not start",
          "create it, or add the flag nofail"));
  }
}

/// Warns of names in hooks_off that no built-in hook and no file has.
void find_unknown_hooks(std::vector<Finding>& findings, const Config& config) {
  std::set<std::string> known;
  for (const Hook* hook : builtin_hooks()) known.insert(hook->name);
  const auto files = read_hook_directory(site_directory() + "/hooks.d", 0);
  for (const HookFile& file : files ? *files : std::vector<HookFile>()) known.insert(file.stem);
  for (const std::string& name : config.site.hooks_off)
    if (!known.contains(name))
      findings.push_back(
          warn_of("hooks_off", "no hook " + in_quotes(name) + " on this host",
                  "srun --container-image=IMAGE --container-explain true names the hooks"));
}

/// Returns whether a rule of allowed_images may admit the repository for some user.
bool may_be_allowed(const Config& config, const ImageReference& image) {
  const auto& rules = config.site.allowed_images;
  const auto fits = [&](const std::string& text) {
    const auto rule = ImageRule::parse(text);
    return rule && rule->fits(image.registry + "/" + image.repository);
  };
  return rules.empty() || std::ranges::any_of(rules, fits);
}

/// Warns of images in the node's store that start by `before` and not by `after`.
void find_refused_images(std::vector<Finding>& findings, const Config& before,
                         const Config& after) {
  const auto store = open_store(SPC_STORE_DIR);
  if (!store) return;
  const auto images = list_images(store->get());
  std::set<std::string> by_registry, by_rule;
  for (const ListedImage& image : images ? *images : std::vector<ListedImage>()) {
    for (const StoredName& stored : image.all_names()) {
      const auto name = ImageReference::parse(stored.name, before.default_registry);
      if (!name || !before.check_registry(name->registry) || !may_be_allowed(before, *name))
        continue;
      if (!after.check_registry(name->registry))
        by_registry.insert(name->canonical());
      else if (!may_be_allowed(after, *name))
        by_rule.insert(name->canonical());
    }
  }
  const auto tell = [&](const char* key, const std::set<std::string>& refused) {
    if (!refused.empty())
      findings.push_back(warn_of(key,
                                 formatted("refuses {} of the images in this node's store: {}",
                                           refused.size(), joined(refused, ", ")),
                                 "allow them, or tell their users"));
  };
  tell("allowed_registries", by_registry);
  tell("allowed_images", by_rule);
}

/// Warns if the next pull evicts images because of a new limit.
void find_small_store(std::vector<Finding>& findings, const Config& config) {
  const auto state = state_of_store(SPC_STORE_DIR);
  const std::uint64_t limit = config.store.max_size;
  if (state && limit != 0 && state->layer_bytes > limit)
    findings.push_back(warn_of("store.max_size",
                               formatted("the layers of this node have {} bytes, {} allowed: "
                                         "the next pull evicts unused images",
                                         state->layer_bytes, limit),
                               "raise it, or expect pulls"));
}

/// Returns the configuration of the files. Appends a finding for each error, or for a valid file.
Config parse_texts(const ConfigTexts& texts, std::vector<Finding>& findings) {
  Config config;
  for (const auto& [path, text] : texts) {
    std::vector<Error> errors;
    const auto added = add_config(config, text, path, &errors);
    if (added) findings.push_back({"configuration", Finding::Verdict::ok, path + " is valid", ""});
    if (!added && errors.empty()) errors.push_back(added.error());  // not TOML
    for (const Error& error : errors)
      findings.push_back({"configuration", Finding::Verdict::failed,
                          error.what().substr(error.what().find('"')),
                          error.advice().empty() ? "see spank-container.conf(5)" : error.advice()});
  }
  return config;
}

void print_change(const Change& change) {
  const auto shown = [](const std::vector<std::string>& texts) {
    return texts.empty() ? "(none)" : printable(joined(texts, ", "));
  };
  std::puts(formatted("change  {}: {} -> {} (for: {})", change.key, shown(change.from),
                      shown(change.to), change.matters_for)
                .c_str());
}

void report_new_config(const std::vector<Finding>& findings, const std::vector<Change>& changes,
                       bool as_json) {
  if (!as_json) {
    report(findings, false);
    for (const Change& change : changes) print_change(change);
    if (changes.empty() && worst_of(findings) != Finding::Verdict::failed)
      std::puts("no key changes its value");
    return;
  }
  Json keys = Json::array();
  const auto texts = [](const std::vector<std::string>& all) {
    return Json::array(Json::Array(all.begin(), all.end()));
  };
  for (const Change& one : changes)
    keys.push_back({{"key", one.key},
                    {"from", texts(one.from)},
                    {"to", texts(one.to)},
                    {"matters_for", one.matters_for}});
  std::puts(Json{{"checks", in_json(findings)}, {"changes", keys}}.str(2).c_str());
}

/// Checks the file before it is installed. Returns the exit status, as for --node.
Result<int> examine_new_config(const std::string& path, bool as_json) {
  const ConfigTexts texts = SPC_TRY(texts_after_installing(path));
  std::vector<Finding> findings;
  Config after = parse_texts(texts, findings);
  if (worst_of(findings) == Finding::Verdict::failed) {
    report_new_config(findings, {}, as_json);
    return 1;
  }
  const auto in_force = read_config(SPC_CONFIG_FILE, 0);
  const Config before = in_force ? *in_force : Config();
  if (!in_force)
    findings.push_back(warn_of(SPC_CONFIG_FILE, in_force.error().message(),
                               "changes are those from the defaults"));
  find_missing_paths(findings, after);
  find_unknown_hooks(findings, after);
  find_refused_images(findings, before, after);
  find_small_store(findings, after);
  report_new_config(findings, changes_between(before, after), as_json);
  constexpr int kStatus[] = {0, 3, 1};  // ok, warning, failed
  return kStatus[static_cast<std::size_t>(worst_of(findings))];
}

}  // namespace

Result<int> run_doctor(const Arguments& arguments) {
  const bool merges = arguments.has("merge");
  const int asked =
      static_cast<int>(!arguments.words.empty() || merges) +
      static_cast<int>(arguments.has("job")) + static_cast<int>(arguments.has("registry")) +
      static_cast<int>(arguments.has("node")) + static_cast<int>(arguments.has("report")) +
      static_cast<int>(arguments.has("config"));
  if (asked > 1) {
    return Error(ErrorKind::invalid,
                 "doctor takes only one of FILE, --config, --job, --merge, --node, --registry and "
                 "--report")
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
  if (arguments.has("nodes") && !merges) {
    return Error(ErrorKind::invalid, "doctor --nodes belongs to --merge")
        .hint("scontainer doctor --help");
  }
  if (merges) {
    const std::string path = arguments.words.empty() ? "-" : arguments.words[0];
    return merge_nodes(path, arguments.value("nodes"), as_json);
  }
  if (arguments.has("report")) {
    print_report(arguments.has("log") ? arguments.value("log") : kSlurmdLog);
    return 0;
  }
  if (arguments.has("config")) return examine_new_config(arguments.value("config"), as_json);
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

}  // namespace spc::tool
