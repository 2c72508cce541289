#include "hooks/step/slurm_conf.hpp"

#include <fcntl.h>
#include <strings.h>

#include <algorithm>
#include <vector>

#include "base/file.hpp"
#include "base/text.hpp"

namespace spc {
namespace {

constexpr std::string_view kBlanks = " \t\r";

bool same_word(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

constexpr std::size_t kLargestConf = 4 << 20;
constexpr int kDeepest = 3;  ///< files that include files

std::string text_of_conf(const std::string& root, const std::string& directory,
                         const std::string& path, int depth) {
  const UniqueFd file(::open((root + path).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const auto text = file ? read_file(file.get(), kLargestConf) : Result<std::string>(std::string());
  if (!text) return {};
  std::string all;
  for (const std::string_view line : split(*text, '\n')) {
    constexpr std::string_view kInclude = "include";
    const auto blank = line.find_first_of(kBlanks);
    const bool includes = depth < kDeepest && blank != std::string_view::npos &&
                          same_word(line.substr(0, blank), kInclude);
    const std::string_view named = includes ? trimmed(line.substr(blank)) : std::string_view();
    if (named.empty() || all.size() > kLargestConf) {
      all.append(line).append("\n");
    } else {
      all += text_of_conf(
          root, directory,
          named.starts_with('/') ? std::string(named) : directory + "/" + std::string(named),
          depth + 1);
    }
  }
  return all;
}

}  // namespace

std::string slurm_setting(std::string_view text, std::string_view key) {
  std::string found;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    line = line.substr(0, line.find('#'));
    while (!line.empty()) {
      line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
      const std::string_view word = line.substr(0, line.find_first_of(kBlanks));
      line.remove_prefix(word.size());
      const auto equals = word.find('=');
      if (equals != std::string_view::npos && same_word(word.substr(0, equals), key))
        found = word.substr(equals + 1);
    }
  }
  return found;
}

std::string slurm_file(const HookContext& context, std::string_view name) {
  std::vector<std::string> directories;
  if (const auto* conf = context.of_job("SLURM_CONF"); conf != nullptr && conf->starts_with('/')) {
    directories.push_back(conf->substr(0, conf->rfind('/')));
  }
  for (const char* usual :
       {"/etc/slurm", "/etc/slurm-llnl", "/run/slurm/conf", "/var/spool/slurmd/conf-cache"}) {
    directories.emplace_back(usual);
  }
  for (const std::string& directory : directories) {
    std::string text =
        text_of_conf(context.host_root, directory, directory + "/" + std::string(name), 0);
    if (!text.empty() && text != "\n") return text;
  }
  return {};
}

}  // namespace spc
