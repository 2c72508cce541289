#pragma once
// doctest, with containers' elements in what a failed check says.

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace doctest {

template <typename T>
struct StringMaker<std::vector<T>> {
  static String convert(const std::vector<T>& all) {
    String text = "[";
    for (std::size_t i = 0; i < all.size(); ++i)
      text += (i == 0 ? String() : String(", ")) + toString(static_cast<const T&>(all[i]));
    return text + "]";
  }
};

template <typename T>
struct StringMaker<std::optional<T>> {
  static String convert(const std::optional<T>& value) {
    return value ? toString(*value) : String("nothing");
  }
};

}  // namespace doctest
