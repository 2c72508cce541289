#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "hooks/cdi/document.hpp"

// A file of the Container Device Interface as data. Format and rules: SPEC.md, specs-go and pkg/cdi of
// tags.cncf.io/container-device-interface, versions 0.3.0 to 1.1.0.

namespace spc {

struct CdiDeviceNode {
  std::string path;       ///< inside
  std::string host_path;  ///< empty: the same
  bool operator==(const CdiDeviceNode&) const = default;
};

struct CdiMount {
  std::string host_path, container_path;
  std::vector<std::string> options;
  std::string type;  ///< empty: bind
  bool operator==(const CdiMount&) const = default;
};

/// An OCI hook. Those of nvidia-cdi-hook are done natively (verbs.hpp).
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
  std::vector<std::string> net_devices;  ///< of the host
  bool intel_rdt = false;                ///< is there

  /// What is given twice counts as the later says: mounts with one containerPath, device nodes with one path.
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

/// Checks and takes over a document. Unknown members, versions that are not known and members that this version does not have
/// yet are refused, as the CDI's own library does.
Result<CdiSpec> read_cdi_spec(const CdiDocument& document);

/// Text of a file to spec.
Result<CdiSpec> parse_cdi_spec(std::string_view text);

}  // namespace spc
