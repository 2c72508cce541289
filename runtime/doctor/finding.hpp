#pragma once

#include <string>

namespace spc {

/// The result of one check, and how to fix it.
struct Finding {
  enum class Verdict { ok, warning, failed };
  std::string what;
  Verdict verdict = Verdict::ok;
  std::string detail;  ///< what was found
  std::string cure;    ///< empty: nothing to do
};

}  // namespace spc
