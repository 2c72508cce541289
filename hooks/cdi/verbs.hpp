#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/cdi/spec.hpp"

namespace spc {

/// The task of a hook in NVIDIA's specs: `nvidia-cdi-hook create-symlinks --link A::B`. Real files
/// have only these hooks; each is translated to edits, and nothing is executed.
/// nvidia-container-toolkit: cmd/nvidia-cdi-hook.
struct CdiVerb {
  std::string name;
  std::vector<std::pair<std::string, std::string>>
      options;  ///< names without dashes; the value is empty if there is none

  [[nodiscard]] std::vector<std::string> values_of(std::string_view option) const;
};

/// Empty if it is another program's hook. The older `nvidia-ctk hook VERB` is equivalent.
std::optional<CdiVerb> verb_of(const CdiHook& hook);

}  // namespace spc
