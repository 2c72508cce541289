#include "challenge.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <memory>

#include "image/json.hpp"

namespace spc {
namespace {

// Written spc::quoted here: <iomanip> has a std::quoted for std::string, which argument-dependent lookup prefers.

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

bool is_token_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

/// Reads the pieces of a WWW-Authenticate header, one after the other.
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view text) : rest_(text) {}
  bool at_end() {
    skip(" \t,");
    return rest_.empty();
  }
  std::string_view token() {
    std::size_t size = 0;
    while (size < rest_.size() && is_token_char(rest_[size])) ++size;
    const std::string_view found = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return found;
  }
  /// Takes `=` (with optional blanks) if it comes next.
  bool equals() {
    const std::string_view before = rest_;
    skip(" \t");
    if (rest_.starts_with('=')) {
      rest_.remove_prefix(1);
      skip(" \t");
      return true;
    }
    rest_ = before;
    return false;
  }
  std::string value() {
    if (!rest_.starts_with('"')) return std::string(token());
    std::string out;
    std::size_t i = 1;
    for (; i < rest_.size() && rest_[i] != '"'; ++i) {
      if (rest_[i] == '\\' && i + 1 < rest_.size()) ++i;
      out += rest_[i];
    }
    rest_.remove_prefix(std::min(i + 1, rest_.size()));
    return out;
  }
  void drop_character() { rest_.remove_prefix(1); }

 private:
  void skip(std::string_view characters) { rest_.remove_prefix(std::min(rest_.find_first_not_of(characters), rest_.size())); }
  std::string_view rest_;
};

std::string escaped(const std::string& text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' ||
        c == '~') {
      out += c;
    } else {
      out += '%';
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[static_cast<unsigned char>(c) & 15];
    }
  }
  return out;
}

}  // namespace

std::string origin_of(const std::string& url) {
  const std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> parsed(curl_url(), &curl_url_cleanup);
  if (!parsed || curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return {};
  const auto part = [&](CURLUPart which) -> std::string {
    char* text = nullptr;
    if (curl_url_get(parsed.get(), which, &text, CURLU_DEFAULT_PORT) != CURLUE_OK || text == nullptr) return {};
    std::string out = lower(text);
    curl_free(text);
    return out;
  };
  const std::string scheme = part(CURLUPART_SCHEME);
  if (scheme != "http" && scheme != "https") return {};
  return scheme + "://" + part(CURLUPART_HOST) + ":" + part(CURLUPART_PORT);
}

std::vector<Challenge> parse_challenges(std::string_view header) {
  std::vector<Challenge> challenges;
  HeaderReader reader(header);
  while (!reader.at_end()) {
    const std::string_view name = reader.token();
    if (name.empty()) {
      reader.drop_character();
      continue;
    }
    if (reader.equals()) {
      std::string value = reader.value();
      if (!challenges.empty()) challenges.back().parameters.emplace(lower(name), std::move(value));
    } else {
      challenges.push_back({lower(name), {}});
    }
  }
  return challenges;
}

Result<std::string> token_url(const Challenge& bearer, const std::string& repository, const std::string& registry_url) {
  const auto parameter = [&](const char* name) -> std::string {
    const auto found = bearer.parameters.find(name);
    return found == bearer.parameters.end() ? "" : found->second;
  };
  const std::string realm = parameter("realm");
  const bool is_text = std::all_of(realm.begin(), realm.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  const std::string origin = is_text ? origin_of(realm) : "";
  if (origin.empty())
    return Error(ErrorKind::refused, "it names " + spc::quoted(realm) + " as its login server, which is not a web address");
  if (!origin.starts_with("https://") && origin != origin_of(registry_url)) {
    return Error(ErrorKind::refused, "its login server " + spc::quoted(realm) + " does not use https");
  }
  std::string scope = parameter("scope");
  if (scope.empty()) scope = "repository:" + repository + ":pull";
  std::string url = realm + (realm.find('?') == std::string::npos ? "?" : "&");
  if (const std::string service = parameter("service"); !service.empty()) url += "service=" + escaped(service) + "&";
  return url + "scope=" + escaped(scope);
}

Result<std::string> parse_token(std::string_view body) {
  const Json answer = SPC_TRY(parse_json_object(body, "the login server's answer"));
  for (const char* key : {"token", "access_token"}) {
    const auto token = SPC_TRY_DURING("the login server's answer", text_member(answer, key));
    if (!token || token->empty()) continue;
    const auto printing = [](char c) { return c > 0x20 && c < 0x7f; };
    if (!std::all_of(token->begin(), token->end(), printing)) break;
    return *token;
  }
  return Error(ErrorKind::unavailable, "the login server's answer: there is no token in it");
}

}  // namespace spc
