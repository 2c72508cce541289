// `layer-verifier`: descriptor 3 is a layer's file, for reading. Exit status 0: accepted. 1:
// refused, 2: failed; both with one line on descriptor 2 that says why.

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <new>

#include "base/file.hpp"
#include "base/format.hpp"
#include "image/verify/confine.hpp"
#include "image/verify/verify.hpp"

namespace spc {
namespace {

constexpr int kLayer = 3;
enum Status { kAccepted = 0, kRefused = 1, kFailed = 2 };

class LayerFile : public verify::LayerBytes {
 public:
  explicit LayerFile(std::uint64_t size) : size_(size) {}
  [[nodiscard]] std::uint64_t size() const override { return size_; }
  Result<void> read(std::uint64_t offset, std::span<std::byte> into) override {
    while (!into.empty()) {
      const ssize_t count = ::pread(kLayer, into.data(), into.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Error::from_errno(errno, "read the layer");
      if (count == 0) return Error(ErrorKind::system, "read the layer: it became shorter");
      offset += static_cast<std::uint64_t>(count);
      into = into.subspan(static_cast<std::size_t>(count));
    }
    return {};
  }

 private:
  std::uint64_t size_;
};

Result<void> verify_descriptor() {
  struct stat status {};
  if (::fstat(kLayer, &status) != 0) return Error::from_errno(errno, "descriptor 3");
  if (!S_ISREG(status.st_mode))
    return Error(ErrorKind::invalid, "descriptor 3: it is not a regular file");
  LayerFile file(static_cast<std::uint64_t>(status.st_size));
  SPC_TRY_DURING("entering the sandbox", verify::confine(kLayer, file.size()));
  return verify_layer(file);
}

Result<void> guarded() {
  try {
    return verify_descriptor();
  } catch (const std::bad_alloc&) {
    return Error::from_errno(ENOMEM, "verify the layer");
  } catch (const std::exception& e) {
    return Error(ErrorKind::internal, e.what());
  }
}

}  // namespace
}  // namespace spc

int main() {
  const auto result = spc::guarded();
  if (!result)
    (void)spc::write_all(STDERR_FILENO,
                         spc::formatted("layer-verifier: {}\n", result.error().message()));
  // Nothing is left to run: exit handlers need calls that the sandbox forbids.
  ::_exit(result                                             ? spc::kAccepted
          : result.error().kind() == spc::ErrorKind::refused ? spc::kRefused
                                                             : spc::kFailed);
}
