#include "tool/command.hpp"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <vector>

#include "base/format.hpp"
#include "base/text.hpp"

namespace spc::tool {

namespace {

constexpr OptionRow kOwnOptions[] = {
    {"--changes", "DIR", "keep changes in this directory and start from them next time"},
    {"--add-layer", "FILE",
     "add the files of this image (squashfs, ext3, directory) above those of IMAGE; may be "
     "repeated"},
    {"--entrypoint", nullptr, "run COMMAND through the image's entrypoint"},
    {"--remap-root", nullptr, "run as root in a user namespace, for apt, dnf and the like"},
    {"--name", "NAME", "name of the container for scontainer exec"},
    {"-d,--detach", nullptr,
     "run in the background: print the name, for exec and stop, and the file with the output"},
    {"--share", "KEY|no",
     "share a container with processes that use the same KEY (default: ranks of one mpirun or "
     "srun)"},
    {"--platform", "OS/ARCH[/VARIANT]", "select this platform instead of this machine's"},
    {"--pull", "newer|missing|always|never",
     "when to query the registry for an image that is in the store"},
    {"-q,--quiet", nullptr, "do not print pull progress"},
    {"--tty", nullptr, "accepted and ignored: the terminal is always passed on"},
};

std::vector<OptionRow> all_options() {
  static std::deque<std::string> names;  // storage of the names in the rows
  std::vector<OptionRow> rows;
  for (const ContainerOption& option : container_options()) {
    if (option.run_help == nullptr) continue;
    names.push_back("--" + name_of_run(option));
    const char* argument = option.run_argument == nullptr ? option.argument : option.run_argument;
    rows.push_back({names.back().c_str(), argument, option.run_help, option.has_argument() == 2});
  }
  rows.insert(rows.end(), std::begin(kOwnOptions), std::end(kOwnOptions));
  return rows;
}

}  // namespace

Result<void> read_variables(const Arguments& arguments, std::map<std::string, std::string>& into) {
  for (const std::string& text : arguments.values("env")) {
    const std::string name = text.substr(0, text.find('='));
    if (name.empty())
      return Error(ErrorKind::invalid, formatted("--env: {}: invalid format", in_quotes(text)))
          .hint("NAME or NAME=VALUE");
    const char* outside = std::getenv(name.c_str());
    if (name.size() < text.size()) {
      into[name] = text.substr(name.size() + 1);
    } else if (outside != nullptr) {
      into[name] = outside;
    }
  }
  return {};
}

UserPaths own_paths() {
  std::map<std::string, std::string> variables;
  for (const char* name : {"HOME", "PWD"}) {
    if (const char* value = std::getenv(name)) variables[name] = value;
  }
  auto paths = UserPaths::of(variables, UserPaths::Variables::shell);
  const auto places = Places::find();
  if (paths.home.empty() && places) paths.home = places->home;
  return paths;
}

std::string name_of_run(const ContainerOption& option) {
  std::string name = option.name;
  constexpr std::string_view kPrefix = "container-";
  const auto found = name.find(kPrefix);
  return found == std::string::npos ? name : name.erase(found, kPrefix.size());
}

Result<int> run_version(const Arguments& /*arguments*/) {
  std::puts("scontainer " SPC_VERSION);
  return 0;
}

std::span<const OptionRow> run_options() {
  static const std::vector<OptionRow> rows = all_options();
  return rows;
}

}  // namespace spc::tool
