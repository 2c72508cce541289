#pragma once

#include <map>
#include <string>
#include <string_view>

#include "hooks/hook.hpp"
#include "hooks/nvidia_driver/driver.hpp"

namespace spc {

/// What is known of a GPU's driver to compare with: "cuda" and "driver", and more where somebody knows more ("arch", "brand").
using RequirementFacts = std::map<std::string, std::string, std::less<>>;

/// NVIDIA_REQUIRE_*: alternatives separated by spaces, each made of conditions separated by commas, `cuda>=12.6`; the operators
/// are = != < <= > >= (libnvidia-container's src/cli/dsl.c). Versions are compared by their numbers, what is no version as text.
/// A condition about what nobody knows holds, and so does one that cannot be read. Returns the condition that fails, empty if
/// none does: of several alternatives the one about cuda rather than another.
std::string unsatisfied_condition(std::string_view requirement, const RequirementFacts& facts);

/// Refuses an image whose NVIDIA_REQUIRE_* the driver does not meet, unless NVIDIA_DISABLE_REQUIRE is set, and warns of one made for
/// a later CUDA. `own_libcuda`: the image's libcuda is used.
void check_requirements(const HookContext& context, const NvidiaDriver& driver, bool own_libcuda, Edits& edits);

}  // namespace spc
