#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

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

/// Where an anonymous token for pulling `repository` is to be had. A realm that is neither https nor of the registry's
/// own origin is refused: it would be asked in the clear.
Result<std::string> token_url(const Challenge& bearer, const std::string& repository, const std::string& registry_url);

/// The token in the answer of a token server.
Result<std::string> parse_token(std::string_view body);

}  // namespace spc
