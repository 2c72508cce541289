#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "base/process/child.hpp"
#include "base/result.hpp"
#include "reference/request.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

// --- helper program ---

/// A helper process. It is killed when this object or this process ends.
class HelperProgram {
 public:
  enum class Environment { empty, ours };

  /// `descriptors[i]` becomes descriptor 3+i of the program. 0 and 1 are /dev/null, 2 is the
  /// caller's. All other descriptors are closed.
  static Result<HelperProgram> start(const std::string& path,
                                     const std::vector<std::string>& arguments,
                                     const std::vector<int>& descriptors, Environment environment);

  HelperProgram() = default;

  [[nodiscard]] bool running() const { return child_.running(); }
  /// Becomes readable when the program has ended.
  [[nodiscard]] int watch() const { return child_.watch(); }
  /// Waits for its end. Returns its exit status, or 128 plus the number of the signal that killed
  /// it.
  int wait() { return wait_status().code(); }
  ExitStatus wait_status() { return child_.wait(); }
  void kill() { child_.kill(); }

 private:
  explicit HelperProgram(Child child) : child_(std::move(child)) {}
  Child child_;
};

// --- import run ---

/// Pulls an image into the caller's own store: runs `import` and acts as the agent
/// (protocol/import.hpp). Returns the digest that names the image's record.
///
/// The converter is sandboxed as on a node, and a layer is published only after `layer-verifier`
/// has accepted it. Files have no name until then, so a crash leaves no files behind.
Result<Digest> import_into_own_store(int store, const ImportRequest& request, PullDisplay& display);

/// An image at its origin, before a pull.
struct SourceImage {
  Digest digest;
  std::string config;  ///< as delivered by the origin
};
/// Resolves the image without storing it, as `request` specifies.
Result<SourceImage> look_at_source(int store, const ImportRequest& request, PullDisplay& display);

/// Pulls the image into the site's shared store, as `request` specifies. The calling process must
/// run as the service user.
Result<Digest> import_into_shared_store(const ImportRequest& request, PullDisplay& display);

}  // namespace spc::tool
