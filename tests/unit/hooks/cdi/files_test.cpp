#include <set>

#include "cdi_files.hpp"
#include "hooks/cdi/names.hpp"
#include "hooks/cdi/spec.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

std::string said(const Result<CdiSpec>& spec) { return spec ? "accepted" : spec.error().message(); }

std::set<std::string> files_in(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(SPC_CDI_FILES "/" + directory)) {
    if (entry.path().extension() != ".txt") names.insert(entry.path().filename());
  }
  return names;
}

Json yaml(const std::string& text) {
  auto tree = parse_cdi_yaml(text);
  return tree ? *tree : Json("refused: " + tree.error().message());
}

Json list(Json::Array elements) { return Json::array(std::move(elements)); }

}  // namespace

TEST_CASE("cdi_device_name_is_vendor_class_and_name") {
  for (const char* name : {"nvidia.com/gpu=0", "nvidia.com/gpu=GPU-5c7a", "nvidia.com/gpu=0:1",
                           "a/b=c", "v-1.x_y/c.d=all", "a/b=0000:03:00.0"}) {
    const auto parsed = CdiName::parse(name);
    REQUIRE(parsed);
    CHECK(parsed->str() == name);
  }
  for (const char* name :
       {"", "gpu", "nvidia.com/gpu", "nvidia.com/gpu=", "/gpu=0", "nvidia.com/=0", "1v/c=0",
        "v/1c=0", "v./c=0", "v/c-=0", "v/c=a/b", "v/c=-a", "v/c=a:", "v/c=a b", "v/c=a=b",
        "v/c/d=a", "v/c=\xc3\xa4", "../etc=passwd"}) {
    const auto parsed = CdiName::parse(name);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().message().find("is not a device name (hint: VENDOR/CLASS=NAME") !=
          std::string::npos);
  }
  CHECK_FALSE(CdiName::parse("v/c=" + std::string(300, 'a')));
}

TEST_CASE("cdi_vendor_files_are_accepted") {
  for (const std::string& name : files_in("vendors")) {
    INFO(name);
    CHECK(said(parse_cdi_spec(cdi_text("vendors/" + name))) == "accepted");
  }
  for (const std::string& name : files_in("accepted")) {
    INFO(name);
    CHECK(said(parse_cdi_spec(cdi_text("accepted/" + name))) == "accepted");
  }
  CHECK(files_in("vendors").size() == 6);
}

// outcome 220 refused: a CDI file that is malformed, huge, has a shell or mounts of /, or is not root's
TEST_CASE("cdi_wrong_files_are_refused_with_reason") {
  std::istringstream table(cdi_text("refused/why.txt"));
  std::set<std::string> told;
  for (std::string line; std::getline(table, line);) {
    const std::string name = line.substr(0, line.find('\t'));
    const std::string why = line.substr(line.find('\t') + 1);
    told.insert(name);
    INFO(name);
    const std::string message = said(parse_cdi_spec(cdi_text("refused/" + name)));
    INFO(message);
    CHECK(message.find(why) != std::string::npos);
  }
  CHECK(told == files_in("refused"));
}

// outcome 220 refused: a CDI file that is malformed, huge, has a shell or mounts of /, or is not root's
TEST_CASE("cdi_oversized_file_is_refused_before_parsing") {
  CHECK(said(parse_cdi_spec(std::string((1 << 20) + 1, ' '))).find("larger than 1 MiB") !=
        std::string::npos);
  std::string many = "cdiVersion: 0.5.0\nkind: v.com/c\ndevices:\n";
  for (int i = 0; i < 100'001; ++i) many += "- a\n";
  CHECK(said(parse_cdi_spec(many)).find("more than 100000 values") != std::string::npos);
  std::string json = R"({"cdiVersion":"0.5.0","devices":[0)";
  for (int i = 0; i < 100'001; ++i) json += ",0";
  CHECK(said(parse_cdi_spec(json + "]}")).find("more than 100000 values") != std::string::npos);
  // A hundred thousand levels must not overflow the stack.
  CHECK(said(parse_cdi_spec("{\"a\":" + std::string(100'000, '[')))
            .find("is nested more than 16 levels deep") != std::string::npos);
  std::string dashes;
  for (int i = 0; i < 100'000; ++i) dashes += "- ";
  CHECK(said(parse_cdi_spec(dashes + "a")).find("is nested more than 16 levels deep") !=
        std::string::npos);
}

TEST_CASE("cdi_file_of_nvidia_ctk_is_parsed") {
  const auto spec = parse_cdi_spec(cdi_text("vendors/fake-nvidia.yaml"));
  REQUIRE(spec);
  CHECK(spec->kind == "nvidia.com/gpu");
  CHECK(spec->version == "0.5.0");
  REQUIRE(spec->devices.size() == 4);
  CHECK(spec->devices[0].name == "0");
  CHECK(spec->devices[3].edits.device_nodes.size() == 6);
  REQUIRE(spec->devices[0].edits.hooks.size() == 1);
  CHECK(spec->devices[0].edits.hooks[0].args[3] ==
        "../card1::/dev/dri/by-path/pci-0000:06:00.0-card");
  CHECK(spec->edits.env ==
        std::vector<std::string>{"NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu",
                                 "NVIDIA_VISIBLE_DEVICES=void"});
  REQUIRE(spec->edits.mounts.size() == 5);
  CHECK(spec->edits.mounts[0] == CdiMount{"/run/nvidia-persistenced/socket",
                                          "/run/nvidia-persistenced/socket",
                                          {"nosuid", "nodev", "rbind", "rprivate", "noexec"},
                                          ""});
  CHECK(spec->edits.hooks.size() == 4);
}

TEST_CASE("cdi_file_in_json_and_yaml_is_equal") {
  const auto yaml_spec = parse_cdi_document(cdi_text("vendors/fake-nvidia.yaml"));
  REQUIRE(yaml_spec);
  CHECK(yaml_spec->from_yaml);
  const auto json_spec = parse_cdi_document(yaml_spec->tree.str());
  REQUIRE(json_spec);
  CHECK_FALSE(json_spec->from_yaml);
  CHECK(json_spec->tree == yaml_spec->tree);
}

TEST_CASE("cdi_yaml_scalars_follow_go_rules") {
  CHECK(yaml("a: 1\nb: 010\nc: 0x1F\nd: 0o17\ne: -5\nf: 1.0\ng: 08\nh: true\ni: ~\nj: null\nk: "
             "+3\nl: 1_0\nm: 0.5.0\n") == Json{{"a", 1},
                                               {"b", 8},
                                               {"c", 31},
                                               {"d", 15},
                                               {"e", -5},
                                               {"f", "1.0"},
                                               {"g", "08"},
                                               {"h", "true"},
                                               {"i", Json()},
                                               {"j", Json()},
                                               {"k", 3},
                                               {"l", "1_0"},
                                               {"m", "0.5.0"}});
  CHECK(yaml("- a\n- - b\n  - c\n- d: e\n  f:\n  - g\n-\n  - h\n") ==
        list({"a", list({"b", "c"}), Json{{"d", "e"}, {"f", list({"g"})}}, list({"h"})}));
  CHECK(yaml("a:\n- b\nc:\n  - d\n") == Json{{"a", list({"b"})}, {"c", list({"d"})}});
  CHECK(yaml("a: b:c\nd: http://e/f\n'g': \"h: i\"\n") ==
        Json{{"a", "b:c"}, {"d", "http://e/f"}, {"g", "h: i"}});
  CHECK(yaml("a: \"\\\"\\\\\\/\\t\\u20ac\\x41\"\nb: 'it''s # all'\nc: it's # not all\n") ==
        Json{{"a",
              "\"\\/\t\xe2\x82\xac"
              "A"},
             {"b", "it's # all"},
             {"c", "it's"}});
  CHECK(yaml("a:\nb:\n  c:\nd: []\ne: {}\nf: ''\n") == Json{{"a", Json()},
                                                            {"b", Json{{"c", Json()}}},
                                                            {"d", list({})},
                                                            {"e", Json::object()},
                                                            {"f", ""}});
}

TEST_CASE("cdi_yaml_not_a_tree_of_texts_is_refused") {
  using namespace std::string_literals;
  for (const std::string& text :
       {"a: \0"s, "\xef\xbb\xbf? [a]\n: b"s, "a: \xc0\x80"s, "a: [b"s, "a: {"s, "a: 'b"s,
        "a: \"\\q\""s, "- a\nb: c"s, "a: &b\n- *b"s, "{}: a"s, "[]: a"s, "? |\n  a\n: b"s,
        "*a : b"s, "&a b: c"s, "a: b\n...\n--- c"s}) {
    INFO(text);
    CHECK(yaml(text).as_text().starts_with("refused: "));
  }
  CHECK(yaml("a: \"\\0\"\n") == Json{{"a", std::string(1, '\0')}});
  CHECK(
      said(parse_cdi_spec("kind: \"\\0\"\ncdiVersion: 0.5.0\n")).find("contains a NUL character") !=
      std::string::npos);
}

TEST_CASE("cdi_yaml_map_with_many_keys_is_fast") {
  std::string text = "a:\n";
  for (int i = 0; i < 49'000; ++i) text += "  k" + std::to_string(i) + ":\n";
  CHECK(yaml(text).find("a")->size() == 49'000);
}
