// The only unit with the code of the library: neither the library in slurmstepd nor the static
// programs need libfmt.so.
#define FMT_HEADER_ONLY
// Leave out unused parts: floats, and the locales of the C++ library, which are 400 KB.
#define FMT_USE_FLOAT 0
#define FMT_USE_DOUBLE 0
#define FMT_USE_LONG_DOUBLE 0
#define FMT_STATIC_THOUSANDS_SEPARATOR ','
#define FMT_USE_LOCALE 0  // the same from version 11 on
#include <fmt/format.h>

#include "base/format.hpp"

namespace spc {

std::string vformatted(fmt::string_view sentence, fmt::format_args values) {
  return fmt::vformat(sentence, values);
}

Error for_administrator(const Error& error) {
  const std::string& cure = error.advice();
  return {error.kind(), error.what(), error.sys_errno(),
          "tell the administrator" + (cure.empty() ? "" : ": " + cure)};
}

}  // namespace spc
