#include "image/user_source/unpack.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/file.hpp"
#include "base/format.hpp"
#include "image/layer/archive/decompress.hpp"
#include "image/user_source/temporary_file.hpp"

namespace spc::user_source {
namespace {

using Clock = std::chrono::steady_clock;

/// Unpacked, nobody's image is larger; a small file that claims to be is an attack on the disk.
constexpr std::uint64_t kMaxUnpacked = std::uint64_t{1} << 40;
constexpr std::uint64_t kUsualRatio = 3;
constexpr std::chrono::seconds kBetweenUnpackLines{15};

bool begins_with(const std::array<std::byte, 6>& bytes, std::string_view magic) {
  return std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

std::string in_mb(std::uint64_t bytes) {
  return std::to_string((bytes + 999'999) / 1'000'000) + " MB";
}

/// Writes what comes out; the bytes are hashed by nobody, so the second reader of the queue only
/// lets go of them.
Result<std::uint64_t> write_pieces(PieceQueue& queue, int output, const std::string& name,
                                   Log& log) {
  std::uint64_t written = 0;
  auto next_line = Clock::now() + kBetweenUnpackLines;
  for (;;) {
    const PieceRef piece = SPC_TRY(queue.next(PieceQueue::kParser));
    if (!piece) return written;
    SPC_TRY(write_all(output, piece.bytes()));
    written += piece.bytes().size();
    if (Clock::now() < next_line) continue;
    next_line = Clock::now() + kBetweenUnpackLines;
    log.write(LogLevel::info, formatted("unpacking {}: {}", name, in_mb(written)));
  }
}

Result<std::uint64_t> decompress_into(int input, int output, const std::string& name, Log& log) {
  PieceQueue queue;
  std::thread inflating([&] {
    auto done = decompress(input, queue, kMaxUnpacked);
    queue.finish(done ? std::nullopt : std::optional(std::move(done).error()));
  });
  std::thread unread([&] {
    for (;;) {
      const auto piece = queue.next(PieceQueue::kHasher);
      if (!piece || !*piece) return;
    }
  });
  auto written = write_pieces(queue, output, name, log);
  if (!written) queue.stop();
  inflating.join();
  unread.join();
  return written;
}

}  // namespace

Result<FilePart> unpacked(FilePart file, const std::string& name, Log& log) {
  std::array<std::byte, 6> magic{};
  SPC_TRY_DURING("read " + in_quotes(name), read_at(file, 0, magic));
  using namespace std::string_view_literals;
  for (const auto& [bytes, format] : {std::pair("\xfd"
                                                "7zXZ\0"sv,
                                                "xz"),
                                      std::pair("BZh"sv, "bzip2")}) {
    if (begins_with(magic, bytes)) {
      return Error(ErrorKind::invalid, formatted("{} is compressed with {}, which is not supported",
                                                 in_quotes(name), format))
          .hint("unpack it, or compress it with gzip or zstd");
    }
  }
  if (!begins_with(magic, "\x1f\x8b"sv) && !begins_with(magic, "\x28\xb5\x2f\xfd"sv)) return file;

  log.write(LogLevel::info,
            formatted("unpacking {}: {} (an archive that is not compressed starts faster)", name,
                      in_mb(file.size)));
  const std::string step = "unpack " + in_quotes(name);
  UniqueFd output = SPC_TRY_DURING(step, temporary_file(file.size * kUsualRatio));
  if (::lseek(file.file->get(), 0, SEEK_SET) != 0) return Error::from_errno(errno, step);
  const std::uint64_t size =
      SPC_TRY_DURING(step, decompress_into(file.file->get(), output.get(), name, log));
  return FilePart{.file = std::make_shared<const UniqueFd>(std::move(output)), .size = size};
}

}  // namespace spc::user_source
