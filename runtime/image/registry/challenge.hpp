#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "image/registry/http.hpp"
#include "image/registry/secret.hpp"

namespace spc {

/// `scheme://host:port` in lower case and with the scheme's port where the URL has none; empty for what is not a URL
/// with http or https. Two URLs are of one origin when these are equal.
std::string origin_of(const std::string& url);

/// One way to log in that a server offers in WWW-Authenticate (RFC 9110, 11.6.1).
struct Challenge {
  std::string scheme;  ///< lower case: `bearer`, `basic`
  std::map<std::string, std::string> parameters;
};
std::vector<Challenge> parse_challenges(std::string_view header);

/// A question to a login server: for the right to pull `repository`, or for nothing but the login if that is empty. A realm
/// that is neither https nor of the registry's own origin is refused: it would be asked in the clear.
/// Without a secret the token is an anonymous one. A password goes into the Authorization header of a GET, an identity
/// token into a form (https://distribution.github.io/distribution/spec/auth/oauth/).
Result<HttpRequest> token_request(const Challenge& bearer, const std::string& repository, const std::string& registry_url,
                                  const RegistrySecret* secret);

/// Whether a login server may be shown the credentials for a registry: one
///  - of the registry's own origin,
///  - with https on the registry's host, or under the same registrable domain by the Public Suffix List
///    (auth.docker.io for registry-1.docker.io, gitlab.com for registry.gitlab.com),
///  - with https on authn.nvidia.com for nvcr.io,
///  - with https on a HOST[:PORT] that the site lists as `login_servers` of the registry.
bool may_see_credentials(const std::string& realm, const std::string& registry_url,
                         const std::vector<std::string>& login_servers);

/// `Basic …` for a user's name and password.
SecretText basic_authorization(const RegistrySecret& secret);

/// The token in the answer of a token server.
Result<SecretText> parse_token(std::string_view body);

}  // namespace spc
