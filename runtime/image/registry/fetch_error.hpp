#pragma once

#include <string>
#include <string_view>

#include "image/registry/fetch.hpp"

namespace spc {

/// The meaning of a registry's refusal: whether tag, repository or blob is missing, whether a login
/// would help. `body` may contain its own reason (distribution spec, "error codes").
Error explain_status(const RegistrySession& session, const std::string& what, const HttpHead& head,
                     std::string_view body);

/// `of user "alice" from "/home/alice/.docker/config.json"`
std::string described(const RegistrySecret& secret);

}  // namespace spc
