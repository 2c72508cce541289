#include "tool/images/helper_program.hpp"

#include <sched.h>
#include <unistd.h>

#include <cerrno>

namespace spc::tool {
namespace {

constexpr int kFirst = 3;

/// In the child. A server that lived in our mount namespace would keep the mount alive that it
/// serves, and so itself, when we are killed. Outside a user namespace of our own this is not
/// allowed, and not needed.
bool leave_mount_namespace() {
  ::unshare(CLONE_NEWNS);
  ::signal(SIGPIPE, SIG_DFL);
  return true;
}

}  // namespace

Result<HelperProgram> HelperProgram::start(const std::string& path,
                                           const std::vector<std::string>& arguments,
                                           const std::vector<int>& descriptors,
                                           Environment environment) {
  if (::access(path.c_str(), X_OK) != 0) {
    return Error::from_errno(errno, "start " + in_quotes(path))
        .hint("spank-container is not installed completely");
  }
  Program program{
      .path = path, .arguments = {path}, .descriptors = {{STDERR_FILENO, STDERR_FILENO}}};
  program.arguments.insert(program.arguments.end(), arguments.begin(), arguments.end());
  for (int number = kFirst; const int descriptor : descriptors)
    program.descriptors.push_back({descriptor, number++});
  if (environment == Environment::empty) program.environment.emplace();
  program.prepare = leave_mount_namespace;
  return HelperProgram(SPC_TRY(Child::start(program)));
}

}  // namespace spc::tool
