#pragma once

#if __has_include(<fmt/base.h>)
#include <fmt/base.h>
#else
#include <fmt/core.h>
#endif

#include <concepts>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc {

/// Argument types of `formatted`: strings, characters and integers.
template <typename T>
concept Formattable = std::convertible_to<const T&, std::string_view> ||
    (std::integral<T> && !std::same_as<T, bool>);

/// Formats like `formatted`, without the check at compile time.
std::string vformatted(fmt::string_view sentence, fmt::format_args values);

/// Returns `sentence` with the values in place of its {}. A sentence is written as a whole, so that
/// a search for a message finds it in the code. The compiler checks the types. Code that runs as
/// root does not use this function and so does not need the library.
template <Formattable... Values>
std::string formatted(fmt::format_string<const Values&...> sentence, const Values&... values) {
  return vformatted(sentence, fmt::make_format_args(values...));
}

/// Addresses the advice of an error to the administrator: users cannot change what the site asks.
Error for_administrator(const Error& error);

}  // namespace spc
