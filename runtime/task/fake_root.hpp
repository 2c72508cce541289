#pragma once

#include "base/result.hpp"

namespace spc {

/// For a process that is root in a user namespace where no other user exists: from now on, for it
/// and its children, operations of dpkg, rpm and their scripts that need real root (changing
/// owners, switching to another user, creating devices) report success and do nothing. The process
/// must have no_new_privs. Grants no privilege.
Result<void> fake_root_calls();

}  // namespace spc
