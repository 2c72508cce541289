#include "image/facts/facts.hpp"

#include <string>

#include "unit/test.hpp"

using namespace spc;

TEST_CASE("a fact sheet is read back from settings, and what wrote it can do no harm") {
  const std::string end(1, '\0');
  CHECK(!facts_in("env=A=1" + end));
  const auto sheet = facts_in("env=A=1" + end + fact_records({.facts = {{"cuda", "12.4"}, {"os", "Toy"}}, .labels = "{}"}));
  REQUIRE(sheet);
  CHECK(sheet->facts.size() == facts_from({}).size());
  CHECK(sheet->facts.front().what == "os");
  CHECK(sheet->facts.front().value == "Toy");
  CHECK(sheet->labels == "{}");

  const auto hostile = facts_in("fact=os=a\033[31m" + std::string(100'000, 'x') + end + "fact=unknown=1" + end + "fact=" + end);
  REQUIRE(hostile);
  CHECK(hostile->facts.size() == facts_from({}).size());
  CHECK(hostile->facts.front().value.size() < 400);
  CHECK(hostile->facts.front().value.find('\033') == std::string::npos);
}

TEST_CASE("variables of a configuration tell what they are about") {
  for (const Fact& fact : facts_of_variables({"CUDA_VERSION=12.4.1", "NV_CUDNN_VERSION=9.1", "CUDA_VERSIONS=1", "PATH=/bin"})) {
    INFO(fact.what);
    CHECK(fact.value.empty() != (fact.what == "cuda" || fact.what == "cudnn" || fact.what == "driver"));
  }
}
