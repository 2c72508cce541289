#pragma once

#include <curl/curl.h>

#include <string>

#include "image/registry/http.hpp"

namespace spc {

/// Whether a request that failed with `code` may be retried.
HttpEnd::Kind kind_of_end(CURL* handle, CURLcode code);

/// The meaning of libcurl's `code` for a user: unknown host, refused connection, kind of TLS
/// failure. `detail` is libcurl's own text, used if there is no better one.
Error explain_curl(CURL* handle, CURLcode code, const char* detail, bool proxied);

}  // namespace spc
