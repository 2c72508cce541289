#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/cdi/spec.hpp"

namespace spc {

/// What a hook of NVIDIA's specs is to do: `nvidia-cdi-hook create-symlinks --link A::B`. These are the only hooks that real
/// files have; each is done by edits, and nothing is executed. nvidia-container-toolkit: cmd/nvidia-cdi-hook.
struct CdiVerb {
  std::string name;
  std::vector<std::pair<std::string, std::string>> options;  ///< names without dashes; one that has no value: an empty one

  [[nodiscard]] std::vector<std::string> values_of(std::string_view option) const;
};

/// Nothing if it is another program's hook. The older `nvidia-ctk hook VERB` is the same.
std::optional<CdiVerb> verb_of(const CdiHook& hook);

}  // namespace spc
