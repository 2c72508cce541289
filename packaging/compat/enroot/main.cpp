// enroot's command line on top of scontainer, for scripts that call enroot. Each command is
// translated into scontainer's; only the directory of named containers (containers.hpp) is managed
// here.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>

#include "base/format.hpp"
#include "base/process/child.hpp"
#include "packaging/compat/enroot/containers.hpp"
#include "packaging/compat/enroot/start.hpp"
#include "tool/containers/own_containers.hpp"
#include "tool/surroundings/places.hpp"

using namespace spc;
using namespace spc::tool;
using namespace spc::enroot;

namespace {

/// Version of enroot whose command line this is. Scripts compare it.
constexpr char kVersion[] = "4.1.2";

constexpr char kUsage[] =
    "Usage: enroot COMMAND [ARG...]\n\n"
    "Command line utility for manipulating container sandboxes: enroot's, on top of "
    "scontainer(1).\n\n"
    " Commands:\n"
    "   create [-n NAME] [-f] [--] IMAGE\n"
    "   digest [-a ARCH] [--] URI\n"
    "   exec   [-e KEY[=VAL]] [--] PID COMMAND [ARG...]\n"
    "   export [-f] [-o FILE] [--] NAME\n"
    "   import [-a ARCH] [-o FILE] [--] URI\n"
    "   info\n"
    "   list   [-f]\n"
    "   load   [-a ARCH] [-n NAME] [-f] [--] URI\n"
    "   remove [-f] [--] NAME...\n"
    "   start  [-e KEY[=VAL]] [-m SRC:DST[:none:OPTIONS]] [--rc SCRIPT] [-r] [-w] [--] NAME|IMAGE "
    "[COMMAND] [ARG...]\n"
    "   version\n";

using Words = std::span<const std::string>;

void print_error(const std::string& message) {
  // scontainer has already reported errors without a message.
  if (!message.empty()) std::fprintf(stderr, "[ERROR] %s\n", message.c_str());
}

Result<EnrootArguments> parse(Words words, std::initializer_list<EnrootOption> known,
                              std::size_t least) {
  auto arguments = parse_arguments(words, known);
  if (arguments && arguments->words.size() >= least) return arguments;
  std::fputs(kUsage, stderr);
  if (!arguments) return std::move(arguments).error();
  return Error(ErrorKind::invalid, "Invalid argument");
}

constexpr EnrootOption kArchitecture{'a', "arch", true};
constexpr EnrootOption kName{'n', "name", true};
constexpr EnrootOption kForce{'f', "force", false};
constexpr EnrootOption kOutput{'o', "output", true};
constexpr EnrootOption kVariable{'e', "env", true};

/// Pulls the image into the store, or only resolves it with `only_ask`, and returns its digest.
/// Accepts the architecture names of `uname -m` and Debian.
Result<std::string> pull(const EnrootArguments& arguments, bool only_ask = false) {
  SPC_TRY(check_uri(arguments.words[0]));
  std::vector<std::string> command{"pull"};
  if (only_ask) command.emplace_back("--digest");
  if (auto architecture = arguments.value("arch"); !architecture.empty()) {
    if (architecture == "x86_64") architecture = "amd64";
    if (architecture == "aarch64") architecture = "arm64";
    command.push_back("--platform=linux/" + architecture);
  }
  command.push_back("--");
  command.push_back(arguments.words[0]);
  return output_of_scontainer(command);
}

Result<void> write_image(const std::string& digest, const std::string& file) {
  SPC_TRY(output_of_scontainer({"export", "--", digest, file}));
  return {};
}

Result<void> refuse_existing(const std::string& file) {
  if (::access(file.c_str(), F_OK) != 0) return {};
  const auto path = SPC_TRY(absolute_path(file));
  return Error(ErrorKind::invalid, "File already exists: " + printable(path));
}

Result<int> run_import(const EnrootSettings&, Words words) {
  const auto arguments = SPC_TRY(parse(words, {kArchitecture, kOutput}, 1));
  SPC_TRY(check_uri(arguments.words[0]));
  const std::string file =
      arguments.has("output") ? arguments.value("output") : default_file_name(arguments.words[0]);
  SPC_TRY(refuse_existing(file));
  const auto digest = SPC_TRY(pull(arguments));
  SPC_TRY(write_image(digest, file));
  return 0;
}

std::string name_for(const EnrootArguments& arguments, std::string file) {
  if (arguments.has("name")) return arguments.value("name");
  file.erase(0, file.rfind('/') + 1);
  if (file.ends_with(".sqsh")) file.resize(file.size() - 5);
  return file;
}

Result<int> run_create(const EnrootSettings& settings, Words words) {
  const auto arguments = SPC_TRY(parse(words, {kName, kForce}, 1));
  const auto image = SPC_TRY(real_path(arguments.words[0]));
  if (!is_squashfs(image))
    return Error(ErrorKind::invalid, "Invalid image format: " + printable(image));
  SPC_TRY(create_container(settings.data_path, name_for(arguments, image), arguments.has("force"),
                           [&](const std::string& path) { return put_image_file(image, path); }));
  return 0;
}

Result<int> run_load(const EnrootSettings& settings, Words words) {
  const auto arguments = SPC_TRY(parse(words, {kArchitecture, kName, kForce}, 1));
  SPC_TRY(check_uri(arguments.words[0]));
  const auto name = name_for(arguments, default_file_name(arguments.words[0]));
  const auto put_image = [&](const std::string& path) -> Result<void> {
    const auto digest = SPC_TRY(pull(arguments));
    return write_image(digest, path);
  };
  SPC_TRY(create_container(settings.data_path, name, arguments.has("force"), put_image));
  return 0;
}

Result<int> run_digest(const EnrootSettings&, Words words) {
  const auto arguments = SPC_TRY(parse(words, {kArchitecture}, 1));
  const auto digest = SPC_TRY(pull(arguments, true));
  std::puts(digest.c_str());
  return 0;
}

Result<int> run_list(const EnrootSettings& settings, Words words) {
  const auto arguments = SPC_TRY(parse(words, {{'f', "fancy", false}}, 0));
  auto names = SPC_TRY(list_containers(settings.data_path));
  for (const JobContainer& one : job_containers()) {
    if (one.has_name || !one.tasks.empty()) names.push_back(one.name);
  }
  std::sort(names.begin(), names.end());
  if (arguments.has("fancy")) {
    std::fputs(SPC_TRY(table_of(names)).c_str(), stdout);
    return 0;
  }
  for (const auto& name : names) std::puts(name.c_str());
  return 0;
}

Result<int> run_start(const EnrootSettings& settings, Words words) {
  const auto arguments = SPC_TRY(parse(words,
                                       {{'c', "conf", true},
                                        kVariable,
                                        {'m', "mount", true},
                                        {0, "rc", true},
                                        {'r', "root", false},
                                        {'w', "rw", false},
                                        {0, "pid", false},
                                        {0, "net", false},
                                        {0, "ipc", false},
                                        {0, "uts", false}},
                                       1));
  if (arguments.has("conf")) {
    return Error(ErrorKind::refused, "Configuration scripts (-c) are not run here")
        .hint("say it with -e, -m, --rc");
  }
  for (const char* name : {"pid", "net", "ipc", "uts"}) {
    if (arguments.has(name))
      return Error(ErrorKind::refused, formatted("Containers share the host's {} namespace", name));
  }
  const auto start = SPC_TRY(start_command(settings, arguments));
  return become_scontainer(start.arguments, start.environment);
}

/// Runs a command in the container of a Slurm step, by a step of the same job that joins it.
Error exec_in_step(const JobStep& step, const EnrootArguments& arguments) {
  StepOrder order{.node = this_node(),
                  .job = step.job,
                  .options = {"--container-name=" + step.text + ":exec"},
                  .command = {}};
  if (::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0)
    order.options.emplace_back("--pty");
  for (const auto& text : arguments.values("env"))
    order.options.push_back("--container-env=" + text);
  order.command.assign(arguments.words.begin() + 1, arguments.words.end());
  return become_step(order);
}

Result<int> run_exec(const EnrootSettings&, Words words) {
  const auto arguments = SPC_TRY(parse(words, {kVariable}, 2));
  if (const auto step = step_named(arguments.words[0])) return exec_in_step(*step, arguments);
  std::vector<std::string> command{"exec"};
  for (const auto& text : arguments.values("env"))
    command.push_back("--env=" + SPC_TRY(variable_for(text)));
  command.push_back(arguments.words[0]);
  command.push_back("--");
  command.insert(command.end(), arguments.words.begin() + 1, arguments.words.end());
  return become_scontainer(command);
}

/// Returns the arguments of `scontainer containers` for a container.
std::vector<std::string> words_for(const JobContainer& container, std::vector<std::string> verb,
                                   std::vector<std::string> words) {
  std::vector<std::string> command{"containers"};
  std::ranges::move(verb, std::back_inserter(command));
  command.push_back("--node=" + container.node);
  if (!container.job.empty()) command.push_back("--job=" + container.job);
  command.emplace_back("--");
  std::ranges::move(words, std::back_inserter(command));
  return command;
}

Result<int> run_export(const EnrootSettings& settings, Words words) {
  const auto arguments = SPC_TRY(parse(words, {kOutput, kForce}, 1));
  const std::string file =
      arguments.has("output") ? arguments.value("output") : arguments.words[0] + ".sqsh";
  if (!arguments.has("force")) SPC_TRY(refuse_existing(file));
  if (const auto of_job = job_container(arguments.words[0]); of_job && of_job->has_name) {
    return become_scontainer(words_for(*of_job, {"export", "--force"}, {of_job->text, file}));
  }
  const auto container = SPC_TRY(enroot::find_container(settings.data_path, arguments.words[0]));
  std::vector<std::string> command{"export"};
  if (arguments.has("force")) command.emplace_back("--force");
  if (!container.changes.empty()) command.push_back("--changes=" + container.changes);
  command.insert(command.end(), {"--", container.image, file});
  return become_scontainer(command);
}

Result<int> run_remove(const EnrootSettings& settings, Words words) {
  const auto arguments = SPC_TRY(parse(words, {kForce}, 1));
  for (const auto& name : arguments.words) {
    const auto of_job = job_container(name);
    const bool is_jobs = of_job && of_job->has_name;
    const auto path =
        is_jobs ? name : SPC_TRY(enroot::find_container(settings.data_path, name)).path;
    std::string answer = "y";
    if (!arguments.has("force")) {
      std::fprintf(stderr, "Do you really want to delete %s? [y/N] ", printable(path).c_str());
      answer.clear();
      std::getline(std::cin, answer);
    }
    if (answer != "y" && answer != "Y") continue;
    if (is_jobs) {
      SPC_TRY(output_of_scontainer(words_for(*of_job, {"rm"}, {of_job->text})));
    } else {
      SPC_TRY(remove_container(path));
    }
  }
  return 0;
}

Result<int> run_info(const EnrootSettings& settings, Words) {
  const auto yes_or_no = [](bool value) { return value ? "yes" : "no"; };
  std::printf("ENROOT_VERSION=%s\n", kVersion);
  std::printf("ENROOT_DATA_PATH=%s\n", printable(settings.data_path).c_str());
  std::printf("ENROOT_CONFIG_PATH=%s\n", printable(settings.config_path).c_str());
  std::printf("ENROOT_CACHE_PATH=%s\n", printable(settings.cache_path).c_str());
  std::printf("ENROOT_ROOTFS_WRITABLE=%s\n", yes_or_no(settings.writable));
  std::printf("ENROOT_REMAP_ROOT=%s\n", yes_or_no(settings.remap_root));
  std::printf("ENROOT_MOUNT_HOME=%s\n", yes_or_no(settings.mount_home));
  std::fflush(stdout);
  return become_scontainer({"info"});
}

Result<int> run_version(const EnrootSettings&, Words) {
  std::puts(kVersion);
  return 0;
}

Result<int> refuse_batch(const EnrootSettings&, Words) {
  return Error(ErrorKind::refused, "Configuration scripts (batch) are not run here")
      .hint("enroot start with -e, -m, --rc");
}

Result<int> refuse_bundle(const EnrootSettings&, Words) {
  return Error(ErrorKind::refused, "Self-extracting bundles are not made here")
      .hint("a .sqsh is one file, too: enroot export");
}

struct Command {
  const char* name;
  Result<int> (*run)(const EnrootSettings&, Words);
};
constexpr Command kCommands[] = {
    {"batch", refuse_batch}, {"bundle", refuse_bundle}, {"create", run_create},
    {"digest", run_digest},  {"exec", run_exec},        {"export", run_export},
    {"import", run_import},  {"info", run_info},        {"list", run_list},
    {"load", run_load},      {"remove", run_remove},    {"start", run_start},
    {"version", run_version}};

int run_command_line(const std::vector<std::string>& words) {
  if (words.empty() || words[0] == "help" || words[0] == "-h" || words[0] == "--help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  for (const Command& command : kCommands) {
    if (words[0] != command.name) continue;
    const auto settings = EnrootSettings::take_from_environment();
    auto done =
        settings ? command.run(*settings, Words(words).subspan(1)) : Result<int>(settings.error());
    if (done) return *done;
    print_error(done.error().message());
    return 1;
  }
  std::fputs(kUsage, stderr);
  print_error("Invalid command: " + printable(words[0]));
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  open_closed_streams();
  ::umask(022);
  try {
    return run_command_line({argv + 1, argv + argc});
  } catch (const std::exception& error) {  // out of memory
    print_error(error.what());
    return 1;
  }
}
