#include <fcntl.h>

#include "base/format.hpp"
#include "hooks/node/node.hpp"

namespace spc {
namespace {

/// The lines themselves are written where the root is set up, which knows the user and his groups.
Result<void> tell_of_the_user(const HookContext& context, Edits& edits) {
  if (context.remap_root) {
    edits.notes.push_back(
        "root and its group are added to /etc/passwd and /etc/group if the image lacks them");
  } else if (!context.user.empty()) {
    edits.notes.push_back(
        formatted("entries of {} and the user's groups are added to /etc/passwd and /etc/group",
                  context.user));
  }
  return {};
}

bool is_root_inside(const HookContext& context) { return context.remap_root; }

/// apt would fetch as the user _apt, whom nobody can become where only root exists.
Result<void> let_apt_stay_root(const HookContext& context, Edits& edits) {
  if (!context.open_in_image || !context.open_in_image("/etc/apt", O_RDONLY | O_DIRECTORY))
    return {};
  edits.files.push_back(
      {"/etc/apt/apt.conf.d/90spank-container", "APT::Sandbox::User \"root\";\n"});
  edits.notes.push_back("apt downloads as root");
  return {};
}

}  // namespace

const Hook shadow_hook{.name = "10-shadow",
                       .says = "the user and groups in passwd and group",
                       .create = tell_of_the_user};

const Hook aptfix_hook{.name = "10-aptfix",
                       .says = "apt keeps running as the remapped root",
                       .when = is_root_inside,
                       .create = let_apt_stay_root};

}  // namespace spc
