#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/digest.hpp"
#include "base/result.hpp"

namespace spc {

/// A file at a web server, of which the digest may be known:
/// `https://HOST[:PORT]/PATH[#sha256=HEX]`. Without a user or a password: a URL is shown in
/// messages and logs.
struct FileUrl {
  static constexpr std::string_view kScheme = "https://";

  std::string url;   ///< without the digest
  std::string host;  ///< HOST[:PORT] as typed
  std::string path;  ///< behind the host's slash
  std::optional<Digest> digest;

  /// The error does not repeat the text.
  static Result<FileUrl> parse(std::string_view text);
};

/// Returns an image's name as typed without what may be secret in a URL: user and password, query,
/// and any fragment but a digest. Messages, logs, variables, command lines and notes have an
/// image's name in this form only.
std::string without_secrets(std::string_view image);

/// Returns the same as a name to compare: with a query and without a digest it ends in `?~` and 16
/// digits, a hash of the query. For what the user alone reads.
std::string name_without_secrets(std::string_view image);

}  // namespace spc
