#include "launch/site/tag_question.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "base/process/own_program.hpp"
#include "image/reference/location.hpp"
#include "launch/policy/submit_rules.hpp"
#include "protocol/submit.hpp"

namespace spc {
namespace {

constexpr std::chrono::seconds kStale{30};
constexpr unsigned kForgotten =
    600;  // seconds: so long a registry is not asked that has not answered in time
constexpr std::int64_t kLongest = 86400;
constexpr std::size_t kMostSaid = 1000;

/// `import resolve` decides by all of config.toml; this spares the process.
bool may_ask(const LaunchRequest& request) {
  if (request.image.empty() || ::geteuid() == 0) return false;
  const auto rules = SubmitRules::read(SPC_CONFIG_FILE, ::geteuid());
  if (rules.known == SubmitRules::Known::none) return false;  // the nodes have files of their own
  const auto image = ImageLocation::parse(request.image, rules.default_registry);
  if (!image || image->kind != ImageLocation::Kind::registry || image->name.digest) return false;
  if (rules.known == SubmitRules::Known::some) return !request.pull || asks_anyway(*request.pull);
  return rules.importer.empty() && asks_anyway(request.pull.value_or(rules.pull));
}

/// `REGISTRY/NAME:TAG@DIGEST` and nothing that could be taken for anything else.
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
  if (Clock::now() - began_ > kStale) {  // the job was in the queue
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

/// Whether it says no more.
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

}  // namespace spc
