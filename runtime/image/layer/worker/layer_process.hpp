#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>

#include "base/process/child.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/layer.hpp"

namespace spc {

/// A running `layer-writer`, seen from `import`. The process ends with this object and with the thread that started
/// it (PDEATHSIG is tied to the thread): start and finish a layer in one thread, or in one that outlives it.
class LayerProcess {
 public:
  /// `output_file`: an empty regular file, open for reading and writing; the caller owns it. Only this file,
  /// the pipes and descriptors 1 and 2 are inherited. `program`: if not the one beside this program or the installed one.
  /// in_image: it asks for the layers below if what it means depends on them.
  enum class LayerPlace { alone, in_image };
  static Result<LayerProcess> start(int output_file, const LayerLimits& limits = {}, const std::string& program = {},
                                    LayerPlace place = LayerPlace::alone);

  /// Input of the compressed blob: a pipe of 1 MiB if the system allows it. EPIPE means that the
  /// process failed: finish() has the reason. (SIGPIPE must be ignored.) Make it non-blocking for poll.
  [[nodiscard]] int input() const { return input_.get(); }
  /// The blob is complete.
  void close_input() { input_.reset(); }
  /// Becomes readable when finish() will not block.
  [[nodiscard]] int result_descriptor() const { return report_.get(); }

  /// Becomes readable when the layers below are asked for, once; then give_below() answers. -1: never.
  [[nodiscard]] int below_descriptor() const { return below_.get(); }
  /// The bottom layer first; the caller keeps its descriptors.
  Result<void> give_below(std::span<const int> layers);

  /// Closes the input and waits for the process. Success means that the image is complete; the caller checks diff_id.
  /// An Error tells how a process died.
  Result<ConvertedLayer> finish();

 private:
  LayerProcess(Child child, UniqueFd input, UniqueFd report, UniqueFd below)
      : child_(std::move(child)), input_(std::move(input)), report_(std::move(report)), below_(std::move(below)) {}

  Child child_;
  UniqueFd input_;
  UniqueFd report_;
  UniqueFd below_;
};

/// A `layer-writer` that finds an image's fact sheet in the files of its layers, in its sandbox. (SIGPIPE must be ignored.)
class FactsProcess {
 public:
  /// It waits for the layers.
  static Result<FactsProcess> start();
  /// All of the image, the bottom layer first, once; the caller keeps its descriptors.
  Result<void> give(std::span<const int> layers);
  /// Records of image/facts/facts.hpp, if they come in this time.
  Result<std::string> finish(std::chrono::milliseconds patience);

 private:
  FactsProcess(Child child, UniqueFd layers, UniqueFd report)
      : child_(std::move(child)), layers_(std::move(layers)), report_(std::move(report)) {}

  Child child_;
  UniqueFd layers_;
  UniqueFd report_;
};

}  // namespace spc
