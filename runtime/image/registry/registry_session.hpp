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

/// Who may have what was fetched.
enum class Access {
  anonymous,             ///< everybody
  refused_to_anonymous,  ///< these credentials: anonymous access was refused
  not_known,             ///< these credentials; anonymous access was not tried
};

/// One server for a repository: the registry itself or a mirror.
struct RegistryEndpoint {
  std::string name;        ///< HOST[:PORT][/PREFIX], for messages
  std::string base_url;    ///< scheme and host
  std::string repository;  ///< the repository's name on this server
  std::string ca;          ///< CA certificates trusted in addition to the system's
  bool is_mirror = false;  ///< gets no credentials; on failure the next server is tried
  bool is_peer =
      false;  ///< another node of the step: whatever is wrong with it, who asked goes on elsewhere
  bool gave_up = false;      ///< a failed mirror is skipped
  bool on_loopback = false;  ///< a service of this node: it may redirect to this node

  // How to authenticate, as far as known.
  std::optional<Challenge> bearer;
  SecretText authorization;         ///< header value; empty: none
  bool authorized_by_user = false;  ///< made from the user's secret
  unsigned authorization_generation =
      0;  ///< counts renewals, so that parallel fetches renew it once

  [[nodiscard]] std::string url() const {
    return base_url + "/v2/" + repository + (repository.empty() ? "" : "/");
  }
};

/// Shared state of the requests to one repository.
struct RegistrySession {
  HttpClient& http;
  Log& log;                    ///< reports retries
  std::string registry;        ///< HOST[:PORT] as given by the user
  std::string repository;      ///< empty: login only
  bool is_web_server = false;  ///< no registry: it has a file, and gets no credentials
  std::vector<RegistryEndpoint>
      endpoints;  ///< tried in this order; the last is the registry itself
  std::vector<std::string>
      scopes;  ///< what tokens are asked for; empty: what the registry names, or to pull
  std::vector<std::string>
      login_servers;  ///< HOST[:PORT] that may receive this registry's credentials

  /// Asks the user for credentials; empty: no user to ask. Called at most once.
  std::function<Result<std::optional<RegistrySecret>>()> ask_user;
  bool user_first = false;  ///< the user named the credentials: do not try without
  bool asked = false;
  std::optional<RegistrySecret> secret;
  std::optional<Error> trouble;  ///< why the user could not be asked
  bool refused_anonymous = false;
  Access access = Access::anonymous;  ///< stays so once credentials were needed
};

/// The servers for an image, as configured.
std::vector<RegistryEndpoint> endpoints_of(const ImageReference& reference, const Config& config);

/// The site's proxies, for shared images: a user's proxy must not decide about those.
HttpProxies proxies_of_site(const Config& config);
/// The environment's proxies, then the site's: for images of this user only.
HttpProxies proxies_of_user(const Config& config);

}  // namespace spc
