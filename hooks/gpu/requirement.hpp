#pragma once

#include <map>
#include <string>
#include <string_view>

#include "hooks/hook.hpp"
#include "hooks/nvidia_driver/driver.hpp"

namespace spc {

/// Known properties of a GPU driver: "cuda" and "driver", and others if available ("arch",
/// "brand").
using RequirementFacts = std::map<std::string, std::string, std::less<>>;

/// NVIDIA_REQUIRE_*: alternatives separated by spaces, each of conditions separated by commas,
/// `cuda>=12.6`; the operators are = != < <= > >= (libnvidia-container's src/cli/dsl.c). Versions
/// are compared numerically, other values as text. Conditions on unknown properties hold, and so do
/// unreadable ones. Returns the failed condition, empty if none fails: with several alternatives,
/// preferably the one on cuda.
std::string unsatisfied_condition(std::string_view requirement, const RequirementFacts& facts);

/// Refuses an image whose NVIDIA_REQUIRE_* the driver does not meet, unless NVIDIA_DISABLE_REQUIRE
/// is set, and warns about one built for a later CUDA. `own_libcuda`: the image's libcuda is used.
void check_requirements(const HookContext& context, const NvidiaDriver& driver, bool own_libcuda,
                        Edits& edits);

}  // namespace spc
