#pragma once

#include <string>
#include <string_view>

#include "image/registry/fetch.hpp"

namespace spc {

/// What a registry's refusal means: which of tag, repository and blob is missing, whether a login would help.
/// `body` may hold its own reason (distribution spec, "error codes").
Error explain_status(const RegistrySession& session, const std::string& what, const HttpHead& head, std::string_view body);

/// `of user "alice" from "/home/alice/.docker/config.json"`
std::string described(const RegistrySecret& secret);

}  // namespace spc
