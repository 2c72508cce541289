// `layer-verifier`: descriptor 3 is a layer's file, for reading. `layer-verifier sha256:HEX`:
// descriptor 3 is the record of the image whose manifest has this digest. Exit status 0: accepted.
// 1: refused. 2: failed. In the last two cases it writes one line with the reason to descriptor 2.

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <string>

#include "base/file.hpp"
#include "base/format.hpp"
#include "protocol/image_record.hpp"
#include "verify/record.hpp"
#include "verify/verify.hpp"

namespace spc {

namespace {

constexpr int kFile = 3;
enum Status { kAccepted = 0, kRefused = 1, kFailed = 2 };

class OpenedFile : public verify::LayerBytes {
 public:
  explicit OpenedFile(std::uint64_t size) : size_(size) {}
  [[nodiscard]] std::uint64_t size() const override { return size_; }
  Result<void> read(std::uint64_t offset, std::span<std::byte> into) override {
    while (!into.empty()) {
      const ssize_t count = ::pread(kFile, into.data(), into.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Error::from_errno(errno, "read the file");
      if (count == 0) return Error(ErrorKind::system, "read the file: it became shorter");
      offset += static_cast<std::uint64_t>(count);
      into = into.subspan(static_cast<std::size_t>(count));
    }
    return {};
  }

 private:
  std::uint64_t size_;
};

Result<void> verify_record_in(OpenedFile& file, const Digest& manifest) {
  if (file.size() > ImageRecordHeader::kMaxBytes) return verify::refused("it is too large");
  std::string record(static_cast<std::size_t>(file.size()), '\0');
  SPC_TRY(file.read(0, std::as_writable_bytes(std::span(record))));
  return verify_record(manifest, record);
}

Result<void> verify_descriptor(const char* manifest) {
  struct stat status {};
  if (::fstat(kFile, &status) != 0) return Error::from_errno(errno, "descriptor 3");
  if (!S_ISREG(status.st_mode))
    return Error(ErrorKind::invalid, "descriptor 3: it is not a regular file");
  OpenedFile file(static_cast<std::uint64_t>(status.st_size));
  std::optional<Digest> name;
  if (manifest != nullptr) name = SPC_TRY(Digest::parse(manifest));
  SPC_TRY_DURING("entering the sandbox", verify::confine(kFile, file.size()));
  return name ? verify_record_in(file, *name) : verify_layer(file);
}

Result<void> guarded(const char* manifest) {
  try {
    return verify_descriptor(manifest);
  } catch (const std::bad_alloc&) {
    return Error::from_errno(ENOMEM, "verify the file");
  } catch (const std::exception& e) {
    return Error(ErrorKind::internal, e.what());
  }
}

}  // namespace

}  // namespace spc

int main(int argc, char** argv) {
  const auto result = spc::guarded(argc > 1 ? argv[1] : nullptr);
  if (!result)
    (void)spc::write_all(STDERR_FILENO,
                         spc::formatted("layer-verifier: {}\n", result.error().message()));
  // Skip exit handlers, which need calls that the sandbox forbids.
  ::_exit(result                                             ? spc::kAccepted
          : result.error().kind() == spc::ErrorKind::refused ? spc::kRefused
                                                             : spc::kFailed);
}
