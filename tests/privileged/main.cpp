// Runs in a new mount namespace with empty /var/lib and /run, so that the machine's files stay
// unchanged.

#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/process/own_program.hpp"
#include "loop_devices.hpp"
#include "programs.hpp"
#include "scene.hpp"
#include "unit/catch2_compat.hpp"

namespace {

int run_and_look_for_loop_devices(int argc, char** argv) {
  const int failures = spc::run_tests(argc, argv);
  if (spc::becomes_true([] { return spc::our_loop_devices().empty(); })) return failures;
  std::fputs("privileged_test: a loop device is left\n", stderr);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto played = spc::play(argv[0], argc > 1 ? argv[1] : "")) return *played;
  if (::geteuid() != 0) {
    std::fputs("privileged_test: needs root\n", stderr);
    return 1;
  }
  const std::string agent = std::string(spc::kPlaceOfPrograms) + "/agent";
  if (spc::own_program("agent") == agent) return run_and_look_for_loop_devices(argc, argv);
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("store", "/var/lib", "tmpfs", 0, "mode=755") != 0 ||
      ::mount("run", "/run", "tmpfs", 0, "mode=755") != 0) {
    std::perror("privileged_test: mount namespace");
    return 1;
  }
  spc::install_programs();
  ::execv(agent.c_str(), argv);
  std::perror("privileged_test: execute it where the programs are");
  return 1;
}
