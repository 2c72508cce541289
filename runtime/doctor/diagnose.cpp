#include "doctor/diagnose.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

namespace spc {
namespace {

constexpr std::size_t kLongestLine = 8192;
constexpr std::size_t kOverlap = 1024;
constexpr std::size_t kShown = 300;

struct Span {
  std::size_t begin, end;
};

std::optional<Span> found(const Pattern& pattern, std::string_view text) {
  Span span{std::string_view::npos, 0};
  for (const std::string_view piece : pattern) {
    const std::size_t at = text.find(piece, span.end);
    if (at == std::string_view::npos) return std::nullopt;
    span.begin = std::min(span.begin, at);
    span.end = at + piece.size();
  }
  return span;
}

/// What srun --label put in front of a line: digits, colon, blank.
std::string task_of(std::string_view line) {
  const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
  std::size_t end = begin;
  while (end < line.size() && end < begin + 8 && line[end] >= '0' && line[end] <= '9') ++end;
  const bool is_label = end > begin && line.substr(end).starts_with(": ");
  return is_label ? std::string(line.substr(begin, end - begin)) : std::string();
}

/// The part of `line` that has the words in it, without what a terminal would obey.
std::string shown(std::string_view line, Span span) {
  std::size_t begin = 0;
  if (line.size() > kShown && span.end > kShown)
    begin = span.end - span.begin >= kShown ? span.begin : span.end - kShown;
  std::string text(line.substr(begin, kShown));
  for (std::size_t at = 0; (at = text.find("\x1b[", at)) != std::string::npos;) {  // colours
    const std::size_t end = text.find_first_not_of("0123456789;", at + 2);
    text.erase(at, end == std::string::npos ? std::string::npos : end + 1 - at);
  }
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = c == '\t' ? ' ' : '?';
  }
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? text : text.substr(first);
}

}  // namespace

const std::vector<const Failure*>& known_failures() {
  static const std::vector<const Failure*> kAll = [] {
    std::vector<const Failure*> all;
    for (const auto* list :
         {&gpu_failures(), &nccl_failures(), &mpi_failures(), &fabric_failures()}) {
      for (const Failure& failure : *list) all.push_back(&failure);
    }
    return all;
  }();
  return kAll;
}

Diagnosis::Diagnosis() {
  for (const Failure* failure : known_failures()) seen_.push_back({.what = {.failure = failure}});
}

void Diagnosis::examine(std::string_view text) {
  if (!labelled_) task_ = task_of(text);
  labelled_ = true;
  for (Seen& seen : seen_) {
    if (seen.last_line == lines_) continue;
    for (const Pattern& pattern : seen.what.failure->patterns) {
      const auto span = found(pattern, text);
      if (!span) continue;
      seen.last_line = lines_;
      if (seen.what.times++ == 0) {
        seen.what.line = lines_;
        seen.what.text = shown(text, *span);
        seen.what.task = task_;
      }
      break;
    }
  }
}

void Diagnosis::read(std::string_view piece) {
  while (!piece.empty()) {
    const std::size_t end = std::min(piece.find_first_of("\r\n"), piece.size());
    const std::size_t taken = std::min(end, kLongestLine - line_.size());
    if (line_begins_) {
      ++lines_;
      line_begins_ = false;
      labelled_ = false;
    }
    line_.append(piece.substr(0, taken));
    const bool cut = taken < end;
    if (cut || end < piece.size()) {
      examine(line_);
      if (cut) {
        line_.erase(0, line_.size() - kOverlap);
      } else {
        line_.clear();
        line_begins_ = piece[end] == '\n';  // what a progress bar redraws counts as one line
      }
    }
    piece.remove_prefix(cut ? taken : std::min(end + 1, piece.size()));
  }
}

std::vector<Recognised> Diagnosis::findings() {
  if (!line_.empty()) examine(line_);
  std::vector<Recognised> causes;
  std::vector<Recognised> consequences;
  const auto was_seen = [&](const char* id) {
    return std::any_of(seen_.begin(), seen_.end(), [id](const Seen& seen) {
      return seen.what.times > 0 && std::strcmp(seen.what.failure->id, id) == 0;
    });
  };
  for (const Seen& seen : seen_) {
    if (seen.what.times == 0) continue;
    Recognised one = seen.what;
    const auto& told_by = one.failure->told_by;
    one.consequence = std::any_of(told_by.begin(), told_by.end(), was_seen);
    (one.consequence ? consequences : causes).push_back(std::move(one));
  }
  const auto earlier = [](const Recognised& a, const Recognised& b) { return a.line < b.line; };
  std::stable_sort(causes.begin(), causes.end(), earlier);
  std::stable_sort(consequences.begin(), consequences.end(), earlier);
  causes.insert(causes.end(), std::make_move_iterator(consequences.begin()),
                std::make_move_iterator(consequences.end()));
  return causes;
}

std::vector<Recognised> diagnose(std::string_view text) {
  Diagnosis diagnosis;
  diagnosis.read(text);
  return diagnosis.findings();
}

}  // namespace spc
