#pragma once

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/registry/http.hpp"
#include "image/registry/secret.hpp"

namespace spc {

enum class LoginCheck {
  accepted,    ///< the registry accepts the credentials
  not_needed,  ///< it does not require a login, so they could not be checked
};

/// Checks credentials with a registry (HOST[:PORT]) as a pull would; a refusal is an error.
Result<LoginCheck> check_login(HttpClient& http, Log& log, const std::string& registry,
                               const Config& config, const RegistrySecret& secret);

}  // namespace spc
