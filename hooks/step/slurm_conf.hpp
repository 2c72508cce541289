#pragma once

#include <string>
#include <string_view>

#include "hooks/hook.hpp"

namespace spc {

/// The value of a key in a text like slurm.conf: `Key=Value`, several a line, keys in any case, `#` begins a comment. The last
/// one counts. Values with blanks are cut at the blank. Empty: not there.
std::string slurm_setting(std::string_view text, std::string_view key);

/// The text of slurm.conf, mpi.conf ..., from where the job, or else the distributions, have Slurm's configuration; empty if it
/// cannot be read. It only says where to look: everything found there is opened with the user's rights.
std::string slurm_file(const HookContext& context, std::string_view name);

}  // namespace spc
