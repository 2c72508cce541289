#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"

namespace spc {

/// What a name of an image means: a file of names/ in the store or, for one user, of grants/.
struct NamedImage {
  std::string name;  ///< ref_file_of() a reference
  Digest manifest;
  std::int64_t asked_at = 0;  ///< seconds since 1970: when the registry said so
  /// Those that led from the name to the manifest, the newest first: while the registry names one
  /// of them, the name has not moved.
  std::vector<Digest> indexes;
  std::int64_t written = 0;  ///< read_named_image(): when the file was

  /// Whether this is its manifest's digest, or that of an index that leads to it.
  [[nodiscard]] bool is(const Digest& digest) const;
  [[nodiscard]] std::string str() const;
  /// Empty if it is none, as after a crash.
  static std::optional<NamedImage> parse(std::string_view text);
  /// As many as are worth it.
  void add_indexes(const std::vector<Digest>& more);
};

/// The name as a number, for processes that see no text. Names may share one, so whoever reads the
/// file compares the name.
Digest name_key(std::string_view name);

/// A file of the store that this user alone can write, by name; empty if there is none. Waits for
/// nobody.
std::optional<NamedImage> read_named_image(int directory, const std::string& file,
                                           std::optional<uid_t> owner = {});

}  // namespace spc
