#pragma once

#include <string>
#include <string_view>

#include "hooks/hook.hpp"

namespace spc {

/// The value of a key in a text like slurm.conf: `Key=Value`, several per line, keys in any case,
/// `#` starts a comment. The last one wins. Values are cut at a blank. Empty: not set.
std::string slurm_setting(std::string_view text, std::string_view key);

/// The text of slurm.conf, mpi.conf ..., from the job's Slurm configuration directory or else the
/// distributions', with the files that it includes; empty if it cannot be read. It only says where
/// to look: everything found there is opened with the user's rights.
std::string slurm_file(const HookContext& context, std::string_view name);

}  // namespace spc
