#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>

#include "base/process/child.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/layer.hpp"

namespace spc {

/// A running `layer-writer`, seen from the process that feeds it: `import`, for which the agent has
/// started it, or the one that has started it. The process ends with this object and with the
/// thread that started it (PDEATHSIG is tied to the thread): start and finish a layer in one
/// thread, or in one that outlives it.
class LayerProcess {
 public:
  /// Our ends of its descriptors, and a function that waits for its end.
  struct Ends {
    UniqueFd input, report, below;
    std::function<Result<ExitStatus>()> wait;
  };
  explicit LayerProcess(Ends ends) : ends_(std::move(ends)) {}

  /// `output_file`: an empty regular file, open for reading and writing; the caller owns it. Only
  /// this file, the pipes and descriptors 1 and 2 are inherited. `program`: if not the one beside
  /// this program or the installed one. The layer is converted as if it were alone.
  static Result<LayerProcess> start(int output_file, const LayerLimits& limits = {},
                                    const std::string& program = {});

  /// Input of the compressed blob: a pipe of 1 MiB if the system allows it. EPIPE means that the
  /// process failed: finish() has the reason. (SIGPIPE must be ignored.) Make it non-blocking for
  /// poll.
  [[nodiscard]] int input() const { return ends_.input.get(); }
  /// The blob is complete.
  void close_input() { ends_.input.reset(); }
  /// Becomes readable when finish() will not block.
  [[nodiscard]] int result_descriptor() const { return ends_.report.get(); }

  /// Becomes readable when the layers below are asked for, once; then give_below() answers. -1:
  /// never.
  [[nodiscard]] int below_descriptor() const { return ends_.below.get(); }
  /// The bottom layer first; the caller keeps its descriptors.
  Result<void> give_below(std::span<const int> layers);

  /// Closes the input and waits for the process. Success means that the image is complete; the
  /// caller checks diff_id. An Error tells how a process died.
  Result<ConvertedLayer> finish();

 private:
  Ends ends_;
};

/// A `layer-writer` that finds an image's fact sheet in the files of its layers, in its sandbox.
/// (SIGPIPE must be ignored.)
class FactsProcess {
 public:
  /// Of one that was started with kLayerFacts: it waits for the layers.
  explicit FactsProcess(LayerProcess::Ends ends) : ends_(std::move(ends)) {}
  /// All of the image, the bottom layer first, once; the caller keeps its descriptors.
  Result<void> give(std::span<const int> layers);
  /// Records of image/facts/facts.hpp, if they come in this time.
  Result<std::string> finish(std::chrono::milliseconds patience);

 private:
  LayerProcess::Ends ends_;
};

}  // namespace spc
