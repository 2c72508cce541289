#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "image/registry/http.hpp"
#include "image/registry/secret.hpp"

namespace spc {

/// `scheme://host:port` in lower case, with the scheme's default port if the URL has none; empty if
/// it is not an http or https URL. Two URLs have the same origin if these are equal.
std::string origin_of(const std::string& url);

/// One login scheme that a server offers in WWW-Authenticate (RFC 9110, 11.6.1).
struct Challenge {
  std::string scheme;  ///< lower case: `bearer`, `basic`
  std::map<std::string, std::string> parameters;
};
std::vector<Challenge> parse_challenges(std::string_view header);

/// The request to a login server: for `scopes`, or else what the registry names, or else the right
/// to pull `repository`, or just for the login if that is empty. A realm that is neither https nor
/// of the registry's own origin is refused: the request would be sent in clear text. Without a
/// secret the token is anonymous. A password goes into the Authorization header of a GET, an
/// identity token into a form (https://distribution.github.io/distribution/spec/auth/oauth/).
Result<HttpRequest> token_request(const Challenge& bearer, const std::string& repository,
                                  const std::string& registry_url, const RegistrySecret* secret,
                                  const std::vector<std::string>& scopes = {});

/// Whether a login server may receive the credentials for a registry: one
///  - of the registry's own origin,
///  - with https on the registry's host, or under the same registrable domain by the Public Suffix
///  List
///    (auth.docker.io for registry-1.docker.io, gitlab.com for registry.gitlab.com),
///  - with https on authn.nvidia.com for nvcr.io,
///  - with https on a HOST[:PORT] that the site lists as `login_servers` of the registry.
bool may_see_credentials(const std::string& realm, const std::string& registry_url,
                         const std::vector<std::string>& login_servers);

/// `Basic …` for a user name and password.
SecretText basic_authorization(const RegistrySecret& secret);

/// The token in a token server's response.
Result<SecretText> parse_token(std::string_view body);

}  // namespace spc
