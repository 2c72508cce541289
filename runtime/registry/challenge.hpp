#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "registry/http.hpp"

namespace spc {

// --- secret ---

/// A string that is overwritten in memory when it is destroyed. Secrets are never shown and never
/// passed as an argument of a program.
class SecretText {
 public:
  SecretText() = default;
  explicit SecretText(std::string text) : text_(std::move(text)) {}
  SecretText(const SecretText&) = default;
  SecretText(SecretText&& other) noexcept : text_(std::move(other.text_)) { other.wipe(); }
  SecretText& operator=(SecretText other) noexcept {
    text_.swap(other.text_);
    return *this;
  }
  ~SecretText() { wipe(); }

  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] bool empty() const { return text_.empty(); }

 private:
  void wipe() noexcept;
  std::string text_;
};

/// One user's credentials for one registry: a user name and password; or an identity token, which
/// the login server exchanges for a token that lasts minutes; or a registry token, which is sent as
/// it is.
struct RegistrySecret {
  std::string username;
  SecretText password;
  SecretText identity_token;
  SecretText registry_token;
  std::string source;  ///< its origin for messages: a file or a program

  [[nodiscard]] bool empty() const {
    return password.empty() && identity_token.empty() && registry_token.empty();
  }

  /// Returns a sealed memory file with records `key=value\0` (UserSourceKind::secret).
  [[nodiscard]] Result<UniqueFd> to_file() const;
  /// Reads a sealed memory file made by another process, at most 64 KiB. Refuses any other
  /// descriptor, because reading it could block.
  static Result<RegistrySecret> from_file(int fd);
};

// --- login challenge ---

/// Returns `scheme://host:port` in lower case, with the scheme's default port if the URL has none.
/// Returns an empty string if it is not an http or https URL. Two URLs have the same origin if
/// these strings are equal.
std::string origin_of(const std::string& url);

/// A login scheme offered by a server in WWW-Authenticate (RFC 9110, 11.6.1).
struct Challenge {
  std::string scheme;  ///< lower case: `bearer`, `basic`
  std::map<std::string, std::string> parameters;
};
/// Returns all challenges of a WWW-Authenticate header. Malformed parts are skipped.
std::vector<Challenge> parse_challenges(std::string_view header);

/// Returns the token request to a login server. It asks for `scopes`, or else for the scope that
/// the registry names, or else for the right to pull `repository`; if that is empty, only for a
/// login. Refuses a realm that is neither https nor of the registry's own origin, unless it is
/// `insecure`: the request would be sent in clear text. Without a secret the token is anonymous. A
/// password is sent in the Authorization header of a GET, an identity token in a form
/// (https://distribution.github.io/distribution/spec/auth/oauth/).
Result<HttpRequest> token_request(const Challenge& bearer, const std::string& repository,
                                  const std::string& registry_url, const RegistrySecret* secret,
                                  const std::vector<std::string>& scopes = {},
                                  bool insecure = false);

/// Returns whether a login server may receive the credentials for a registry. It may if it is
///  - of the registry's own origin,
///  - with https on the registry's host, or under the same registrable domain by the Public Suffix
///    List (auth.docker.io for registry-1.docker.io, gitlab.com for registry.gitlab.com),
///  - with https on authn.nvidia.com for nvcr.io,
///  - with https on a HOST[:PORT] that the site lists as `login_servers` of the registry.
/// `insecure`: the site allows plain HTTP to this login server, which then counts as https does. It
/// does not for another host of the registry's domain.
bool may_see_credentials(const std::string& realm, const std::string& registry_url,
                         const std::vector<std::string>& login_servers, bool insecure = false);

/// Returns the HOST[:PORT] of `url` as config.toml names a registry: in lower case, without the
/// scheme's default port unless `with_port`. Empty if it is not an http or https URL.
std::string registry_of(const std::string& url, bool with_port = false);

/// Returns `Basic …` for a user name and password.
SecretText basic_authorization(const RegistrySecret& secret);

/// Returns the token in a login server's response.
Result<SecretText> parse_token(std::string_view body);

}  // namespace spc
