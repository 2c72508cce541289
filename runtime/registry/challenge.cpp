// Credentials and login challenges: WWW-Authenticate, token requests, and the servers that may
// receive credentials.

#include "registry/challenge.hpp"

#include <curl/curl.h>
#include <fcntl.h>
#include <libpsl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "registry/manifest.hpp"

namespace spc {

// --- secret ---

namespace {

constexpr std::size_t kMaxFile = 64 << 10;

/// Returns whether `text` can be sent in a header line. Spaces are allowed: some passwords have
/// them.
bool is_one_line(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

Result<RegistrySecret> parse_records(std::string_view bytes) {
  const auto wrong = [](const char* what) {
    return Error(ErrorKind::invalid, std::string("credentials: ") + what);
  };
  RegistrySecret secret;
  Records records(bytes);
  while (records.next()) {
    const std::string_view key = records.key();
    const std::string_view value = records.value();
    if (!is_one_line(value)) return wrong("contain a control character");
    if (key == "username") {
      secret.username = value;
    } else if (key == "password") {
      secret.password = SecretText(std::string(value));
    } else if (key == "identity_token") {
      secret.identity_token = SecretText(std::string(value));
    } else if (key == "registry_token") {
      secret.registry_token = SecretText(std::string(value));
    } else if (key == "source") {
      secret.source = value;
    } else {
      return wrong("unknown key in a record");
    }
  }
  if (records.damaged()) return wrong("damaged record");
  if (secret.empty()) return wrong("contain neither password nor token");
  return secret;
}

}  // namespace

void SecretText::wipe() noexcept {
  // Wipe up to the capacity: a moved-from string is empty, but a short one leaves its bytes behind.
  ::explicit_bzero(text_.data(), text_.capacity());
}

Result<UniqueFd> RegistrySecret::to_file() const {
  std::string records;
  records.reserve(kMaxFile);  // growing would leave copies behind
  const auto add = [&](std::string_view key, std::string_view value) {
    if (!value.empty()) add_record(records, key, value);
  };
  add("username", username);
  add("password", password.text());
  add("identity_token", identity_token.text());
  add("registry_token", registry_token.text());
  add("source", source);
  if (records.size() > kMaxFile)
    return Error(ErrorKind::invalid, "credentials: are longer than 64 KiB");
  const SecretText wiped(std::move(records));
  return sealed_memory_file("credentials", wiped.text());
}

Result<RegistrySecret> RegistrySecret::from_file(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & (F_SEAL_WRITE | F_SEAL_SHRINK)) != (F_SEAL_WRITE | F_SEAL_SHRINK)) {
    return Error(ErrorKind::invalid, "credentials: not in a sealed memory file");
  }
  const SecretText bytes(SPC_TRY_DURING("credentials", read_file(fd, kMaxFile)));
  return parse_records(bytes.text());
}

// --- login challenge ---

namespace {

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

/// Tokenizer of a WWW-Authenticate header.
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
  /// Consumes `=` (with optional blanks), or returns false.
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
  void skip(std::string_view characters) {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(characters), rest_.size()));
  }
  std::string_view rest_;
};

std::string escaped(const std::string& text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
        c == '.' || c == '_' || c == '~') {
      out += c;
    } else {
      out += '%';
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[static_cast<unsigned char>(c) & 15];
    }
  }
  return out;
}

struct UrlParts {
  std::string scheme;
  std::string host;
  std::string port;  // the scheme's default if the URL has none
};

/// Returns the parts in lower case, empty if `url` is not a URL.
UrlParts parts_of(const std::string& url) {
  const std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> parsed(curl_url(), &curl_url_cleanup);
  if (!parsed || curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return {};
  const auto part = [&](CURLUPart which) -> std::string {
    char* text = nullptr;
    if (curl_url_get(parsed.get(), which, &text, CURLU_DEFAULT_PORT) != CURLUE_OK ||
        text == nullptr)
      return {};
    std::string out = lower(text);
    curl_free(text);
    return out;
  };
  return {part(CURLUPART_SCHEME), part(CURLUPART_HOST), part(CURLUPART_PORT)};
}

/// Returns the registrable domain: `example.org` of `registry.example.org`. Empty for an address, a
/// name without dots and a public suffix itself.
std::string registrable_domain(const std::string& host) {
  const bool is_address = host.find_first_not_of("0123456789.") == std::string::npos ||
                          host.find(':') != std::string::npos;
  const char* domain = is_address ? nullptr : psl_registrable_domain(psl_builtin(), host.c_str());
  return domain != nullptr ? domain : "";
}

}  // namespace

std::string origin_of(const std::string& url) {
  const UrlParts parts = parts_of(url);
  if (parts.scheme != "http" && parts.scheme != "https") return {};
  return parts.scheme + "://" + parts.host + ":" + parts.port;
}

std::string registry_of(const std::string& url, bool with_port) {
  const UrlParts parts = parts_of(url);
  if (parts.scheme != "http" && parts.scheme != "https") return {};
  const bool is_default = parts.port == (parts.scheme == "http" ? "80" : "443");
  return parts.host + (is_default && !with_port ? "" : ":" + parts.port);
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

Result<HttpRequest> token_request(const Challenge& bearer, const std::string& repository,
                                  const std::string& registry_url, const RegistrySecret* secret,
                                  const std::vector<std::string>& scopes, bool insecure) {
  const auto parameter = [&](const char* name) -> std::string {
    const auto found = bearer.parameters.find(name);
    return found == bearer.parameters.end() ? "" : found->second;
  };
  const std::string realm = parameter("realm");
  const bool is_text =
      std::all_of(realm.begin(), realm.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  const std::string origin = is_text ? origin_of(realm) : "";
  if (origin.empty())
    return Error(ErrorKind::refused,
                 formatted("names {} as its login server, which is not an http or https URL",
                           in_quotes(realm)));
  if (!insecure && !origin.starts_with("https://") && origin != origin_of(registry_url)) {
    const std::string server = in_quotes(registry_of(realm));
    return Error(ErrorKind::refused, formatted("its login server {} does not use https", server))
        .hint(
            formatted("the site can allow it with insecure = true for {} in config.toml", server));
  }

  // Scopes: those of the caller, else the one that the server names, else the right to pull.
  std::vector<std::string> wanted = scopes;
  if (wanted.empty()) wanted = {parameter("scope")};
  if (wanted.front().empty() && !repository.empty())
    wanted = {"repository:" + repository + ":pull"};
  std::string fields;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty())
      fields += (fields.empty() ? "" : "&") + std::string(name) + "=" + escaped(value);
  };

  // An identity token is sent in a form, a password in a header.
  HttpRequest request;
  request.url = realm;
  add("service", parameter("service"));
  if (secret != nullptr && !secret->identity_token.empty()) wanted = {joined(wanted, " ")};
  for (const std::string& scope : wanted) add("scope", scope);
  if (secret != nullptr && !secret->identity_token.empty()) {
    add("client_id", "spank-container");
    add("grant_type", "refresh_token");
    add("refresh_token", secret->identity_token.text());
    request.form = std::move(fields);
    return request;
  }
  if (secret != nullptr) {
    add("account", secret->username);
    request.authorization = basic_authorization(*secret).text();
  }
  if (!fields.empty()) request.url += (realm.find('?') == std::string::npos ? "?" : "&") + fields;
  return request;
}

bool may_see_credentials(const std::string& realm, const std::string& registry_url,
                         const std::vector<std::string>& login_servers, bool insecure) {
  const std::string origin = origin_of(realm);
  if (!origin.empty() && origin == origin_of(registry_url)) return true;
  const UrlParts server = parts_of(realm);
  const bool is_plain = server.scheme == "http" && insecure;
  if (server.scheme != "https" && !is_plain) return false;
  const UrlParts registry = parts_of(registry_url);
  if ((registry.scheme == "https" || is_plain) && server.host == registry.host) return true;
  if (std::any_of(login_servers.begin(), login_servers.end(), [&](const std::string& allowed) {
        return origin_of(server.scheme + "://" + allowed) == origin;
      })) {
    return true;
  }
  if (registry.scheme != "https" || is_plain)
    return false;  // without TLS the login server's name could be forged
  if (registry.host == "nvcr.io" && server.host == "authn.nvidia.com") return true;
  const std::string domain = registrable_domain(registry.host);
  return !domain.empty() && domain == registrable_domain(server.host);
}

SecretText basic_authorization(const RegistrySecret& secret) {
  const SecretText pair(secret.username + ":" + secret.password.text());
  return SecretText("Basic " + base64(pair.text()));
}

Result<SecretText> parse_token(std::string_view body) {
  const Json answer = SPC_TRY(parse_json_object(body, "the login server's response"));
  for (const char* key : {"token", "access_token"}) {
    const auto token = SPC_TRY_DURING("the login server's response", answer.text(key));
    if (!token || token->empty()) continue;
    const auto printing = [](char c) { return c > 0x20 && c < 0x7f; };
    if (!std::all_of(token->begin(), token->end(), printing)) break;
    return SecretText(*token);
  }
  return Error(ErrorKind::unavailable, "the login server's response: no token");
}

}  // namespace spc
