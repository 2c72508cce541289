#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/result.hpp"
#include "image/export/archive.hpp"

struct ZSTD_CCtx_s;

namespace spc {

/// Compresses what is written to it: the same bytes give the same file, on any number of
/// processors.
class ZstdSink {
 public:
  /// `to` is borrowed.
  explicit ZstdSink(const ByteSink& to);
  Result<void> write(const void* bytes, std::size_t size) { return compress(bytes, size, false); }
  Result<void> finish() { return compress(nullptr, 0, true); }

 private:
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  Result<void> compress(const void* bytes, std::size_t size, bool is_end);

  const ByteSink& to_;
  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
  std::vector<std::byte> out_;
};

}  // namespace spc
