#include "image/registry/http_error.hpp"

#include <openssl/x509_vfy.h>

#include <cerrno>
#include <cstring>

#include "base/format.hpp"

namespace spc {
namespace {

/// True when the time-out was that of connecting.
bool never_connected(CURL* handle) {
  curl_off_t ready = 0;  // CONNECT_TIME stays 0 on a connection that is used again
  curl_easy_getinfo(handle, CURLINFO_PRETRANSFER_TIME_T, &ready);
  return ready == 0;
}

Error explain_certificate(CURL* handle, const char* detail) {
  long verify = 0;
  curl_easy_getinfo(handle, CURLINFO_SSL_VERIFYRESULT, &verify);
  const auto untrusted = [](const char* why, const char* hint) {
    return std::move(
        Error(ErrorKind::refused, std::string("its TLS certificate ") + why).hint(hint));
  };
  switch (verify) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return untrusted("has expired", "if it has not, this node's clock is wrong");
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return untrusted("is not valid yet", "this node's clock is probably wrong");
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
      return untrusted("is self-signed",
                       "the site can trust it with ca = \"FILE\" for this registry in config.toml");
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
      return untrusted("is signed by an unknown authority",
                       "the site can trust it with ca = \"FILE\" for this registry in config.toml");
    case X509_V_ERR_HOSTNAME_MISMATCH:
      return untrusted("belongs to another host", "check the registry's name");
    default: break;
  }
  if (std::strstr(detail, "subject name") != nullptr ||
      std::strstr(detail, "does not match") != nullptr) {
    return untrusted("belongs to another host", "check the registry's name");
  }
  return {ErrorKind::refused,
          std::string("its TLS certificate cannot be trusted: ") + printable(detail)};
}

}  // namespace

HttpEnd::Kind kind_of_end(CURL* handle, CURLcode code) {
  switch (code) {
    case CURLE_OK: return HttpEnd::Kind::complete;
    case CURLE_OPERATION_TIMEDOUT:
      return never_connected(handle) ? HttpEnd::Kind::failed : HttpEnd::Kind::stalled;
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_WRITE_ERROR:
    case CURLE_SEND_FAIL_REWIND:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM: return HttpEnd::Kind::broken;
    default: return HttpEnd::Kind::failed;
  }
}

Error explain_curl(CURL* handle, CURLcode code, const char* detail, bool proxied) {
  // libcurl's text may have the proxy's address in it, and that the password of the proxy.
  const std::string shown =
      printable(*detail != '\0' && !proxied ? detail : curl_easy_strerror(code));
  if (proxied) {
    long connect_status = 0;
    curl_easy_getinfo(handle, CURLINFO_HTTP_CONNECTCODE, &connect_status);
    if (connect_status >= 300) {
      return std::move(Error(ErrorKind::unavailable,
                             formatted("the proxy refuses to connect (status {})", connect_status)))
          .hint(connect_status == 407 ? "the proxy requires a login"
                                      : "check the proxy's access rules");
    }
    if (code == CURLE_COULDNT_RESOLVE_PROXY || code == CURLE_COULDNT_CONNECT) {
      return std::move(Error(ErrorKind::unavailable, "the proxy cannot be reached"))
          .hint("check https_proxy, http_proxy and no_proxy");
    }
  }
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
      return std::move(
          Error(ErrorKind::unavailable, "no such host").hint("check the registry's name"));
    case CURLE_COULDNT_CONNECT: {
      long err = 0;
      curl_easy_getinfo(handle, CURLINFO_OS_ERRNO, &err);
      if (err == ECONNREFUSED) {
        return std::move(Error(ErrorKind::unavailable, "connection refused")
                             .hint("check that the registry runs on this port"));
      }
      const char* reason = err != 0 ? strerrordesc_np(static_cast<int>(err)) : nullptr;
      return {ErrorKind::unavailable,
              reason != nullptr ? "cannot connect: " + std::string(reason) : "cannot connect"};
    }
    case CURLE_OPERATION_TIMEDOUT:
      if (never_connected(handle))
        return {ErrorKind::unavailable, "does not respond within 15 seconds"};
      return {ErrorKind::unavailable, "stopped sending"};
    case CURLE_PEER_FAILED_VERIFICATION: return explain_certificate(handle, detail);
    case CURLE_SSL_CACERT_BADFILE:
      return {ErrorKind::invalid, "the file of trusted certificates cannot be read: " + shown};
    case CURLE_SSL_CONNECT_ERROR:
      if (shown.find("wrong version number") != std::string::npos ||
          shown.find("packet length too long") != std::string::npos) {
        return std::move(Error(ErrorKind::refused, "does not speak TLS")
                             .hint("the site can allow plain HTTP with insecure = true for this "
                                   "registry in config.toml"));
      }
      return {ErrorKind::unavailable, "TLS: " + shown};
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
      return {ErrorKind::unavailable, "closed the connection during the transfer"};
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return {ErrorKind::unavailable, "is not an HTTP server: " + shown};
#if LIBCURL_VERSION_NUM >= 0x080600
    case CURLE_TOO_LARGE:
#endif
    case CURLE_OUT_OF_MEMORY:
      // What libcurl before 8.6 says of a header line of more than 100 KiB, and its other
      // allocations are small.
      return std::move(Error(ErrorKind::unavailable, "the response has a header that is too long")
                           .hint("check what answers there: a proxy or a login page, perhaps"));
    default: return {ErrorKind::unavailable, shown};
  }
}

}  // namespace spc
