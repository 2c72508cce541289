#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/log.hpp"
#include "image/config/config.hpp"
#include "image/reference/reference.hpp"
#include "image/registry/http.hpp"
#include "image/registry/secret.hpp"
#include "image/remote/fetch_file.hpp"

namespace spc {

/// An image that is a file, a SIF or squashfs, at a server:
///
///     oras://[USER@][REGISTRY/]NAME[:TAG][@DIGEST]   an artifact of one file in a registry, as
///     `apptainer push` and `oras push` make https://HOST[:PORT]/PATH[#sha256=HEX]          one at
///     a web server, of which the digest may be known
struct RemoteFile {
  /// Whether the text has one of these forms.
  static bool is_meant(std::string_view text);
  static Result<RemoteFile> parse(std::string_view text, std::string_view default_registry);

  std::string text;                     ///< as given
  std::optional<ImageReference> image;  ///< oras
  std::string url;                      ///< https
  std::string host;                     ///< of the URL: HOST[:PORT]
  std::optional<Digest> digest;         ///< of the file, where it is known from the start
};

struct RemoteAccess {
  HttpClient& http;
  Log& log;
  const Config& config;
  std::function<Result<std::optional<RegistrySecret>>()> ask_user;  ///< for a registry
  std::function<void(std::uint64_t done, std::uint64_t total)>
      meter;  ///< total: 0 if it is not known
};

/// What is there now: of https, only whether it is the same as before.
struct RemoteVersion {
  std::optional<Digest> digest;
  std::optional<Digest> validator;  ///< as FetchedFile has it
};
Result<RemoteVersion> ask_version(const RemoteAccess& access, const RemoteFile& wanted);

/// Fetches it into an empty file. A connection that breaks is resumed where the server gives
/// ranges. What does not match its digest is an error.
Result<FetchedFile> fetch_remote_file(const RemoteAccess& access, const RemoteFile& wanted,
                                      int file);

}  // namespace spc
