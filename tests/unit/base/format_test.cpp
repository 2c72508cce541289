#include "base/format.hpp"

#include <cstdint>

#include "unit/test.hpp"

using namespace spc;

TEST_CASE("a sentence takes text of every kind and whole numbers") {
  const char array[16] = "array";
  const std::string text("with\0NUL", 8);
  CHECK(formatted("a {}, a {}, an {}", "literal", std::string_view("view of it").substr(0, 4),
                  array) == "a literal, a view, an array");
  CHECK(formatted("{}", text) == text);
  CHECK(formatted("{} of {} MB, {} left, mode {}", 3, std::uint64_t{18'446'744'073'709'551'615U},
                  -7, std::uint8_t{64}) == "3 of 18446744073709551615 MB, -7 left, mode 64");
  CHECK(formatted("{}{}{}", 'a', "", std::string()) == "a");
}

TEST_CASE("braces in a sentence are doubled, those in its pieces are not") {
  CHECK(formatted("{{{}}}", "a{}b") == "{a{}b}");
}

TEST_CASE("a sentence is as long as its pieces") {
  const std::string text(1'000'000, 'x');
  CHECK(formatted("{}.", text) == text + ".");
}

template <typename T>
constexpr bool kFits = Formattable<T>;

TEST_CASE("what would be written in an unexpected way does not compile") {
  enum Word { one };
  CHECK(!kFits<bool>);
  CHECK(!kFits<double>);
  CHECK(!kFits<Word>);
  CHECK(!kFits<const void*>);
}
