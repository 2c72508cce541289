#include "launch/host/security_profiles.hpp"

#include <fcntl.h>

#include <cerrno>

#include "base/file.hpp"
#include "base/format.hpp"
#include "task/exec_label.hpp"
#include "task/seccomp_profile.hpp"

namespace spc {
namespace {

/// Where podman looks for its default profile: containers-common(5), seccomp.json.
constexpr const char* kDefaultProfiles[] = {"/etc/containers/seccomp.json",
                                            "/usr/share/containers/seccomp.json"};
constexpr std::size_t kMostProfile = 1 << 20;

Result<UniqueFd> open_profile(const std::string& name) {
  const auto open = [](const char* path) {
    return UniqueFd(::open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  };
  if (name != "default") {
    UniqueFd file = open(name.c_str());
    if (!file)
      return Error::from_errno(errno, "open " + in_quotes(name))
          .hint("it must exist on every node of the step");
    return file;
  }
  for (const char* path : kDefaultProfiles) {
    if (UniqueFd file = open(path)) return file;
  }
  return Error::from_errno(errno, "open " + in_quotes(kDefaultProfiles[1]))
      .hint("the package containers-common has it; or name a profile of your own");
}

Result<std::string> program_of(const std::string& name, const SeccompSubject& subject) {
  const UniqueFd file = SPC_TRY(open_profile(name));
  const std::string text = SPC_TRY_DURING(in_quotes(name), read_file(file.get(), kMostProfile));
  return SPC_TRY_DURING(in_quotes(name), compile_seccomp_profile(text, subject));
}

}  // namespace

Result<TaskSecurity> read_security(const LaunchRequest& request, const SitePolicy& site,
                                   bool remapped) {
  TaskSecurity security;
  const SeccompSubject subject{.has_capabilities = remapped};
  const std::string& asked = request.seccomp;
  if (site.seccomp != "off") {
    security.programs.push_back(
        SPC_TRY_DURING("seccomp profile of the site", program_of(site.seccomp, subject)));
  }
  if (!asked.empty() && asked != site.seccomp) {
    security.programs.push_back(SPC_TRY_DURING("--container-security", program_of(asked, subject)));
  }
  security.asked = asked;
  if (has_security_module(SecurityModule::apparmor)) security.apparmor = site.apparmor_profile;
  if (has_security_module(SecurityModule::selinux)) security.selinux = site.selinux_label;
  return security;
}

}  // namespace spc
