#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/digest.hpp"
#include "base/result.hpp"

namespace spc {

/// A file at a web server, of which the digest may be known: `https://HOST[:PORT]/PATH[#sha256=HEX]`. Without a user or a password: a
/// URL is shown in messages and logs.
struct FileUrl {
  static constexpr std::string_view kScheme = "https://";

  std::string url;  ///< without the digest
  std::string host;  ///< HOST[:PORT] as typed
  std::string path;  ///< behind the host's slash
  std::optional<Digest> digest;

  /// The error does not repeat the text.
  static Result<FileUrl> parse(std::string_view text);
};

}  // namespace spc
