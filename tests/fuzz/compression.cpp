// gzip and zstd framing, compared with zlib and libzstd: all input accepted here is accepted by
// them, with the same bytes.
// outcome 78 accepted: several members, extra fields, names
// outcome 84 refused: zstd cut, other magic, reserved block, window, dictionary

#include <zlib.h>
#include <zstd.h>

#include <memory>
#include <thread>

#include "convert/tar_reader.hpp"
#include "lib/memory_file.hpp"
#include "lib/property.hpp"

using namespace spc;
using namespace spc::fuzz;

namespace {

constexpr std::size_t kLimit = 4 << 20;

struct Outcome {
  std::optional<std::string> bytes;
  std::string why;
};

Outcome ours(std::string_view blob) {
  const UniqueFd file = memory_file(blob);
  PieceQueue queue;
  std::optional<Error> error;
  std::thread inflating([&] {
    auto done = decompress(file.get(), queue, kLimit);
    queue.finish(done ? std::nullopt : std::optional(std::move(done).error()));
  });
  std::thread hashing([&] {
    for (auto piece = queue.next(PieceQueue::kHasher); piece && *piece;
         piece = queue.next(PieceQueue::kHasher)) {
    }
  });
  Outcome outcome{.bytes = std::string()};
  for (;;) {
    const auto piece = queue.next(PieceQueue::kParser);
    if (!piece) {
      must_be_readable(piece.error());
      outcome = {.bytes = std::nullopt, .why = piece.error().message()};
      break;
    }
    if (!*piece) break;
    outcome.bytes->append(reinterpret_cast<const char*>(piece->bytes().data()),
                          piece->bytes().size());
  }
  queue.stop();
  inflating.join();
  hashing.join();
  return outcome;
}

bool only_zeros(std::string_view text) {
  return text.find_first_not_of('\0') == std::string_view::npos;
}

/// Decompresses concatenated members, followed by zeros, with zlib.
std::optional<std::string> by_zlib(std::string_view blob) {
  std::string out;
  while (blob.starts_with("\x1f\x8b")) {
    z_stream stream{};
    must(inflateInit2(&stream, 15 + 16) == Z_OK, "zlib works");
    const std::unique_ptr<z_stream, decltype(&inflateEnd)> end(&stream, &inflateEnd);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(blob.data()));
    stream.avail_in = static_cast<uInt>(blob.size());
    int rc = Z_OK;
    while (rc == Z_OK) {
      char room[65536];
      stream.next_out = reinterpret_cast<Bytef*>(room);
      stream.avail_out = sizeof room;
      rc = inflate(&stream, Z_NO_FLUSH);
      out.append(room, sizeof room - stream.avail_out);
    }
    if (rc != Z_STREAM_END) return std::nullopt;
    blob.remove_prefix(blob.size() - stream.avail_in);
  }
  return only_zeros(blob) ? std::optional(out) : std::nullopt;
}

/// Decompresses concatenated frames, followed by zeros, with libzstd's reader of whole frames.
std::optional<std::string> by_zstd(std::string_view blob) {
  std::string out;
  while (!only_zeros(blob)) {
    const std::size_t frame = ZSTD_findFrameCompressedSize(blob.data(), blob.size());
    if (ZSTD_isError(frame) != 0) return std::nullopt;
    std::string room(kLimit + 1, '\0');
    const std::size_t size = ZSTD_decompress(room.data(), room.size(), blob.data(), frame);
    if (ZSTD_isError(size) != 0) return std::nullopt;
    out.append(room, 0, size);
    blob.remove_prefix(frame);
  }
  return out;
}

}  // namespace

FUZZ_TARGET(compression) {
  const std::string_view blob = text_of(data, size);
  const Outcome outcome = ours(blob);
  const bool is_gzip = blob.starts_with("\x1f\x8b");
  const bool is_zstd =
      blob.starts_with("\x28\xb5\x2f\xfd") || (blob.size() >= 4 && (blob[0] & '\xf0') == '\x50' &&
                                               blob.substr(1).starts_with("\x2a\x4d\x18"));
  if (!outcome.bytes) {
    must(is_gzip || is_zstd || blob.empty() || size > kLimit, "plain bytes are taken as they are");
    return 0;
  }
  must(outcome.bytes->size() <= kLimit, "the limit counts");
  if (is_gzip) {
    must(by_zlib(blob) == outcome.bytes, "zlib accepts it and sees the same");
  } else if (is_zstd) {
    must(by_zstd(blob) == outcome.bytes, "libzstd accepts it and sees the same");
  } else {
    must(*outcome.bytes == blob, "plain bytes are taken as they are");
  }
  return 0;
}
