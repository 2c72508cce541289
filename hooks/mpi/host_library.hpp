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
/// libmpi.so.12 -> libmpi.so: by what the linker finds it, and libraries of different ABIs are the same one.
std::string linker_name(std::string_view soname);
/// 12.1.8
std::string version_text(const std::vector<unsigned>& version);

enum class AbiLevel { major, full, strict };
AbiLevel abi_level_of(std::string_view word);

enum class AbiFit { fits, older, no };  ///< older: the same ABI, less of it
/// Whether a library of version `host` can take the place of one of version `image`. What a file name does not say, and only
/// full and strict ask for, fits full and not strict.
AbiFit abi_fit(const std::vector<unsigned>& host, const std::vector<unsigned>& image, AbiLevel level);

/// A library of the node as it was read there: inside, its file is not to be seen before it is mounted.
struct HostLibrary {
  std::string source;  ///< on the host, no link
  std::string soname;
  std::uint16_t machine = 0;
  bool dependency = false;  ///< of mpi_dependencies
  bool searches = false;    ///< it has an RPATH: where its libraries are is not for us to know
  std::vector<std::string> needed;
  std::map<std::string, std::set<std::string>> version_needs;
  std::set<std::string> version_definitions;

  [[nodiscard]] std::string file_name() const;

  /// Follows links; `host_root` is before the path and not in `source`.
  static Result<HostLibrary> read(const std::string& host_root, const std::string& path);

  /// For Edits::remembered: lines.
  [[nodiscard]] std::string serialize() const;
  static HostLibrary parse(std::string_view text);
};

}  // namespace spc
