#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "hooks/cdi/document.hpp"

// A parsed file of the Container Device Interface. Format and rules: SPEC.md, specs-go and pkg/cdi
// of tags.cncf.io/container-device-interface, versions 0.3.0 to 1.1.0.

namespace spc {

struct CdiDeviceNode {
  std::string path;       ///< in the container
  std::string host_path;  ///< empty: the same
  bool operator==(const CdiDeviceNode&) const = default;
};

struct CdiMount {
  std::string host_path, container_path;
  std::vector<std::string> options;
  std::string type;  ///< empty: bind
  bool operator==(const CdiMount&) const = default;
};

/// An OCI hook. Those of nvidia-cdi-hook are implemented natively (verbs.hpp).
struct CdiHook {
  std::string stage, path;
  std::vector<std::string> args, env;
  std::optional<std::uint64_t> timeout;  ///< seconds
  bool operator==(const CdiHook&) const = default;
};

struct CdiEdits {
  std::vector<std::string> env;
  std::vector<CdiDeviceNode> device_nodes;
  std::vector<CdiMount> mounts;
  std::vector<CdiHook> hooks;
  std::vector<std::uint64_t> additional_gids;
  std::vector<std::string> net_devices;  ///< on the host
  bool intel_rdt = false;                ///< present

  /// Of duplicates the later one wins: mounts by containerPath, device nodes by path.
  void append(const CdiEdits& more);
  bool operator==(const CdiEdits&) const = default;
};

struct CdiDevice {
  std::string name;
  CdiEdits edits;
};

struct CdiSpec {
  std::string version, kind;
  std::vector<CdiDevice> devices;
  CdiEdits edits;  ///< once, if any of its devices is used
};

/// Validates and converts a document. Unknown members, unknown versions and members that this
/// version does not have yet are refused, as in the CDI's own library.
Result<CdiSpec> read_cdi_spec(const CdiDocument& document);

/// Text of a file to spec.
Result<CdiSpec> parse_cdi_spec(std::string_view text);

}  // namespace spc
