#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "base/result.hpp"

namespace spc {

// --- document ---

/// Content of a CDI file, JSON or YAML.
struct CdiDocument {
  Json tree;
  bool from_yaml = false;  ///< YAML allows a number in place of a text: `name: 0`
};

/// A file has some hundred lines, that of a node with many partitions of GPUs some thousand.
inline constexpr JsonLimits kCdiLimits{.bytes = 1 << 20, .depth = 16, .values = 100'000};

/// Parses JSON if the text begins with a brace, else YAML.
Result<CdiDocument> parse_cdi_document(std::string_view text);

/// Parses YAML as programs write it: maps and sequences by indentation, plain and quoted texts of
/// one line, `[]` and `{}`. Refuses ambiguous or expanding syntax: anchors, aliases, tags, other
/// collections in brackets, texts over several lines, directives, further documents, duplicate
/// keys.
Result<Json> parse_cdi_yaml(std::string_view text);

}  // namespace spc

// --- spec ---

// A parsed file of the Container Device Interface. Format and rules: SPEC.md, specs-go and pkg/cdi
// of tags.cncf.io/container-device-interface, versions 0.3.0 to 1.1.0.

namespace spc {

struct CdiDeviceNode {
  std::string path;       ///< in the container
  std::string host_path;  ///< empty: same as `path`
  bool operator==(const CdiDeviceNode&) const = default;
};

struct CdiMount {
  std::string host_path, container_path;
  std::vector<std::string> options;
  std::string type;  ///< empty: bind
  bool operator==(const CdiMount&) const = default;
};

/// An OCI hook. The hooks of nvidia-cdi-hook are implemented natively (registry.hpp).
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
  std::vector<std::string> net_devices;  ///< names on the host
  bool intel_rdt = false;                ///< whether it is present

  /// Appends edits. Of duplicates the later one wins: mounts by containerPath, device nodes by
  /// path.
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
  CdiEdits edits;  ///< applied once, if any of its devices is used
};

/// Validates and converts a document. Refuses unknown members, unknown versions, and members that
/// the document's version does not have yet, as the CDI's own library does.
Result<CdiSpec> read_cdi_spec(const CdiDocument& document);

/// Parses the text of a file and converts it to a spec.
Result<CdiSpec> parse_cdi_spec(std::string_view text);

}  // namespace spc
