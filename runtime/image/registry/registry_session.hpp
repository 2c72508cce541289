#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/reference/reference.hpp"
#include "image/registry/challenge.hpp"
#include "image/registry/http.hpp"
#include "image/registry/secret.hpp"

namespace spc {

/// To whom the registry gives what was got.
enum class Access {
  anonymous,             ///< to everybody
  refused_to_anonymous,  ///< to these credentials: without any it refused
  not_known,             ///< to these credentials; it was not asked without
};

/// One server that answers for a repository: the registry itself or a mirror of it.
struct RegistryEndpoint {
  std::string name;          ///< HOST[:PORT][/PREFIX], for messages
  std::string base_url;      ///< scheme and host
  std::string repository;    ///< as this server calls it
  std::string ca;            ///< file of certificates trusted besides the system's
  bool is_mirror = false;    ///< gets no credentials; whatever fails here is asked elsewhere
  bool gave_up = false;      ///< a mirror that does not work is left alone
  bool on_loopback = false;  ///< a service of this node: so may be what it redirects to

  // How it wants to be spoken to, as far as it has said so.
  std::optional<Challenge> bearer;
  SecretText authorization;               ///< the header's value; empty: none
  bool authorized_by_user = false;        ///< it was made from the user's secret
  unsigned authorization_generation = 0;  ///< counts them, so that many fetches renew it once

  [[nodiscard]] std::string url() const { return base_url + "/v2/" + repository + (repository.empty() ? "" : "/"); }
};

/// What the requests to one repository share.
struct RegistrySession {
  HttpClient& http;
  Log& log;                                 ///< told when something is tried again
  std::string registry;                     ///< HOST[:PORT] as the user knows it
  std::string repository;                   ///< empty: only the login is in question
  std::vector<RegistryEndpoint> endpoints;  ///< asked in this order; the last is the registry itself
  std::vector<std::string> login_servers;   ///< HOST[:PORT] that the site trusts with this registry's credentials

  /// Asks the user for his credentials; nobody to ask if empty. It is called at most once.
  std::function<Result<std::optional<RegistrySecret>>()> ask_user;
  bool user_first = false;  ///< the user has said whose credentials: do not try without
  bool asked = false;
  std::optional<RegistrySecret> secret;
  std::optional<Error> trouble;  ///< why the user could not be asked
  bool refused_anonymous = false;
  Access access = Access::anonymous;  ///< once credentials were needed, it stays so
};

/// The servers for an image, as the site wants them.
std::vector<RegistryEndpoint> endpoints_of(const ImageReference& reference, const Config& config);

/// The site's proxies, for what others get, too: no user's proxy may decide about that.
HttpProxies proxies_of_site(const Config& config);
/// Those of this process's environment, then the site's: for what only the user himself gets.
HttpProxies proxies_of_user(const Config& config);

}  // namespace spc
