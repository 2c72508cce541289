#pragma once

#include <curl/curl.h>

#include <string>

#include "image/registry/http.hpp"

namespace spc {

/// Whether a request that ended with `code` may be tried again.
HttpEnd::Kind kind_of_end(CURL* handle, CURLcode code);

/// What libcurl's `code` means to a user: unknown host, refused connection, which trouble with TLS.
/// `detail` is libcurl's own text, shown where we know nothing better.
Error explain_curl(CURL* handle, CURLcode code, const char* detail, bool proxied);

}  // namespace spc
