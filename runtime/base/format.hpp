#pragma once

#if __has_include(<fmt/base.h>)
#include <fmt/base.h>
#else
#include <fmt/core.h>
#endif

#include <concepts>
#include <string>
#include <string_view>

namespace spc {

/// What a sentence can be filled with: text, characters and whole numbers.
template <typename T>
concept Formattable = std::convertible_to<const T&, std::string_view> ||
    (std::integral<T> && !std::same_as<T, bool>);

/// `formatted`, without the check.
std::string vformatted(fmt::string_view sentence, fmt::format_args values);

/// A whole sentence, which can be searched for, with the values in the places of its {}. The
/// compiler checks that they fit. Not for code that runs as root, which does without the library.
template <Formattable... Values>
std::string formatted(fmt::format_string<const Values&...> sentence, const Values&... values) {
  return vformatted(sentence, fmt::make_format_args(values...));
}

}  // namespace spc
