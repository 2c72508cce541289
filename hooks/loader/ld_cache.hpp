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

/// The table with which glibc's loader finds a library by soname: /etc/ld.so.cache (glibc:
/// sysdeps/generic/dl-cache.h). An image's file can contain anything, so there are limits, and a
/// file beyond them is refused.
///
/// The format understood by all releases since 2.2: a header of 48 bytes, `glibc-ld.so.cache1.1`,
/// then entries of 24 bytes in descending order of sonames, then strings, and since 2.33
/// extensions. Releases before 2.32 wrote a table for libc5 before it. That table is skipped and
/// not written.
class LdCache {
 public:
  struct Entry {
    std::string_view soname, path;  ///< strings of the cache; valid as long as the cache
    std::uint32_t flags = 0;        ///< architecture and C library, see cache_flags_of()
    std::uint32_t os_version = 0;
    std::uint64_t hwcap = 0;  ///< the required processors, or an index into glibc_hwcaps()
  };

  LdCache() = default;
  static Result<LdCache> parse(std::string bytes);
  /// Reads an untrusted file: ErrorKind::invalid if it is not a regular file. The caller owns the
  /// descriptor.
  static Result<LdCache> read(int fd);

  /// Returns the file's entries in order (descending), without removed ones. Of equal sonames the
  /// loader uses the first.
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  /// Returns the entries of a soname, in the loader's order.
  [[nodiscard]] std::span<const Entry> of_soname(std::string_view soname) const;
  /// Returns the first entry of this soname and architecture; nullptr if there is none.
  [[nodiscard]] const Entry* find(std::string_view soname, std::uint32_t flags) const;
  /// Returns the directories of optimized variants, by the index in an entry's hwcap: x86-64-v3.
  [[nodiscard]] const std::vector<std::string>& glibc_hwcaps() const { return hwcaps_; }
  /// Returns the directory of the entry's variant; empty: for all processors.
  [[nodiscard]] std::string_view hwcap_of(const Entry& entry) const;

  void remove_if(const std::function<bool(const Entry&)>& condition);
  /// Adds a library that precedes all others of its soname except those added this way earlier.
  void add_first(std::string soname, std::string path, std::uint32_t flags);
  /// Adds a library that follows all others of its soname.
  void add_last(std::string soname, std::string path, std::uint32_t flags);
  /// Returns the new file: the entries read, with the additions in place.
  [[nodiscard]] std::string serialize() const;

 private:
  [[nodiscard]] std::vector<Entry> all_entries() const;
  Result<void> parse_extensions(std::string_view file);
  Entry owned(std::string soname, std::string path, std::uint32_t flags);

  std::unique_ptr<const std::string> bytes_;  ///< content of the file, at a stable address
  std::deque<std::string> added_texts_;
  std::vector<Entry> entries_, first_, last_;
  std::string generator_;
  std::vector<std::string> hwcaps_;
};

/// Returns the entry flags accepted by the loader of this ELF architecture; empty if it is unknown.
std::optional<std::uint32_t> cache_flags_of(std::uint16_t machine);

/// Compares sonames in glibc's order: digit runs numerically. Returns <0, 0, >0.
int compare_as_loader(std::string_view a, std::string_view b);

}  // namespace spc
