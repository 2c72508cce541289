#include "catch.hpp"
#include "image/challenge.hpp"

using namespace spc;

TEST_CASE("a challenge is read with its parameters, whatever their order and quoting") {
  const auto found = parse_challenges(
      R"(Basic realm="a, b", BEARER realm="https://auth/t?x=1", service = reg ,scope="repository:a/b:pull,push")");
  REQUIRE(found.size() == 2);
  CHECK(found[0].scheme == "basic");
  CHECK(found[0].parameters.at("realm") == "a, b");
  CHECK(found[1].scheme == "bearer");
  CHECK(found[1].parameters.at("service") == "reg");
  CHECK(found[1].parameters.at("scope") == "repository:a/b:pull,push");
  CHECK(token_url(found[1], "a/b", "https://r").value() ==
        "https://auth/t?x=1&service=reg&scope=repository%3Aa%2Fb%3Apull%2Cpush");
}

TEST_CASE("garbage in a challenge does no harm") {
  for (const char* text : {"", ",,,", "=", "\"", "Bearer realm=\"", "Bearer realm=\"\\", "\x01\xff", "a=b", "Bearer =x"}) {
    CHECK(parse_challenges(text).size() <= 1);
  }
}

TEST_CASE("a login server must use https unless it is the registry itself") {
  const auto url = [](const std::string& realm, const std::string& registry) {
    return token_url({"bearer", {{"realm", realm}}}, "x", registry).has_value();
  };
  CHECK_FALSE(url(std::string("https://a/\0b", 12), "https://r"));
  CHECK_FALSE(url("https://a/\r\nX: y", "https://r"));
  CHECK(url("https://auth.example.org/token", "https://r"));
  CHECK(url("http://r:5000/token", "http://r:5000"));
  CHECK_FALSE(url("http://r:5001/token", "http://r:5000"));
  CHECK_FALSE(url("http://auth/token", "https://auth"));
  CHECK_FALSE(url("file:///etc/passwd", "https://r"));
  CHECK_FALSE(url("", "https://r"));
}

TEST_CASE("two URLs are of one origin when scheme, host and port are equal") {
  CHECK(origin_of("https://R.example/x") == origin_of("https://r.example:443/y?z"));
  CHECK(origin_of("https://r/") != origin_of("http://r/"));
  CHECK(origin_of("https://r/") != origin_of("https://r:444/"));
  CHECK(origin_of("https://r@evil/") != origin_of("https://r/"));
  CHECK(origin_of("ftp://r/").empty());
  CHECK(origin_of("nonsense").empty());
}

TEST_CASE("a token is taken from either name and must be printable") {
  CHECK(parse_token(R"({"token":"a.b-c"})").value() == "a.b-c");
  CHECK(parse_token(R"({"access_token":"x","expires_in":60})").value() == "x");
  CHECK_FALSE(parse_token(R"({"token":""})"));
  CHECK_FALSE(parse_token(R"({"token":"a b"})"));
  CHECK_FALSE(parse_token(R"({"token":"a\r\nX: y"})"));
  CHECK_FALSE(parse_token("<html>"));
}
