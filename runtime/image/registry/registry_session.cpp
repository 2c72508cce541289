#include "image/registry/registry_session.hpp"

namespace spc {
namespace {

RegistryEndpoint endpoint(const std::string& host, const RegistryConfig& config) {
  RegistryEndpoint endpoint;
  endpoint.base_url = (config.insecure ? "http://" : "https://") + host;
  endpoint.ca = config.ca;
  return endpoint;
}

HttpProxies completed(HttpProxies proxies, const Config& config) {
  if (proxies.https.empty()) proxies.https = config.https_proxy;
  if (proxies.http.empty()) proxies.http = config.http_proxy;
  for (const std::string& host : config.no_proxy) proxies.except += "," + host;
  return proxies;
}

}  // namespace

std::vector<RegistryEndpoint> endpoints_of(const ImageReference& reference, const Config& config) {
  const RegistryConfig& registry = config.registry(reference.registry);
  std::vector<RegistryEndpoint> endpoints;
  for (const std::string& mirror : registry.mirrors) {
    const std::size_t slash = mirror.find('/');
    const std::string host = mirror.substr(0, slash);
    RegistryEndpoint& added = endpoints.emplace_back(endpoint(host, config.registry(host)));
    added.name = mirror;
    added.repository =
        (slash == std::string::npos ? "" : mirror.substr(slash + 1) + "/") + reference.repository;
    added.is_mirror = true;
  }
  RegistryEndpoint& itself = endpoints.emplace_back(endpoint(reference.api_host(), registry));
  itself.name = reference.registry;
  itself.repository = reference.repository;
  return endpoints;
}

HttpProxies proxies_of_site(const Config& config) { return completed({}, config); }
HttpProxies proxies_of_user(const Config& config) {
  return completed(HttpProxies::of_environment(), config);
}

}  // namespace spc
