#pragma once

#include <string>

namespace spc {

/// One thing that was looked at, and what to do about it.
struct Finding {
  enum class Verdict { ok, warning, failed };
  std::string what;
  Verdict verdict = Verdict::ok;
  std::string detail;  ///< what was found
  std::string cure;    ///< empty: nothing is to be done
};

}  // namespace spc
