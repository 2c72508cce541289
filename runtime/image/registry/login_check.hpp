#pragma once

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/registry/http.hpp"
#include "image/registry/secret.hpp"

namespace spc {

enum class LoginCheck {
  accepted,    ///< the registry lets these credentials in
  not_needed,  ///< it lets everybody in, so that they could not be tried
};

/// Tries credentials at a registry (HOST[:PORT]) as a pull would; what it refuses is an error.
Result<LoginCheck> check_login(HttpClient& http, Log& log, const std::string& registry, const Config& config,
                               const RegistrySecret& secret);

}  // namespace spc
