#include "spank/job_options.hpp"

#include "unit/catch2_compat.hpp"

using namespace spank_container;

namespace {

std::vector<int> groups(std::vector<std::string> words) {
  words.insert(words.begin(), "srun");
  return groups_of_command_line(words);
}

}  // namespace

TEST_CASE("components_survive_serialization") {
  const std::vector<Component> components{{.group = 0,
                                           .given = {{0, "docker://me@registry:5000/a/b:1"},
                                                     {1, "/a b,c;d=%25:/x:ro\n\"\xc3\xa4"},
                                                     {6, ""}}},
                                          {.group = 1, .given = {}},
                                          {.group = 127, .given = {{0, "oci:dir"}}}};
  const std::string text = write_components(components);
  CHECK(text.find('\n') == std::string::npos);
  CHECK(read_components(text) == components);
}

TEST_CASE("components_in_other_text_are_none") {
  for (const char* text :
       {"", "x", "0,no-such-option=1", "-1", "128", "0,container-image=%0", "0,container-image=%zz",
        "0,container-image=%00", "0;;1", "0,container-image=a;b"}) {
    INFO(text);
    CHECK(read_components(text).empty());
  }
}

TEST_CASE("components_are_counted_from_the_left") {
  CHECK(groups({"-n1", "true"}) == std::vector{0});
  CHECK(groups({"-n1", "true", ":", "-n", "2", "true", ":", "-n1", "true"}) ==
        std::vector{0, 1, 2});
}

TEST_CASE("components_het_group_counts_as_in_srun") {
  CHECK(groups({"--het-group=2", "true", ":", "--het-group", "0", "true"}) == std::vector{2, 0});
  CHECK(groups({"--het-group=0,2-3", "true"}) == std::vector{0, 2, 3});
  CHECK(groups({"--het-group=[3,0]", "true"}) == std::vector{0, 3});
  CHECK(groups({"--het-g=1", "true", ":", "--pack-group=2", "true"}) == std::vector{1, 2});
}

TEST_CASE("components_het_group_in_command_is_ambiguous") {
  CHECK(groups({"--het-group=0", "srun", "--het-group=1", "true"}).empty());
  CHECK(groups({"--het-group=x", "true"}).empty());
  CHECK(groups({"--het-group=3-1", "true"}).empty());
  CHECK(groups({"true", "--het-group"}).empty());
}
