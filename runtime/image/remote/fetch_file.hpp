#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "image/registry/fetch.hpp"

namespace spc {

struct FetchedFile {
  Digest digest;
  std::uint64_t size = 0;
  std::string media_type;           ///< as the server says; empty: it does not
  std::optional<Digest> validator;  ///< made of its ETag, or else of when it last changed; nothing:
                                    ///< the server says neither
};

/// Fetches an object into an empty file, to its end. Whoever knows the digest compares it. `meter`:
/// bytes so far; may be empty.
Result<FetchedFile> fetch_file(RegistrySession& session, const FetchRequest& request, int file,
                               const std::function<void(std::uint64_t)>& meter = {});

}  // namespace spc
