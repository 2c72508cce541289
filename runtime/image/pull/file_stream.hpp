#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/registry/fetch.hpp"
#include "image/registry/manifest.hpp"

namespace spc {

/// `size` bytes at `offset` of a file.
struct FilePart {
  int file = -1;  ///< borrowed
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

/// An error unless it is an ordinary file with these bytes: reading anything else could wait for ever.
Result<void> check_file(const FilePart& part);
/// At most `into.size()` bytes from `at` of the part on, at least one.
Result<std::size_t> read_some(const FilePart& part, std::uint64_t at, std::span<std::byte> into);

struct OpenedPart {
  UniqueFd file;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

/// A layer's blob read from a file that others may change, a few chunks at each turn.
class FileStream final : public BlobStream {
 public:
  /// `open` is called once, by start(). `whose_fault`: a hint where the bytes are not the layer's.
  FileStream(Descriptor layer, FetchSink& sink, std::function<Result<OpenedPart>()> open, const char* whose_fault)
      : layer_(std::move(layer)), sink_(sink), open_(std::move(open)), whose_fault_(whose_fault) {}

  void start() override;
  /// A file is always readable: whoever waits for it goes on at once.
  void watch(std::vector<pollfd>& descriptors) const override;
  void advance() override;
  void resume() override { paused_ = false; }
  [[nodiscard]] bool finished() const override { return failed_ || sent_ == layer_.size; }
  Result<void> outcome() override { return failed_ ? Result<void>(*failed_) : Result<void>(); }
  [[nodiscard]] const char* whose_fault() const override { return whose_fault_; }
  /// Bytes that the sink has.
  [[nodiscard]] std::uint64_t sent() const { return sent_; }

 private:
  Result<void> open();
  Result<void> move_chunk();
  void fail(Error error) { failed_ = std::move(error).during("layer " + in_quotes(layer_.digest.str())).hint(whose_fault_); }
  [[nodiscard]] FilePart bytes() const { return {.file = part_->file.get(), .offset = part_->offset, .size = part_->size}; }

  Descriptor layer_;
  FetchSink& sink_;
  std::function<Result<OpenedPart>()> open_;
  const char* whose_fault_;
  std::optional<OpenedPart> part_;
  std::vector<std::byte> chunk_;
  std::size_t from_ = 0;  // what of the chunk the sink does not have
  std::uint64_t sent_ = 0;
  bool paused_ = false;
  std::optional<Error> failed_;
};

}  // namespace spc
