#include "launch/request/save_path.hpp"

#include <unistd.h>

#include <algorithm>

namespace spc {
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

/// Nothing for a letter that stands for nothing: it stays as it is.
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
