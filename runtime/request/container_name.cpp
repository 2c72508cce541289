#include "request/container_name.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/format.hpp"
#include "base/text.hpp"
#include "reference/reference.hpp"

namespace spc {

// --- container name ---

namespace {

constexpr std::size_t kLongest = 64;

struct UseWord {
  std::string_view word;
  ContainerName::Use use;
};
constexpr UseWord kUses[] = {
    {"auto", ContainerName::Use::automatic},  {"create", ContainerName::Use::create},
    {"exec", ContainerName::Use::exec},       {"no_exec", ContainerName::Use::no_exec},
    {"replace", ContainerName::Use::replace}, {"remove", ContainerName::Use::remove}};

bool may_be_in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

/// Parses a step number, including the names of steps that Slurm creates itself.
std::optional<std::uint32_t> step_number(std::string_view text) {
  if (text == "batch") return 0xfffffffb;
  if (text == "interactive") return 0xfffffffa;
  return parse_number(text);
}

}  // namespace

Result<ContainerName> ContainerName::parse(std::string_view text) {
  ContainerName name;
  const auto colon = text.find(':');
  name.text = text.substr(0, colon);
  if (colon != std::string_view::npos) {
    const auto* const found = std::ranges::find(kUses, text.substr(colon + 1), &UseWord::word);
    if (found == std::end(kUses)) {
      return Error(ErrorKind::invalid,
                   "--container-name: flag must be \"auto\", \"create\", \"exec\", \"no_exec\", "
                   "\"replace\" or \"remove\"");
    }
    name.use = found->use;
  }
  if (name.text.empty()) return Error(ErrorKind::invalid, "--container-name: empty name");
  if (name.text.size() > kLongest || !std::ranges::all_of(name.text, may_be_in_name)) {
    return Error(ErrorKind::invalid,
                 formatted("--container-name: {} is not a valid name", in_quotes(name.text)))
        .hint("up to 64 letters, digits, dots, dashes and underscores");
  }
  return name;
}

Digest ContainerName::key() const { return name_key(text); }

std::optional<Digest> ContainerName::step_key() const {
  const auto dot = text.find('.');
  if (dot == std::string::npos) return std::nullopt;
  const auto job = parse_number(std::string_view(text).substr(0, dot));
  const auto step = step_number(std::string_view(text).substr(dot + 1));
  if (!job || !step) return std::nullopt;
  Digest key;
  std::memcpy(key.bytes.data(), &*job, sizeof *job);
  std::memcpy(key.bytes.data() + sizeof *job, &*step, sizeof *step);
  return key;
}

// --- save path ---

namespace {

using Environment = std::map<std::string, std::string>;

std::string value(const Environment& job, const char* name, const char* otherwise) {
  const auto found = job.find(name);
  return found == job.end() || found->second.empty() ? otherwise : found->second;
}

std::string node_name(const Environment& job) {
  const std::string known = value(job, "SLURMD_NODENAME", "");
  if (!known.empty()) return known;
  char name[256] = "node";
  ::gethostname(name, sizeof name - 1);
  return std::string(name).substr(0, std::string(name).find('.'));
}

std::string step_of(const Environment& job) {
  const std::string step = value(job, "SLURM_STEP_ID", "batch");
  return step == "4294967290" ? "interactive" : step == "4294967291" ? "batch" : step;
}

/// Returns the replacement of a letter in a file name. Empty for an unknown letter, which is kept.
std::optional<std::string> stands_for(char letter, const Environment& job) {
  switch (letter) {
    case 'j': return value(job, "SLURM_JOB_ID", "0");
    case 'A': return value(job, "SLURM_ARRAY_JOB_ID", value(job, "SLURM_JOB_ID", "0").c_str());
    case 'a': return value(job, "SLURM_ARRAY_TASK_ID", "4294967294");
    case 'J': return step_name(job);
    case 's': return step_of(job);
    case 'N': return node_name(job);
    case 'n': return value(job, "SLURM_NODEID", "0");
    case 'u': return value(job, "SLURM_JOB_USER", value(job, "USER", "user").c_str());
    case 'x': return value(job, "SLURM_JOB_NAME", "job");
    default: return std::nullopt;
  }
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

bool saves_layer(const std::string& path) { return path.starts_with(kSaveLayer); }

Result<void> check_save_path(const std::string& path) {
  const std::string last =
      path.substr(path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1);
  if (last.empty() || last == "." || last == ".." || last == "oci-archive:" || last == kSaveLayer) {
    return Error(ErrorKind::invalid, in_quotes(path) + ": target is a directory")
        .hint("name a file in it");
  }
  return {};
}

std::optional<std::string> save_path_here(const std::string& path, const Environment& job) {
  std::string name;
  bool one_for_each_node = false;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path[i] != '%') {
      name += path[i];
      continue;
    }
    const std::size_t letter = std::min(path.find_first_not_of("0123456789", i + 1), path.size());
    const std::string width = path.substr(i + 1, letter - i - 1);
    if (letter < path.size() && path[letter] == '%' && width.empty()) {
      name += '%';
      i = letter;
      continue;
    }
    auto text = letter < path.size() ? stands_for(path[letter], job) : std::nullopt;
    if (!text) {
      name += '%';
      continue;
    }
    const std::size_t wanted =
        width.empty() || width.size() > 2 ? 0 : std::min(10UL, std::stoul(width));
    if (is_number(*text) && text->size() < wanted) text->insert(0, wanted - text->size(), '0');
    std::replace(text->begin(), text->end(), '/', '_');
    name += *text;
    one_for_each_node = one_for_each_node || path[letter] == 'N' || path[letter] == 'n';
    i = letter;
  }
  if (!one_for_each_node && value(job, "SLURM_NODEID", "0") != "0") return std::nullopt;
  return name;
}

std::string step_name(const Environment& job) {
  return value(job, "SLURM_JOB_ID", "0") + "." + step_of(job);
}

}  // namespace spc
