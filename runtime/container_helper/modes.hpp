#pragma once

#include <string>

namespace spc {

/// The programs that `container-helper` is; each gets the arguments of main and gives back its exit
/// status.

/// `/proc/self/fd/N FD`: what an image's entrypoint is given to execute in place of the user's
/// command. Writes its work directory and its environment, each text ended by NUL, into the memory
/// file FD and seals it: a sealed file is a whole one.
int probe_entrypoint(int argc, char** argv);

/// `NAME MODE SCRIPT [ARGUMENT]...`: in a container, what Slurm executes between itself and a task
/// prolog. From 23.11 on Slurm starts scripts through slurmstepd itself, whose libraries no
/// container has; the plugin puts this in its place.
int launch_script(int argc, char** argv);

/// Lies in a container at the path of each of Slurm's commands: executes the host's command `name`
/// with the host's loader and libraries, so that the image needs neither
/// (launch/host/slurm_client.hpp).
int run_slurm_command(const std::string& name, char** argv);

}  // namespace spc
