// scontainer, the command for people: images and containers without Slurm, for users without any
// privilege and for administrators. Each command is a file in commands/; this is the list of them.

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <exception>
#include <span>
#include <string_view>

#include "base/format.hpp"
#include "base/process/pipe.hpp"
#include "protocol/submit.hpp"
#include "tool/command.hpp"
#include "tool/containers/supervise.hpp"
#include "tool/options.hpp"
#include "tool/run_options.hpp"
#include "tool/submission/submit_check.hpp"
#include "tool/surroundings/terminal.hpp"

using namespace spc;
using namespace spc::tool;

namespace {

constexpr unsigned kAny = 1U << 20;
constexpr rlim_t kFewestFiles = 40;  // a pull of a few layers, and the helpers of a container

const Command kCommands[] = {
    {"pull", "IMAGE...", "pull images", kPullHelp, kPullOptions, 1, kAny, false, 1, run_pull},
    {"images", "", "list images of the user and the node", kImagesHelp, kImagesOptions, 0, 0, false,
     1, run_images},
    {"catalogue", "[NAME]", "list the images that the site recommends", kCatalogueHelp,
     kCatalogueOptions, 0, 1, false, 1, run_catalogue},
    {"inspect", "IMAGE", "show configuration and contents of an image", kInspectHelp,
     kInspectOptions, 1, 1, false, 1, run_inspect},
    {"rm", "IMAGE...", "remove images", kRmHelp, kRmOptions, 1, kAny, false, 1, run_rm},
    {"gc", "", "remove unused layers, incomplete images and expired containers", kGcHelp,
     kGcOptions, 0, 0, false, 1, run_gc},
    {"containers", "[list|inspect|rm|export] [NAME...]",
     "list, remove and export containers with a name", kContainersHelp, kContainersOptions, 0, kAny,
     false, 1, run_containers},
    {"run", "IMAGE [COMMAND...]", "run a command in a container", kRunHelp, run_options(), 1, 1,
     true, kNoContainer, run_run},
    {"shell", "IMAGE", "run a shell in a container", kShellHelp, run_options(), 1, 1, false,
     kNoContainer, run_shell},
    {"exec", "CONTAINER COMMAND...", "run a command in a running container", kExecHelp,
     kExecOptions, 1, 1, true, kNoContainer, run_exec},
    {"attach", "JOB[.STEP]", "run a shell in the container of a job's step", kAttachHelp,
     kNoOptions, 1, 1, false, kNoContainer, run_attach},
    {"stop", "CONTAINER...", "stop running containers", kStopHelp, kNoOptions, 1, kAny, false, 1,
     run_stop},
    {"import", "FILE NAME", "import an image file", kImportHelp, kImportOptions, 2, 2, false, 1,
     run_import},
    {"export", "IMAGE FILE", "write an image to a file", kExportHelp, kExportOptions, 2, 2, false,
     1, run_export},
    {"push", "IMAGE [NAME]", "push an image to a registry", kPushHelp, kPushOptions, 1, 2, false, 1,
     run_push},
    {"login", "[REGISTRY]", "store credentials for a registry", kLoginHelp, kLoginOptions, 0, 1,
     false, 1, run_login},
    {"logout", "[REGISTRY]", "remove credentials for a registry", "", kNoOptions, 0, 1, false, 1,
     run_logout},
    {"version", "", "print the version", "", kNoOptions, 0, 0, false, 1, run_version},
    {"info", "", "show locations of images and configuration", "", kInfoOptions, 0, 0, false, 1,
     run_info},
    {"doctor", "[FILE|-]", "explain the log of a failed job, or check this machine", kDoctorHelp,
     kDoctorOptions, 0, 1, false, 2, run_doctor},
    {"metrics", "", "print the node's state for Prometheus", kMetricsHelp, kMetricsOptions, 0, 0,
     false, 1, run_metrics},
    {"audit", "FILE...", "print the starts of containers in slurmd's log as JSON", kAuditHelp,
     kNoOptions, 1, kAny, false, 1, run_audit},
    {"cdi", "list|show|generate [DEVICE]", "list and describe CDI devices", kCdiHelp, kCdiOptions,
     1, 2, false, 1, run_cdi},
    {"completion", "SHELL", "print the completion script for a shell", kCompletionHelp, kNoOptions,
     1, 1, false, 1, run_completion},
};

}  // namespace

std::span<const Command> spc::tool::command_table() { return kCommands; }

int main(int argc, char** argv) {
  open_closed_streams();
  ::umask(022);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    const std::span words(argv, static_cast<std::size_t>(argc));
    if (argc > 1 && std::string_view(argv[1]) == kSubmitCheck)
      return run_submit_check(words.subspan(2));
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < kFewestFiles) {
      report_error(formatted("{} open files are not enough (hint: ulimit -n 64)",
                             std::uint64_t{files.rlim_cur}));
      return kNoContainer;
    }
    return run_command_line(argc, argv);
  } catch (const std::exception& error) {  // out of memory
    report_error(error.what());
    return kNoContainer;
  }
}
