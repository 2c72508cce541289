#include "doctor/diagnose.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

namespace spc {

namespace {

constexpr std::size_t kLongestLine = 8192;
constexpr std::size_t kOverlap = 1024;
constexpr std::size_t kShown = 300;
constexpr std::size_t kMostOwn = 20;

// --- one line ---

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

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_in_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// Returns whether the text has `word` alone, and not as a value such as NCCL_DEBUG=INFO.
bool has_word(std::string_view text, std::string_view word) {
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; ++at) {
    const char before = at == 0 ? ' ' : text[at - 1];
    const std::size_t end = at + word.size();
    if (!is_in_word(before) && before != '=' && (end == text.size() || !is_in_word(text[end])))
      return true;
  }
  return false;
}

/// Returns whether a successful job prints such lines as well: reports below a warning, and errors
/// that the program itself copes with.
bool is_in_passing(std::string_view text) {
  static const std::vector<Pattern> kCopes{
      {"etrying"},     {"etry attempt"},  {"ill retry"},
      {"alling back"}, {"rying another"}, {"rying the next"},
      {"(ignored)"},   {": ignored"},     {"Could not load dynamic library"},  // TensorFlow
      {"[W", ".cpp:"},                                                         // PyTorch
      {"<info>"},      {"<debug>"},       {"UCX  DIAG"}};
  const auto has = [&](const Pattern& pattern) { return found(pattern, text).has_value(); };
  if (std::ranges::any_of(kCopes, has)) return true;
  return has_word(text, "INFO") || has_word(text, "DEBUG") || has_word(text, "TRACE");
}

/// Returns the task of `3: ` (srun --label) and `[rank3]:` (PyTorch) at the begin of a line.
std::string task_of(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const bool is_rank = line.starts_with("[rank");
  if (is_rank) line.remove_prefix(5);
  const auto end =
      static_cast<std::size_t>(std::ranges::find_if_not(line, is_digit) - line.begin());
  const bool is_label = line.substr(end).starts_with(is_rank ? "]:" : ": ");
  return end > 0 && end <= 8 && is_label ? std::string(line.substr(0, end)) : std::string();
}

/// Returns the part of `line` with the pattern.
std::string shown(std::string_view line, Span span) {
  std::size_t begin = 0;
  if (line.size() > kShown && span.end > kShown)
    begin = span.end - span.begin >= kShown ? span.begin : span.end - kShown;
  std::string text(line.substr(begin, kShown));
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = c == '\t' ? ' ' : '?';
  }
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? text : text.substr(first);
}

// --- all patterns at once ---

struct Candidate {
  std::size_t failure;
  const Pattern* pattern;
  std::string_view anchor;
};

/// Finds the patterns in a line by their anchors, which are their longest strings: one look into a
/// table for each character, however many patterns there are.
class Anchors {
 public:
  explicit Anchors(const std::vector<const Failure*>& failures) {
    const auto shorter = [](std::string_view a, std::string_view b) { return a.size() < b.size(); };
    for (std::size_t i = 0; i < failures.size(); ++i) {
      for (const Pattern& pattern : failures[i]->patterns) {
        const std::string_view anchor = *std::ranges::max_element(pattern, shorter);
        std::uint16_t& bucket = buckets_[hash_of_four(anchor.data())];
        if (bucket == 0) {
          candidates_.emplace_back();
          bucket = static_cast<std::uint16_t>(candidates_.size());
        }
        candidates_[bucket - 1U].push_back({i, &pattern, anchor});
      }
    }
  }

  /// Calls `use` with each candidate whose anchor is in the line.
  template <typename Use>
  void each_in(std::string_view line, const Use& use) const {
    for (std::size_t at = 0; at + 4 <= line.size(); ++at) {
      const std::uint16_t bucket = buckets_[hash_of_four(line.data() + at)];
      if (bucket == 0) continue;
      for (const Candidate& candidate : candidates_[bucket - 1U]) {
        if (line.substr(at).starts_with(candidate.anchor)) use(candidate);
      }
    }
  }

 private:
  static std::size_t hash_of_four(const char* text) {
    std::uint32_t four = 0;
    std::memcpy(&four, text, sizeof four);
    return four * 2654435761U >> 16;
  }

  std::array<std::uint16_t, 1 << 16> buckets_{};  // 0: none begins so; otherwise 1 + the index
  std::vector<std::vector<Candidate>> candidates_;
};

// --- messages of this project ---

/// A message of the form `spank-container: CAUSE (hint: CURE)`.
struct OwnMessage {
  std::string_view cause, cure;
  Span span;
};

std::optional<OwnMessage> own_message(std::string_view line) {
  for (const std::string_view prefix : {"spank-container: ", "pyxis: ", "scontainer: "}) {
    const std::size_t at = line.find(prefix);
    const char before = at == 0 || at == std::string_view::npos ? ' ' : line[at - 1];
    if (at == std::string_view::npos || is_in_word(before) || before == '/' || before == '-')
      continue;
    std::string_view text = line.substr(at + prefix.size());
    constexpr std::string_view kHint = " (hint: ";
    const std::size_t hint = text.rfind(kHint), end = text.find_last_not_of(' ');
    if (text.starts_with("warning: ") || hint == std::string_view::npos || text[end] != ')')
      return std::nullopt;
    return OwnMessage{text.substr(0, hint),
                      text.substr(hint + kHint.size(), end - hint - kHint.size()),
                      {at, at + prefix.size() + hint}};
  }
  return std::nullopt;
}

// Where the hint is not enough, or missing.
const std::vector<Failure> kOwnFailures{
    {.id = "mount-tilde",
     .says = "~ is not expanded in this option",
     .patterns = {{"did you mean \"./~"}},
     .cause = "the shell expands ~ only at the begin of a word, and #SBATCH lines expand nothing",
     .cure = "--container-mounts=$HOME/data:/data on the command line, the whole path in #SBATCH "
             "lines; the home directory: --container-mount-home"},
    {.id = "mount-variable",
     .says = "a variable is not expanded in this option",
     .patterns = {{"did you mean \"./$"}},
     .cause = "#SBATCH lines and single quotes expand no variables",
     .cure = "write the whole path, or give the option to srun in the script: srun "
             "--container-mounts=\"$HOME/data:/data\"; or export SCONTAINER_MOUNTS=..."},
    {.id = "mount-docker",
     .says = "a flag of docker behind a comma",
     .patterns = {{"did you mean \"./ro\""},
                  {"did you mean \"./rw\""},
                  {"did you mean \"./z\""},
                  {"did you mean \"./Z\""},
                  {"did you mean \"./U\""},
                  {"did you mean \"./rslave\""},
                  {"did you mean \"./rshared\""},
                  {"did you mean \"./rprivate\""},
                  {"did you mean \"./cached\""},
                  {"did you mean \"./delegated\""},
                  {"did you mean \"./consistent\""}},
     .cause =
         "a comma begins the next mount; flags are joined by +, and SELinux flags are not needed",
     .cure = "--container-mounts=SRC:DST:ro+noexec,SRC2:DST2"},
    {.id = "mount-separator",
     .says = "mounts are separated by something else than a comma",
     .patterns = {{"unknown flag \"/"},
                  {"unknown flag \"./"},
                  {"unknown flag", "\";\""},
                  {"unknown flag", ";/"}},
     .cause = "the text behind the second colon was taken for flags",
     .cure = "--container-mounts=SRC:DST,SRC2:DST2"},
    {.id = "image-library",
     .says = "images of library:// and shub:// are files of Apptainer",
     .patterns = {{"unknown scheme \"library:"}, {"unknown scheme \"shub:"}},
     .cause = "these servers give SIF files, and are not registries",
     .cure = "apptainer pull app.sif library://NAME on the login host, then "
             "--container-image=./app.sif; or the same image in a registry"},
    {.id = "image-command",
     .says = "a command was taken for an image",
     .patterns = {{"image \"docker.io/library/sh:"},
                  {"image \"docker.io/library/bash:latest"},
                  {"image \"docker.io/library/env:"},
                  {"image \"docker.io/library/python3:"},
                  {"image \"docker.io/library/sleep:"},
                  {"image \"docker.io/library/true:"}},
     .cause = "the option before took the image as its value: docker and Apptainer have other "
              "options with this letter",
     .cure = "scontainer run [OPTIONS] IMAGE COMMAND; -e takes NAME=VALUE; scontainer run --help "
             "lists the options"},
    {.id = "named-elsewhere",
     .says = "there is no container with this name on the node",
     .patterns = {{"does not exist, and --container-image is not set"}},
     .cause =
         "a named container is kept on the node where it was made, until it is removed or expires",
     .cure = "scontainer containers shows the node: srun -w NODE --container-name=NAME; or give "
             "--container-image=IMAGE as well, to make it anew"},
    {.id = "container-name",
     .says = "the container of this name is not as the option needs it",
     .patterns = {{"--container-name: ", "flag was passed"},
                  {"--container-name: flag must be"},
                  {"--container-name: empty name"}},
     .cause = ":create wants no container of this name, :exec a running one, :no_exec and :replace "
              "one that does not run",
     .cure =
         "scontainer containers lists them; --container-name=NAME without a flag starts or joins "
         "it, as needed"},
    {.id = "mount-source",
     .says = "the source of a mount does not exist on the node",
     .patterns = {{"source path does not exist: "}},
     .cause = "the path is misspelt, or exists on the host of submission only",
     .cure = "srun -w NODE ls -ld PATH shows it; use a directory of a shared file system, or "
             "--container-mounts=SRC:DST:nofail"},
    {.id = "workdir",
     .says = "the work directory does not exist in the container",
     .patterns = {{"couldn't chdir to"}},
     .cause =
         "--container-workdir names a directory that the image does not have and no mount adds",
     .cure = "--container-mounts=$PWD --container-workdir=$PWD",
     .general = true},
    {.id = "options-contradict",
     .says = "two options or values contradict each other",
     .patterns = {{"--container-", "specified multiple times"},
                  {"--container-", "were specified"},
                  {"--container-", "cannot be combined"}},
     .cause = "the second may be in #SBATCH lines, in SCONTAINER_* or PYXIS_* variables, or in "
              "options of an srun around this one",
     .cure = "leave one of them away; env | grep -E \"^(SCONTAINER|PYXIS)_\" and grep container "
             "SCRIPT show the others"},
    {.id = "option-empty",
     .says = "an option has no value",
     .patterns = {{"--container-", ": argument required"}, {"--container-", "empty name"}},
     .cause = "usually a variable in the command is not set: --container-image=$IMAGE",
     .cure = "echo \"$IMAGE\" before srun; set -u in the job script stops at such variables"},
    {.id = "image-name",
     .says = "the name of the image is not valid",
     .patterns = {{"--container-image: image \""}, {"--container-image: image: "}},
     .cause = "a name has the form [USER@][REGISTRY[:PORT]/]NAME[:TAG][@sha256:64 DIGITS], in "
              "lower case",
     .cure = "copy the name from docker pull NAME, without docker pull; a file needs a path: "
             "./NAME.sqsh",
     .general = true},
    {.id = "site-config",
     .says = "the site's configuration is not valid",
     .patterns = {{"configuration \"/etc/spank-container/"}},
     .cause = "config.toml has an error: containers start only where the last valid one is kept",
     .cure =
         "tell the administrator the line; scontainer doctor --node on the node checks the file"},
    {.id = "save-directory",
     .says = "the container is to be saved to a directory",
     .patterns = {{"--container-save", "target is a directory"}},
     .cause = "the option names the file",
     .cure = "--container-save=DIR/NAME.sqsh"},
    {.id = "mount-root",
     .says = "a mount would cover or remove the root of the container",
     .patterns = {{"cannot mount on the container's root"},
                  {"cannot unmount the container's root"},
                  {"the target leaves the container's root"}},
     .cause = "the target of a mount is a path in the container, other than /",
     .cure = "--container-mounts=SRC:/mnt"},
    {.id = "helper-ended",
     .says = "a process that sets the container up was killed",
     .patterns = {{"spank-container: ", "exited unexpectedly"}, {"pyxis: ", "exited unexpectedly"}},
     .cause = "usually the memory of the job is too small, or the job was cancelled meanwhile",
     .cure = "srun --mem=2G or more; otherwise tell the administrator the line and the time",
     .look = "sacct -j JOB -o JobID,State,MaxRSS; slurmd.log of the node",
     .told_by = {"host-memory", "cancelled"},
     .general = true},
    {.id = "own-message",
     .says = "a message of spank-container",
     .patterns = {},
     .cause = "as the message says",
     .cure = "as the hint of the message says"},
};
const Failure& kOwnMessage = kOwnFailures.back();

}  // namespace

// --- diagnose ---

const std::vector<const Failure*>& known_failures() {
  static const std::vector<const Failure*> kAll = [] {
    std::vector<const Failure*> all;
    for (const auto* table : {&gpu_failures(), &program_failures(), &kOwnFailures}) {
      for (const Failure& failure : *table) all.push_back(&failure);
    }
    return all;
  }();
  return kAll;
}

Diagnosis::Diagnosis() {
  for (const Failure* failure : known_failures()) {
    Recognised none;
    none.failure = failure;
    none.cause = failure->cause;
    none.cure = failure->cure;
    seen_.push_back({.what = std::move(none)});
  }
}

void Diagnosis::note(Seen& seen, std::string_view line, std::size_t begin, std::size_t end) {
  if (seen.last_line == lines_) return;
  seen.last_line = lines_;
  if (seen.what.times++ > 0) return;
  seen.what.line = lines_;
  seen.what.text = shown(line, {begin, end});
  seen.what.task = task_;
}

bool Diagnosis::note_own(std::string_view line) {
  const auto own = own_message(line);
  if (!own) return false;
  const std::string cause = shown(own->cause, {0, 0});
  const std::size_t others = known_failures().size();
  const auto same = std::find_if(seen_.begin() + static_cast<std::ptrdiff_t>(others), seen_.end(),
                                 [&](const Seen& seen) { return seen.what.cause == cause; });
  if (same != seen_.end()) {
    note(*same, line, own->span.begin, own->span.end);
  } else if (seen_.size() < others + kMostOwn) {
    Recognised one;
    one.failure = &kOwnMessage;
    one.cause = cause;
    one.cure = shown(own->cure, {0, 0});
    seen_.push_back({.what = std::move(one), .counts = true});
    note(seen_.back(), line, own->span.begin, own->span.end);
  }
  return true;
}

void Diagnosis::examine(std::string_view text) {
  static const Anchors kAnchors(known_failures());
  if (!labelled_) task_ = task_of(text);
  labelled_ = true;
  std::vector<std::pair<std::size_t, Span>> matches;
  std::vector<const Pattern*> examined;
  kAnchors.each_in(text, [&](const Candidate& candidate) {
    if (std::ranges::count(examined, candidate.pattern) > 0) return;
    examined.push_back(candidate.pattern);
    if (const auto span = found(*candidate.pattern, text))
      matches.emplace_back(candidate.failure, *span);
  });
  const auto is_general = [&](const auto& match) {
    return seen_[match.first].what.failure->general;
  };
  const bool is_own = std::ranges::all_of(matches, is_general) && note_own(text);
  const bool is_special = is_own || !std::ranges::all_of(matches, is_general);
  const bool in_passing = !matches.empty() && is_in_passing(text);
  for (const auto& match : matches) {
    if (is_special && is_general(match)) continue;
    Seen& seen = seen_[match.first];
    seen.counts = seen.counts || !in_passing;
    note(seen, text, match.second.begin, match.second.end);
  }
}

void Diagnosis::append(std::string_view text) {
  while (!text.empty()) {
    const std::string_view fits = text.substr(0, kLongestLine - line_.size());
    const std::size_t plain =
        escape_ == Escape::none ? std::min(fits.find('\x1b'), fits.size()) : 0;
    line_.append(text.substr(0, plain));
    text.remove_prefix(plain);
    if (line_.size() == kLongestLine) {
      examine(line_);
      line_.erase(0, line_.size() - kOverlap);
    }
    if (text.empty() || (escape_ == Escape::none && text.front() != '\x1b')) continue;
    skip_escape(text.front());
    text.remove_prefix(1);
  }
}

void Diagnosis::skip_escape(char c) {
  switch (escape_) {
    case Escape::none: escape_ = Escape::begun; break;
    case Escape::begun:
      escape_ = c == '[' ? Escape::control : c == ']' ? Escape::title : Escape::none;
      break;
    case Escape::control:
      if (c >= '@' && c <= '~') escape_ = Escape::none;
      break;
    case Escape::title:
      if (c == '\a' || c == '\\') escape_ = Escape::none;
      break;
  }
}

void Diagnosis::read(std::string_view piece) {
  while (!piece.empty()) {
    if (line_begins_) {
      ++lines_;
      line_begins_ = false;
      labelled_ = false;
    }
    const std::size_t end = std::min(piece.find_first_of("\r\n"), piece.size());
    append(piece.substr(0, end));
    if (end == piece.size()) return;
    examine(line_);
    line_.clear();
    escape_ = Escape::none;
    line_begins_ = piece[end] == '\n';  // a redrawn progress bar counts as one line
    piece.remove_prefix(end + 1);
  }
}

std::vector<Recognised> Diagnosis::findings() {
  if (!line_.empty()) examine(line_);
  const auto counts = [](const Seen& seen) { return seen.counts && seen.what.times > 0; };
  if (std::ranges::none_of(seen_, counts)) return {};
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
