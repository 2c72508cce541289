#include "image/export/zstd_sink.hpp"

#include <zstd.h>

#include <algorithm>
#include <string>

#include "base/process/processors.hpp"

namespace spc {
namespace {

constexpr int kLevel = 3;
constexpr unsigned kMostWorkers = 8;

}  // namespace

void ZstdSink::Free::operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }

/// One worker at least: a file that was made without any is another one.
ZstdSink::ZstdSink(const ByteSink& to)
    : to_(to), context_(ZSTD_createCCtx()), out_(ZSTD_CStreamOutSize()) {
  ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, kLevel);
  ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_checksumFlag, 1);
  ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_nbWorkers,
                         static_cast<int>(std::min(usable_processors(), kMostWorkers)));
}

Result<void> ZstdSink::compress(const void* bytes, std::size_t size, bool is_end) {
  ZSTD_inBuffer in{bytes, size, 0};
  for (;;) {
    ZSTD_outBuffer out{out_.data(), out_.size(), 0};
    const std::size_t left =
        ZSTD_compressStream2(context_.get(), &out, &in, is_end ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(left) != 0)
      return Error(ErrorKind::system,
                   std::string("compress the layer: ") + ZSTD_getErrorName(left));
    if (out.pos > 0) SPC_TRY(to_(out_.data(), out.pos));
    if (is_end ? left == 0 : in.pos == in.size) return {};
  }
}

}  // namespace spc
