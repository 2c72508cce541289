// Work of srun, sbatch and salloc before a job is submitted: resolves tags and checks the request.

#include "launch/site/submit.hpp"

#include <fcntl.h>
#include <linux/keyctl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <ctime>
#include <string>
#include <vector>

#include "base/format.hpp"
#include "base/process/own_program.hpp"
#include "base/process/supervised.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "protocol/submit.hpp"
#include "reference/location.hpp"

namespace spc {

// --- variables ---

namespace {

std::string in_capitals(std::string_view text) {
  std::string capitals(text);
  for (char& c : capitals) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return capitals;
}

/// Returns the twin of an option that is nearest to the text and at most `most` letters off; empty
/// if there is none.
std::string_view nearest_twin(std::string_view typed, std::size_t most) {
  std::string_view nearest;
  for (const ContainerOption& option : container_options()) {
    if (option.twin == nullptr) continue;
    const std::size_t off = letters_between(typed, option.twin);
    if (off > most) continue;
    nearest = option.twin;
    if (off == 0) break;
    most = off - 1;
  }
  return nearest;
}

/// Returns the variable that is meant by one that no program reads; empty if none is near.
std::string meant_variable(std::string_view name) {
  // Beginnings that users of Slurm and pyxis write, and ours.
  constexpr std::pair<std::string_view, std::string_view> kBegins[] = {
      {"SCONTAINER_", "SCONTAINER_"},      {"PYXIS_CONTAINER_", "PYXIS_CONTAINER_"},
      {"SPANK_CONTAINER_", "SCONTAINER_"}, {"SBATCH_CONTAINER_", "SCONTAINER_"},
      {"SRUN_CONTAINER_", "SCONTAINER_"},  {"SALLOC_CONTAINER_", "SCONTAINER_"},
      {"SLURM_CONTAINER_", "SCONTAINER_"}, {"SCONTAINER_CONTAINER_", "SCONTAINER_"},
      {"PYXIS_", "PYXIS_CONTAINER_"}};
  constexpr std::string_view kSet[] = {"NAME", "IMAGE_NAME", "IMAGE_DIGEST", "DIGEST"};
  const std::string typed = in_capitals(name);
  for (const auto& [begin, ours] : kBegins) {
    if (!typed.starts_with(begin)) continue;
    const auto rest = std::string_view(typed).substr(begin.size());
    const bool is_set =
        begin.starts_with("SCONTAINER_") && std::ranges::find(kSet, rest) != std::end(kSet);
    if (is_set) return {};
    const auto twin = nearest_twin(rest, begin == "PYXIS_" ? 0 : rest.size() < 5 ? 1 : 2);
    if (!twin.empty()) return std::string(ours).append(twin);
  }
  const auto end = std::min(typed.find('_'), typed.size() - 1);
  const bool is_near = typed[0] == 'S' && letters_between(typed.substr(0, end), "SCONTAINER") <= 2;
  const auto twin = is_near ? nearest_twin(std::string_view(typed).substr(end + 1), 1) : "";
  return twin.empty() ? "" : std::string("SCONTAINER_").append(twin);
}

}  // namespace

std::vector<std::string> misspelt_variables(const char* const* environment) {
  std::vector<std::string> lines;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    std::string_view name = *environment;
    name = name.substr(0, name.find('='));
    const bool may_be = name.size() > 7 && std::string_view("SsPp").find(name[0]) != name.npos;
    const std::string meant = may_be ? meant_variable(name) : "";
    if (meant.empty() || meant == name) continue;
    lines.push_back(formatted("the variable {} has no effect (hint: did you mean {}?)",
                              printable(name), meant));
  }
  return lines;
}

// --- tag memory ---

namespace {

constexpr char kKeyType[] = "user";
constexpr char kKeyName[] = "spank-container tags";
constexpr std::size_t kMostText =
    4000;  // bytes, of the 20,000 that the kernel allows for all keys of a user

/// Links the user's keyring to a keyring of this process: the possessor of a keyring may read its
/// keys.
bool possess_keyring() {
  return ::syscall(SYS_keyctl, KEYCTL_LINK, KEY_SPEC_USER_KEYRING, KEY_SPEC_PROCESS_KEYRING) == 0;
}

std::string read_key() {
  const long key =
      ::syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_USER_KEYRING, kKeyType, kKeyName, 0);
  std::string text(kMostText, '\0');
  const long size =
      key < 0 ? -1 : ::syscall(SYS_keyctl, KEYCTL_READ, key, text.data(), text.size());
  text.resize(size < 0 || static_cast<std::size_t>(size) > text.size()
                  ? 0
                  : static_cast<std::size_t>(size));
  return text;
}

/// A lock between the user's sruns, which could otherwise overwrite each other's additions. It is
/// an abstract socket name, which one process can hold at a time and which the kernel releases with
/// the process. Another user may hold it, so the wait is short.
class TurnToWrite {
 public:
  TurnToWrite() : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    const std::string name = std::string(kKeyName) + " of " + std::to_string(::geteuid());
    const std::size_t size = name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
    constexpr int kPatience = 100;  // milliseconds
    for (int i = 0;
         ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 &&
         i < kPatience;
         ++i) {
      ::poll(nullptr, 0, 1);
    }
  }

 private:
  UniqueFd socket_;
};

}  // namespace

std::string RememberedTag::str() const {
  return std::to_string(asked_at) + " " + std::to_string(tag_ttl) + " " + std::to_string(job_ttl) +
         " " + answer;
}

std::optional<RememberedTag> RememberedTag::parse(const std::string& text) {
  const auto words = split(text, ' ');
  RememberedTag tag;
  if (words.size() != 4 || !read_number(words[0], tag.asked_at) ||
      !read_number(words[1], tag.tag_ttl) || !read_number(words[2], tag.job_ttl)) {
    return std::nullopt;
  }
  tag.answer = words[3];
  return tag;
}

std::optional<RememberedTag> TagMemory::find(const std::string& image, std::int64_t now) const {
  for (const Line& line : lines_) {
    if (line.image == image && line.until > now) return RememberedTag::parse(line.tag);
  }
  return std::nullopt;
}

void TagMemory::add(const std::string& image, const RememberedTag& tag, std::int64_t now,
                    std::int64_t until) {
  if (image.find_first_of(" \n") != std::string::npos) return;
  const auto known = find(image, now);
  if (known && known->asked_at > tag.asked_at)
    return;  // from an srun that began later and was faster
  std::erase_if(lines_, [&](const Line& line) { return line.image == image || line.until <= now; });
  lines_.insert(lines_.begin(), {.until = until, .image = image, .tag = tag.str()});
}

std::int64_t TagMemory::until() const {
  std::int64_t last = 0;
  for (const Line& line : lines_) last = std::max(last, line.until);
  return last;
}

std::string TagMemory::str(std::size_t most) const {
  std::string text;
  for (const Line& line : lines_) {
    const std::string next = std::to_string(line.until) + " " + line.image + " " + line.tag + "\n";
    if (text.size() + next.size() > most) break;
    text += next;
  }
  return text;
}

TagMemory TagMemory::parse(const std::string& text) {
  TagMemory memory;
  for (const auto& words : split(text, '\n')) {
    Line line;
    const auto first = words.find(' ');
    const auto second = first == std::string::npos ? first : words.find(' ', first + 1);
    if (second == std::string::npos || !read_number(words.substr(0, first), line.until)) continue;
    line.image = words.substr(first + 1, second - first - 1);
    line.tag = words.substr(second + 1);
    memory.lines_.push_back(std::move(line));
  }
  return memory;
}

std::optional<RememberedTag> remembered_tag(const std::string& image) {
  if (!possess_keyring()) return std::nullopt;
  return TagMemory::parse(read_key()).find(image, ::time(nullptr));
}

void remember_tag(const std::string& image, const RememberedTag& tag, unsigned seconds) {
  if (seconds == 0 || !possess_keyring()) return;
  const TurnToWrite turn;
  const std::int64_t now = ::time(nullptr);
  auto memory = TagMemory::parse(read_key());
  memory.add(image, tag, now, now + seconds);
  const std::string text = memory.str(kMostText);
  if (text.empty()) return;
  const long key =
      ::syscall(SYS_add_key, kKeyType, kKeyName, text.data(), text.size(), KEY_SPEC_USER_KEYRING);
  if (key >= 0)
    ::syscall(SYS_keyctl, KEYCTL_SET_TIMEOUT, key, static_cast<unsigned>(memory.until() - now));
}

// --- tag question ---

namespace {

constexpr std::chrono::seconds kStale{30};
constexpr unsigned kForgotten =
    600;  // seconds without queries to a registry that has not answered in time
constexpr std::int64_t kLongest = 86400;
constexpr std::size_t kMostSaid = 1000;

/// Returns whether srun may ask. `import resolve` decides by all of config.toml; this check avoids
/// starting it in vain.
bool may_ask(const LaunchRequest& request) {
  if (request.image.empty() || ::geteuid() == 0) return false;
  const auto config = read_valid_config(SPC_CONFIG_FILE);
  if (!config) return false;  // the nodes have their own files
  const auto image = ImageLocation::parse(request.image, config->default_registry);
  if (!image || image->kind != ImageLocation::Kind::registry || image->name.digest) return false;
  return config->site.importer.empty() && asks_anyway(request.pull.value_or(config->pull));
}

/// Returns whether the word is `REGISTRY/NAME:TAG@DIGEST`, without any ambiguity.
bool is_resolved_name(const std::string& word) {
  const auto is_plain = [](char c) { return c > ' ' && c < 0x7f; };
  return word.find("@sha256:") != std::string::npos && std::ranges::all_of(word, is_plain);
}

}  // namespace

std::optional<TagQuestion> TagQuestion::ask(const LaunchRequest& request) {
  if (!may_ask(request)) return std::nullopt;
  TagQuestion question(request.image, request.pull ? name_of(*request.pull) : "");
  const auto before =
      request.pull == PullPolicy::always ? std::nullopt : remembered_tag(request.image);
  if (before && before->answer.empty()) return std::nullopt;
  const TagAge age{.asked_at = before ? before->asked_at : 0, .now = question.asked_at_};
  if (before && age.is_fresh(before->tag_ttl, before->job_ttl, request.since)) {
    question.known_ = before->answer;
    return question;
  }
  return question.start() ? std::optional(std::move(question)) : std::nullopt;
}

bool TagQuestion::start() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  pipe_ = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  const std::string import = own_program("import");
  Program program{.path = import,
                  .arguments = {import, kResolve, image_, pull_},
                  .descriptors = {{theirs.get(), kResolveAnswer}}};
  program.group = Program::Group::own;
  program.signals = Program::Signals::defaults;
  auto started = Child::start(program);
  if (started) child_ = *std::move(started);
  return child_.running();
}

std::string TagQuestion::answer(std::chrono::milliseconds patience) {
  if (Clock::now() - began_ > kStale) {  // the job was queued meanwhile
    *this = TagQuestion(image_, pull_);
    if (!start()) return "";
  }
  if (!child_.running()) return known_;
  const auto limit = began_ + std::chrono::seconds(kResolveSeconds);
  const bool is_over = read_until(std::min(limit, Clock::now() + patience));
  child_.kill();
  const auto tag = understood();
  if (!tag.answer.empty()) {
    remember_tag(image_, tag,
                 static_cast<unsigned>(
                     std::clamp<std::int64_t>(std::max(tag.tag_ttl, tag.job_ttl), 0, kLongest)));
  } else if (!is_over) {
    remember_tag(image_, tag, kForgotten);
  }
  return tag.answer;
}

/// Reads until `end`. Returns whether the output is complete.
bool TagQuestion::read_until(Clock::time_point end) {
  while (!said_.ends_with('\n') && said_.size() < kMostSaid) {
    char some[kMostSaid];
    const ssize_t got = ::read(pipe_.get(), some, sizeof some);
    if (got > 0) said_.append(some, static_cast<std::size_t>(got));
    if (got > 0) continue;
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) return true;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    pollfd watched{pipe_.get(), POLLIN, 0};
    ::poll(&watched, 1, static_cast<int>(left));
  }
  return true;
}

RememberedTag TagQuestion::understood() const {
  const RememberedTag nothing{.asked_at = asked_at_, .tag_ttl = 0, .job_ttl = 0, .answer = {}};
  if (!said_.ends_with('\n')) return nothing;
  const auto tag =
      RememberedTag::parse(std::to_string(asked_at_) + " " + said_.substr(0, said_.size() - 1));
  return tag && is_resolved_name(tag->answer) ? *tag : nothing;
}

void TagQuestions::ask(const LaunchRequest& request) {
  if (auto question = TagQuestion::ask(request)) questions_.push_back(*std::move(question));
}

const char* TagQuestions::known(std::chrono::milliseconds patience) {
  for (TagQuestion& question : questions_) {
    const std::string answer = question.answer(patience);
    if (!answer.empty()) known_ += (known_.empty() ? "" : " ") + answer;
  }
  questions_.clear();
  return known_.c_str();
}

// --- submit check ---

namespace {

constexpr std::chrono::seconds kPatience{
    12};  // seconds; the program itself limits its queries to kSubmitSeconds
constexpr std::size_t kMostAnswer = 128 << 10;

std::vector<std::string> words_for(const LaunchRequest& request, const Destination& destination) {
  std::vector<std::string> words{kSubmitCheck, without_secrets(request.image)};
  words.emplace_back(request.pull ? name_of(*request.pull) : "");
  words.emplace_back(request.platform ? request.platform->str() : "");
  words.push_back(destination.partitions);
  words.push_back(destination.constraint);
  words.insert(words.end(), request.features.begin(), request.features.end());
  return words;
}

/// Runs `scontainer WORDS`. Returns the text behind `what` in its output; empty if it has none.
Result<std::string> ask_tool(std::vector<std::string> words, const char* what,
                             std::vector<std::string>& warnings) {
  words.insert(words.begin(), SPC_TOOL);
  const auto ran =
      run_supervised({.path = SPC_TOOL, .arguments = std::move(words), .descriptors = {}}, "",
                     {.time = kPatience, .output = kMostAnswer}, [](std::string_view) {});
  auto lines = split(ran ? std::string_view(ran->output) : "", '\n');
  lines.pop_back();  // drop an incomplete last line
  std::string answer;
  for (std::string_view line : lines) {
    const auto takes = [&](std::string_view word) {
      if (!line.starts_with(word)) return false;
      line.remove_prefix(word.size());
      return true;
    };
    if (takes(kSubmitRefused)) return Error(ErrorKind::refused, printable(line));
    if (takes(kSubmitWarning)) warnings.push_back(printable(line));
    if (takes(what)) answer = printable(line);
  }
  return answer;
}

/// Starts the program in its own session and does not wait for it: its parent ends at once.
void start_pull(const std::string& program, const std::string& image) {
  const auto work = [&] {
    auto started = Child::start({.path = program,
                                 .arguments = {program, image},
                                 .descriptors = {},
                                 .death_signal = 0,
                                 .group = Program::Group::session,
                                 .signals = Program::Signals::defaults,
                                 .directory = "/"});
    if (started) started->release();
    return 0;
  };
  if (auto forked = Child::run(work, "start pull_at_submit")) forked->wait();
}

void pull_at_submission(const LaunchRequest& request, const Config& config) {
  const std::string& program = config.shared.pull_at_submit;
  if (program.empty() || !request.begins_job || !config.site.importer.empty()) return;
  if (request.pull.value_or(config.pull) == PullPolicy::never) return;
  const auto image = ImageLocation::parse(request.image, config.default_registry);
  if (image && image->kind == ImageLocation::Kind::registry)
    start_pull(program, image->name.canonical());
}

}  // namespace

Result<SubmitAnswer> check_at_submission(const LaunchRequest& request,
                                         const Destination& destination) {
  const auto config = read_valid_config(SPC_CONFIG_FILE);
  if (!config) return SubmitAnswer();
  SPC_TRY(config->check_request(request.features, request.image));
  SubmitAnswer answer;
  if (const std::string& error = config->site.config_error; !error.empty())
    answer.warnings.push_back(error);
  if (config->site.check_at_submit && ::access(SPC_TOOL, X_OK) == 0) {
    auto words = words_for(request, destination);
    answer.digest = SPC_TRY(ask_tool(std::move(words), kSubmitDigest, answer.warnings));
  }
  pull_at_submission(request, *config);
  return answer;
}

Result<ReadEnvironment> read_environment(const std::string& name) {
  ReadEnvironment answer;
  answer.record = SPC_TRY_DURING(
      "--environment", ask_tool({kReadEnvironment, name}, kSubmitEnvironment, answer.warnings));
  if (!answer.record.empty()) return answer;
  return Error(ErrorKind::unavailable,
               "--environment: " SPC_TOOL " did not read " + in_quotes(name))
      .hint("the administrator must install it on this host: package spank-container");
}

}  // namespace spc
