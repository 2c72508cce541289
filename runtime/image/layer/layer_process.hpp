#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/layer.hpp"

namespace spc {

/// A `layer-writer` at work: `import`'s side. The process ends when this object goes, and with the thread that started
/// it (PDEATHSIG is tied to the thread): start and finish a layer in one thread, or in one that outlives it.
class LayerProcess {
 public:
  /// `output_file`: an empty regular file, open for reading and writing; it stays the caller's. Nothing is inherited
  /// but it, the pipes and descriptors 1 and 2. `program`: if not the one beside this program or where it is installed.
  static Result<LayerProcess> start(int output_file, const LayerLimits& limits = {}, const std::string& program = {});

  LayerProcess(LayerProcess&&) noexcept = default;
  LayerProcess& operator=(LayerProcess&& other) noexcept;
  ~LayerProcess() { kill(); }

  /// Where the blob's bytes go, compressed as they are: a pipe of 1 MiB if the system allows. EPIPE means that the
  /// process has given up: finish() says why. (SIGPIPE must be ignored.) Make it non-blocking for use with poll.
  [[nodiscard]] int input() const { return input_.get(); }
  /// The blob is complete.
  void close_input() { input_.reset(); }
  /// Becomes readable when finish() will not wait.
  [[nodiscard]] int result_descriptor() const { return report_.get(); }

  /// Closes the input and waits for the end. Success means that the image is complete; whether diff_id is the right
  /// one is for the caller to check. A process that died is an Error that says of what.
  Result<ConvertedLayer> finish();

 private:
  struct Child {
    pid_t pid = -1;
    explicit Child(pid_t value) : pid(value) {}
    Child(Child&& other) noexcept : pid(std::exchange(other.pid, -1)) {}
    Child& operator=(Child&& other) noexcept {
      std::swap(pid, other.pid);
      return *this;
    }
    ~Child() = default;
  };
  LayerProcess(pid_t pid, UniqueFd input, UniqueFd report) : child_(pid), input_(std::move(input)), report_(std::move(report)) {}
  void kill() noexcept;
  int wait() noexcept;

  Child child_;
  UniqueFd input_;
  UniqueFd report_;
};

}  // namespace spc
