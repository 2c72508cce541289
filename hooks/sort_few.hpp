#pragma once

#include <iterator>
#include <utility>

namespace spc {

/// Like std::stable_sort, for lists of some tens at most: its code is a tenth as large.
template <typename List, typename Before>
void sort_few(List& list, const Before& before) {
  for (auto next = list.begin(); next != list.end(); ++next) {
    auto one = std::move(*next);
    auto place = next;
    for (; place != list.begin() && before(one, *std::prev(place)); --place)
      *place = std::move(*std::prev(place));
    *place = std::move(one);
  }
}

}  // namespace spc
