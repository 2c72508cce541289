#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// libmpi.so.12.1.8 -> {12, 1, 8}; empty if nothing follows .so.
std::vector<unsigned> library_version(std::string_view file_name);
/// libmpi.so.12 -> libmpi.so: the linker name, the same for libraries of different ABIs.
std::string linker_name(std::string_view soname);
/// 12.1.8
std::string version_text(const std::vector<unsigned>& version);

enum class AbiLevel { major, full, strict };
AbiLevel abi_level_of(std::string_view word);

enum class AbiFit { fits, older, no };  ///< older: the same ABI with fewer functions
/// Whether a library of version `host` can replace one of version `image`. Numbers missing in a
/// file name that only full and strict compare satisfy full, but not strict.
AbiFit abi_fit(const std::vector<unsigned>& host, const std::vector<unsigned>& image,
               AbiLevel level);

/// A library of the node, as read there: in the container, its file is not visible before it is
/// mounted.
struct HostLibrary {
  std::string source;  ///< on the host, not a link
  std::string soname;  ///< of one without: its file name, which the loader takes then
  std::uint16_t machine = 0;
  bool named = true;        ///< it has a soname
  bool dependency = false;  ///< from mpi_dependencies
  bool fallback = false;    ///< from fallback_libraries: only where the image has none
  bool searches = false;    ///< it has an RPATH, so its dependencies may be found elsewhere
  std::vector<std::string> needed;
  std::map<std::string, std::set<std::string>> version_needs;
  std::set<std::string> version_definitions;
  std::set<std::string> functions;  ///< those of MPI that it exports, if they were asked for

  [[nodiscard]] std::string file_name() const;

  /// Follows links; `host_root` is the prefix of the path and not in `source`. `prefix`: of the
  /// functions that are wanted.
  [[gnu::cold]] static Result<HostLibrary> read(const std::string& host_root,
                                                const std::string& path,
                                                std::string_view prefix = {});

  /// For Edits::remembered: lines.
  [[nodiscard, gnu::cold]] std::string serialize() const;
  [[gnu::cold]] static HostLibrary parse(std::string_view text);
};

/// Why two of these libraries cannot be given together: they are different files of one soname, of
/// which a program can have one only. Empty: there are no such two. A fallback gives way to a
/// library that is none.
[[gnu::cold]] std::string clash_of(const std::vector<HostLibrary>& libraries);

}  // namespace spc
