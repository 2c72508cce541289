#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace spc {

/// How many letters must be changed, added or left out to make one of the other (Levenshtein), for
/// "did you mean".
inline std::size_t letters_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

/// Empty if nothing is near.
inline std::string_view nearest(std::string_view typed, std::span<const std::string_view> known) {
  const auto nearer = [&](std::string_view a, std::string_view b) {
    return letters_between(typed, a) < letters_between(typed, b);
  };
  const auto found = std::min_element(known.begin(), known.end(), nearer);
  return found != known.end() && letters_between(typed, *found) <= 3 ? *found : std::string_view();
}

}  // namespace spc
