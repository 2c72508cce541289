#include "hooks/hook.hpp"

#include <string>
#include <vector>

#include "unit/catch2_compat.hpp"

using namespace spc;

TEST_CASE("sort_few_is_stable") {
  using Few = std::vector<std::pair<int, std::string>>;
  const auto sorted = [](Few few) {
    sort_few(few, [](const auto& a, const auto& b) { return a.first < b.first; });
    return few;
  };
  CHECK(sorted({}).empty());
  CHECK(sorted({{2, "a"}, {1, "b"}, {2, "c"}, {1, "d"}, {0, "e"}, {3, "f"}}) ==
        Few{{0, "e"}, {1, "b"}, {1, "d"}, {2, "a"}, {2, "c"}, {3, "f"}});
}
