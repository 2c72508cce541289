// scontainer, the command for people: images and containers without Slurm, for users without any privilege and for
// administrators. Each command is a file in commands/; this is the list of them.

#include <sys/stat.h>

#include <csignal>
#include <exception>
#include <span>
#include <string_view>

#include "base/submit_protocol.hpp"
#include "tool/command.hpp"
#include "tool/options.hpp"
#include "tool/submit_check.hpp"
#include "tool/supervise.hpp"
#include "tool/terminal.hpp"

using namespace spc;

namespace {

constexpr unsigned kAny = 1U << 20;

constexpr Command kCommands[] = {
    {"pull", "IMAGE...", "fetch images", kPullHelp, kPullOptions, 1, kAny, false, 1, run_pull},
    {"images", "", "list images: your own and the node's", kImagesHelp, kImagesOptions, 0, 0, false, 1, run_images},
    {"inspect", "IMAGE", "show what an image says and what is in it", kInspectHelp, kInspectOptions, 1, 1, false, 1, run_inspect},
    {"rm", "IMAGE...", "remove images", kRmHelp, kRmOptions, 1, kAny, false, 1, run_rm},
    {"gc", "", "remove what no image needs any more", kGcHelp, kGcOptions, 0, 0, false, 1, run_gc},
    {"run", "IMAGE [COMMAND...]", "run a command in a container", kRunHelp, kRunOptions, 1, 1, true, kNoContainer, run_run},
    {"shell", "IMAGE", "run a shell in a container", kShellHelp, kRunOptions, 1, 1, false, kNoContainer, run_shell},
    {"exec", "CONTAINER COMMAND...", "run a command in a container that is running", kExecHelp, kExecOptions, 1, 1, true,
     kNoContainer, run_exec},
    {"import", "FILE NAME", "bring an image from a file into your store", kImportHelp, kImportOptions, 2, 2, false, 1,
     run_import},
    {"export", "IMAGE FILE", "write an image into a file", kExportHelp, kExportOptions, 2, 2, false, 1, run_export},
    {"login", "[REGISTRY]", "store credentials for a registry", kLoginHelp, kLoginOptions, 0, 1, false, 1, run_login},
    {"logout", "[REGISTRY]", "forget the credentials for a registry", "", kNoOptions, 0, 1, false, 1, run_logout},
    {"version", "", "print the version", "", kNoOptions, 0, 0, false, 1, run_version},
    {"info", "", "show where images and settings are", "", kInfoOptions, 0, 0, false, 1, run_info},
    {"doctor", "[FILE|-]", "explain what a failed job wrote, or look for what this machine lacks", kDoctorHelp, kDoctorOptions, 0,
     1, false, 2, run_doctor},
    {"cdi", "list|show|generate [DEVICE]", "devices that containers can be given, and files that describe them", kCdiHelp,
     kCdiOptions, 1, 2, false, 1, run_cdi},
    {"completion", "SHELL", "print the completion script for a shell", kCompletionHelp, kNoOptions, 1, 1, false, 1,
     run_completion},
};

}  // namespace

std::span<const Command> spc::command_table() { return kCommands; }

int main(int argc, char** argv) {
  ::umask(022);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    const std::span words(argv, static_cast<std::size_t>(argc));
    if (argc > 1 && std::string_view(argv[1]) == kSubmitCheck) return run_submit_check(words.subspan(2));
    return run_command_line(argc, argv);
  } catch (const std::exception& error) {  // out of memory
    report_error(error.what());
    return kNoContainer;
  }
}
