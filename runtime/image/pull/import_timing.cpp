#include "image/pull/import_timing.hpp"

#include <array>
#include <cstdio>

namespace spc {

std::string ImportTiming::line(Seconds total) const {
  std::array<char, 400> text{};
  if (layers == 0) {
    std::snprintf(text.data(), text.size(), "import %.2f s: all layers present", total.count());
  } else {
    const Seconds before = total - others - fetch - convert - publish;
    std::snprintf(text.data(), text.size(),
                  "import %.2f s: resolve %.2f, fetch %.2f (%zu layer%s, %.1f MB), wait for the "
                  "converter %.2f, "
                  "verify and publish %.2f, wait for other imports %.2f",
                  total.count(), before.count(), fetch.count(), layers, layers == 1 ? "" : "s",
                  static_cast<double>(bytes) / 1e6, convert.count(), publish.count(),
                  others.count());
  }
  return text.data();
}

}  // namespace spc
