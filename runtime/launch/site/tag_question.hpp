#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "base/process/child.hpp"
#include "base/unique_fd.hpp"
#include "launch/request/launch_request.hpp"
#include "launch/site/tag_memory.hpp"

namespace spc {

/// In srun, as the user: what an image's tag stands for, so that all nodes of the step run the same
/// image and none has to ask. `import resolve` asks the registry in the background while Slurm
/// makes the step. Whatever goes wrong, there is no answer, and the nodes ask themselves.
class TagQuestion {
 public:
  /// Nothing: it is not a tag of a registry, the node's policy does not ask, or this machine
  /// cannot.
  static std::optional<TagQuestion> ask(const LaunchRequest& request);

  /// `REGISTRY/NAME:TAG@DIGEST`, or an empty text if that is not known within `patience` from now,
  /// or kResolveSeconds from ask(). Asks no more, and a registry that has not answered by then not
  /// for ten minutes.
  std::string answer(std::chrono::milliseconds patience);

 private:
  using Clock = std::chrono::steady_clock;

  TagQuestion(std::string image, std::string pull)
      : image_(std::move(image)), pull_(std::move(pull)) {}
  [[nodiscard]] bool start();
  bool read_until(Clock::time_point end);
  [[nodiscard]] RememberedTag understood() const;

  std::string image_, pull_;  ///< as typed
  std::string known_;
  UniqueFd pipe_;
  Child child_;
  Clock::time_point began_ = Clock::now();
  std::int64_t asked_at_ = ::time(nullptr);
  std::string said_;
};

/// Those of all components of a step.
class TagQuestions {
 public:
  void ask(const LaunchRequest& request);
  /// All answers, with blanks between them: LaunchRequest::resolved. Asks no more.
  const char* known(std::chrono::milliseconds patience);

 private:
  std::vector<TagQuestion> questions_;
  std::string known_;
};

}  // namespace spc
