#include "base/json.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

std::string why_refused(std::string_view text, const JsonLimits& limits = {}) {
  const auto parsed = Json::parse(text, limits);
  return parsed ? "" : parsed.error().message();
}

}  // namespace

TEST_CASE("json_ambiguous_document_is_refused") {
  CHECK(why_refused("") == "is empty");
  CHECK(why_refused(" \n") == "is empty");
  CHECK(why_refused("{") == "is not JSON (at byte 2)");
  CHECK(why_refused("{} {}") == "is not JSON (at byte 4)");
  CHECK(why_refused("{\"a\":1,\"b\":{\"a\":2,\"a\":3}}") == "key \"a\" is given twice");
  CHECK(why_refused("[\"\xff\"]").starts_with("is not JSON"));
  CHECK(why_refused("[[[1]]]", {.depth = 2}) == "is nested more than 2 levels deep");
  CHECK(why_refused("[1,2,3]", {.values = 3}) == "has more than 3 values");
  CHECK(why_refused("[1,2]", {.values = 3}).empty());
  CHECK(why_refused("[1,2]", {.bytes = 4}) == "is larger than 4 bytes");
  CHECK(Json::parse("{", {.kind = ErrorKind::invalid}).error().kind() == ErrorKind::invalid);
  CHECK(Json::parse(std::string(100'000, '[')).error().kind() == ErrorKind::corrupt);
}

TEST_CASE("json_members_are_found_by_key_and_type") {
  const Json document =
      Json::parse(
          R"({"name":"x","size":18446744073709551615,"no":null,"list":[1,-1],"nul":"a\u0000b"})")
          .value();
  CHECK(document.text("name").value() == "x");
  CHECK(document.number("size").value() == UINT64_MAX);
  CHECK_FALSE(document.text("no").value());
  CHECK_FALSE(document.text("absent").value());
  CHECK(document.find("no") == nullptr);
  CHECK(document.list("list").value()->size() == 2);
  CHECK(document.list("absent").value()->empty());
  CHECK_FALSE(document.list("list").value()->at(1).is_number());
  CHECK(document.text("size").error().message() == "\"size\" is not a string");
  CHECK(document.number("name").error().message() == "\"name\" is not a number from 0 to 2^64-1");
  CHECK(document.list("name").error().message() == "\"name\" is not an array");
  CHECK(document.text("nul").error().message() == "\"nul\" contains a NUL character");
  CHECK(Json("text").find("name") == nullptr);
}

TEST_CASE("json_document_survives_serialization") {
  Json object{{"name", "a \"b\"\n"}, {"count", 3},  {"below", -1},
              {"on", true},          {"half", 0.5}, {"inner", {{"k", Json::array({"v"})}}}};
  object["texts"] = std::vector<std::string>{"x", "y"};
  object["map"] = std::map<std::string, std::string>{{"A", "1"}};
  object["none"] = Json();
  object["pushed"].push_back(1);
  CHECK(
      object.str() ==
      R"({"below":-1,"count":3,"half":0.5,"inner":{"k":["v"]},"map":{"A":"1"},"name":"a \"b\"\n",)"
      R"("none":null,"on":true,"pushed":[1],"texts":["x","y"]})");
  CHECK(Json::parse(object.str()).value() == object);
  CHECK(Json::parse(object.str(2)).value() == object);
  object.erase("name");
  CHECK_FALSE(object.find("name"));
}

TEST_CASE("json_indented_document_keeps_order_on_request") {
  const Json object{{"b", Json::array({1, 2})}, {"a", Json::object()}, {"c", Json::array()}};
  CHECK(object.str(2) == "{\n  \"a\": {},\n  \"b\": [\n    1,\n    2\n  ],\n  \"c\": []\n}");
  CHECK(object.str(1, '\t', Json::Order::kept) ==
        "{\n\t\"b\": [\n\t\t1,\n\t\t2\n\t],\n\t\"a\": {},\n\t\"c\": []\n}");
  CHECK(Json("\xff").str() == "\"\xef\xbf\xbd\"");
}

TEST_CASE("json_object_unknown_member_is_refused") {
  const Json document =
      JsonObject::parse(R"({"path":"/a","on":true,"mounts":[{"target":"x/y"}],"odd":1})").value();
  auto object = JsonObject::of(document).value();
  std::string path;
  bool on = false;
  REQUIRE(object.take_path("path", path));
  REQUIRE(object.take("on", on));
  CHECK(path == "/a");
  CHECK(on);
  std::string target;
  const auto read = object.take_each(
      "mounts", [&](JsonObject& mount) { return mount.take_path("target", target); });
  CHECK(read.error().message() == "mounts[0].target: \"x/y\" is not an absolute path");
  CHECK(object.nothing_left().error().message() == "odd: is unknown");
  std::uint64_t number = 0;
  CHECK(object.take("path", number).error().message() == "path: is not a number from 0 to 2^64-1");
  CHECK(JsonObject::parse("[]").error().message() == "is not a JSON object");
  CHECK(path_problem("/a/../b") == "\"/a/../b\" has a part \"..\"");
  CHECK(path_problem("/a..b").empty());
}
