#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// The table by which glibc's loader finds a library from its soname: /etc/ld.so.cache (glibc: sysdeps/generic/dl-cache.h).
/// Read from an image it may be anything, so it has limits, and what is not in them is no cache.
///
/// The format that all releases since 2.2 understand: a header of 48 bytes, `glibc-ld.so.cache1.1`, then entries of 24 bytes
/// in descending order of their sonames, then texts, and since 2.33 extensions. Releases before 2.32 wrote another table, of
/// the time of libc5, before it; that one is skipped and not written again.
class LdCache {
 public:
  struct Entry {
    std::string_view soname, path;  ///< of the cache's own texts; valid as long as the cache
    std::uint32_t flags = 0;        ///< machine and C library, see cache_flags_of()
    std::uint32_t os_version = 0;
    std::uint64_t hwcap = 0;  ///< for which processors, or which name of glibc_hwcaps()
  };

  LdCache() = default;
  static Result<LdCache> parse(std::string bytes);
  /// Of a file that may be anything: what is no regular file is ErrorKind::invalid. The descriptor stays the caller's.
  static Result<LdCache> read(int fd);

  /// What the file had, in its order, less what was removed: descending, of equal sonames the first one counts.
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  /// Those of a soname, in the order in which the loader looks at them.
  [[nodiscard]] std::span<const Entry> of_soname(std::string_view soname) const;
  /// The first entry of this soname for this machine; nothing if there is none.
  [[nodiscard]] const Entry* find(std::string_view soname, std::uint32_t flags) const;
  /// Directories of optimised variants, by the index in an entry's hwcap: x86-64-v3.
  [[nodiscard]] const std::vector<std::string>& glibc_hwcaps() const { return hwcaps_; }
  /// The one that the entry is for; empty: it is for all processors.
  [[nodiscard]] std::string_view hwcap_of(const Entry& entry) const;

  void remove_if(const std::function<bool(const Entry&)>& condition);
  /// Adds a library that is found before all others of its soname but those added first earlier.
  void add_first(std::string soname, std::string path, std::uint32_t flags);
  /// Adds one that is found after all others of its soname.
  void add_last(std::string soname, std::string path, std::uint32_t flags);
  /// The file: what was read, with the additions in their places.
  [[nodiscard]] std::string serialize() const;

 private:
  Result<void> parse_extensions(std::string_view file);
  Entry owned(std::string soname, std::string path, std::uint32_t flags);

  std::unique_ptr<const std::string> bytes_;  ///< of the file; in memory that does not move
  std::deque<std::string> added_texts_;
  std::vector<Entry> entries_, first_, last_;
  std::string generator_;
  std::vector<std::string> hwcaps_;
};

/// The flags of an entry that the loader of this ELF machine takes; nothing for a machine that we do not know.
std::optional<std::uint32_t> cache_flags_of(std::uint16_t machine);

/// glibc's order of sonames: runs of digits as numbers. <0, 0, >0.
int compare_as_loader(std::string_view a, std::string_view b);

}  // namespace spc
