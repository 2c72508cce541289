#include "hooks/step/slurm_conf.hpp"

#include <fcntl.h>
#include <strings.h>

#include <algorithm>
#include <vector>

#include "base/file.hpp"

namespace spc {
namespace {

constexpr std::string_view kBlanks = " \t\r";

bool same_word(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
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
    const std::string path = context.host_root + directory + "/" + std::string(name);
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    constexpr std::size_t kSane = 4 << 20;
    auto text = file ? read_file(file.get(), kSane) : Result<std::string>(std::string());
    if (text && !text->empty()) return *std::move(text);
  }
  return {};
}

}  // namespace spc
