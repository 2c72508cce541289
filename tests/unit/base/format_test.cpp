#include "base/format.hpp"

#include <cstdint>

#include "unit/catch2_compat.hpp"

using namespace spc;

TEST_CASE("format_accepts_texts_and_integers") {
  const char array[16] = "array";
  const std::string text("with\0NUL", 8);
  CHECK(formatted("a {}, a {}, an {}", "literal", std::string_view("view of it").substr(0, 4),
                  array) == "a literal, a view, an array");
  CHECK(formatted("{}", text) == text);
  CHECK(formatted("{} of {} MB, {} left, mode {}", 3, std::uint64_t{18'446'744'073'709'551'615U},
                  -7, std::uint8_t{64}) == "3 of 18446744073709551615 MB, -7 left, mode 64");
  CHECK(formatted("{}{}{}", 'a', "", std::string()) == "a");
}

TEST_CASE("format_braces_are_doubled_in_sentence_only") {
  CHECK(formatted("{{{}}}", "a{}b") == "{a{}b}");
}

TEST_CASE("format_result_has_length_of_pieces") {
  const std::string text(1'000'000, 'x');
  CHECK(formatted("{}.", text) == text + ".");
}

template <typename T>
constexpr bool kFits = Formattable<T>;

TEST_CASE("format_other_argument_types_do_not_compile") {
  enum Word { one };
  CHECK(!kFits<bool>);
  CHECK(!kFits<double>);
  CHECK(!kFits<Word>);
  CHECK(!kFits<const void*>);
}
