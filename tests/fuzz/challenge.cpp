// A server's authentication challenge (first line) and the token server's answer (the rest).
// outcome 29 refused: token servers of every wrong form
// outcome 30 refused: realm of a file, in the clear, foreign

#include "registry/challenge.hpp"
#include "lib/property.hpp"

using namespace spc;
using namespace spc::fuzz;

namespace {

constexpr const char* kRegistry = "http://registry:5000";

bool has_upper(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

void check(const Challenge& challenge) {
  must(!challenge.scheme.empty() && !has_upper(challenge.scheme),
       "a scheme has a name in lower case");
  for (const auto& [name, value] : challenge.parameters)
    must(!name.empty() && !has_upper(name), "so have parameters");
  const auto request = token_request(challenge, "library/ubuntu", kRegistry, nullptr);
  if (!request) return must_be_readable(request.error());
  const std::string& url = request->url;
  const auto realm = challenge.parameters.at("realm");
  must(origin_of(url) == origin_of(realm), "what is asked is the realm");
  must(origin_of(url).starts_with("https://") || origin_of(url) == origin_of(kRegistry),
       "nobody else is asked in the clear");
  must(url.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos,
       "an address has no line ends");
  must(!may_see_credentials(realm, kRegistry, {}) || origin_of(url) == origin_of(kRegistry),
       "an http registry keeps its secrets");
  must(!may_see_credentials(realm, "https://registry.example.org", {}) ||
           origin_of(url).starts_with("https://"),
       "no secret is sent in the clear");
}

}  // namespace

FUZZ_TARGET(challenge) {
  const std::string_view text = text_of(data, size);
  const auto end = std::min(text.find('\n'), text.size());
  for (const Challenge& challenge : parse_challenges(text.substr(0, end))) check(challenge);
  const auto token = parse_token(text.substr(std::min(end + 1, text.size())));
  if (token) {
    const std::string& word = token->text();
    must(!word.empty() && is_printable(word) && word.find(' ') == std::string::npos,
         "a token is fit for a header");
  } else {
    must_be_readable(token.error());
  }
  (void)origin_of(std::string(text));
  return 0;
}
