#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "image/shared/shared_store.hpp"

namespace spc::tool {

/// The site's, which belongs to the service user: root becomes that user in this process, for good.
/// Network file systems may not let root in, and what is there is no business of root's.
/// ErrorKind::not_found: the site has none.
Result<SharedStore> open_shared_store();

/// An image whose manifest is in the shared store.
struct SharedImage {
  Digest digest;
  std::vector<std::string> places;  ///< registries and repositories that have delivered it
  std::string platform;             ///< empty: unknown
  std::size_t layers = 0;
  std::uint64_t bytes = 0;  ///< of its blobs there
  bool complete = true;     ///< all of them are there
  std::int64_t used_at = 0;
};
/// Of the site's, for root and the service user; others see none. A file system that hangs is not
/// waited for.
Result<std::vector<SharedImage>> list_shared_images();

}  // namespace spc::tool
