#include "image/remote/fetch_file.hpp"

#include <chrono>

#include "base/file.hpp"
#include "base/sha256.hpp"

namespace spc {
namespace {

/// Into a file, with its digest.
class FileSink final : public FetchSink {
 public:
  FileSink(int file, const std::function<void(std::uint64_t)>& meter)
      : file_(file), meter_(meter) {}
  HttpHandler::Take take(std::span<const std::byte> bytes) override {
    hash_.update(bytes);
    if (auto written = write_all(file_, bytes); !written) {
      failed_ = std::move(written).error();
      return HttpHandler::Take::stop;
    }
    size_ += bytes.size();
    if (meter_) meter_(size_);
    return HttpHandler::Take::taken;
  }
  [[nodiscard]] const std::optional<Error>& failed() const { return failed_; }
  FetchedFile finish() {
    return {.digest = hash_.finish(), .size = size_, .media_type = {}, .validator = {}};
  }

 private:
  int file_;
  const std::function<void(std::uint64_t)>& meter_;
  Sha256 hash_;
  std::uint64_t size_ = 0;
  std::optional<Error> failed_;
};

}  // namespace

Result<FetchedFile> fetch_file(RegistrySession& session, const FetchRequest& request, int file,
                               const std::function<void(std::uint64_t)>& meter) {
  FileSink sink(file, meter);
  Fetch fetch(session, request, sink);
  fetch.start();
  while (!fetch.finished()) {
    SPC_TRY(session.http.wait(std::chrono::milliseconds(100)));
    if (sink.failed()) return Error(*sink.failed()).during("keep " + request.what);
    fetch.advance();
  }
  const auto head = SPC_TRY(fetch.result());
  FetchedFile fetched = sink.finish();
  fetched.media_type = std::string(head.header("content-type"));
  for (const char* name : {"last-modified", "etag"}) {
    if (const auto value = head.header(name); !value.empty()) fetched.validator = Sha256::of(value);
  }
  return fetched;
}

}  // namespace spc
