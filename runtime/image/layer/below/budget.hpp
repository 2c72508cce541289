#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/format.hpp"
#include "base/result.hpp"

namespace spc {

/// Limits of one layer's conversion: bytes kept in memory, steps through directories and links,
/// bytes of files. Bytes and steps grow with the archive, so a small one cannot make much of itself
/// or of the layers below.
///
/// No real image comes near. An entry takes at least 512 bytes of the archive, about 10 of the
/// blob, and here 300 bytes and a step for each name of its path. The largest layers known have a
/// million entries.
class Budget {
 public:
  explicit Budget(std::uint64_t file_bytes = std::numeric_limits<std::uint64_t>::max())
      : file_bytes_(file_bytes) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  /// Sets how many bytes there have been of the uncompressed archive and of the blob.
  void set_size(std::uint64_t archive, std::uint64_t blob) {
    archive_ = archive;
    blob_ = blob;
  }

  /// Memory that stays until the layer is written.
  Result<void> keep(std::uint64_t bytes) {
    kept_ += bytes;
    if (kept_ <= kFreeBytes || kept_ <= most_bytes()) return {};
    return Error(
               ErrorKind::refused,
               formatted(
                   "its names, links and attributes need more than {} MiB of memory, as much as an "
                   "archive of this size may take",
                   most_bytes() >> 20U))
        .hint("split the layer");
  }
  /// One step: to a directory, or over a name of a link's target; takes about a tenth of a
  /// microsecond.
  Result<void> walk(std::uint64_t steps = 1) {
    walked_ += steps;
    if (walked_ <= kFreeSteps || walked_ <= most_steps()) return {};
    return Error(ErrorKind::refused, formatted("its paths and links lead over more than {} steps, "
                                               "as many as an archive of this "
                                               "size may take",
                                               most_steps()))
        .hint("split the layer, or use shorter links");
  }
  /// Bytes of a file, holes included.
  Result<void> fill(std::uint64_t bytes) {
    if (bytes > file_bytes_ - filled_) {
      return Error(ErrorKind::refused, formatted("files of more than {} bytes", file_bytes_))
          .hint("holes of sparse files count: make such files shorter");
    }
    filled_ += bytes;
    return {};
  }

  /// Memory that is given back when this ends.
  class Loan {
   public:
    Loan() = default;
    Loan(Loan&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(other.bytes_) {}
    Loan& operator=(Loan other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Loan() {
      if (budget_ != nullptr) budget_->kept_ -= bytes_;
    }

   private:
    friend class Budget;
    Loan(Budget* budget, std::uint64_t bytes) : budget_(budget), bytes_(bytes) {}
    Budget* budget_ = nullptr;
    std::uint64_t bytes_ = 0;
  };
  Result<Loan> lend(std::uint64_t bytes) {
    SPC_TRY(keep(bytes));
    return Loan(this, bytes);
  }

 private:
  static constexpr std::uint64_t kFreeBytes = std::uint64_t{64} << 20;
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1280} << 20;  ///< 4,000,000 entries
  static constexpr std::uint64_t kBytesOfBlob = 64;  ///< for each byte of the blob
  static constexpr std::uint64_t kFreeSteps = 32'000'000;
  static constexpr std::uint64_t kStepsOfBlob = 16;

  [[nodiscard]] std::uint64_t most_bytes() const {
    return std::min(kMostBytes, kFreeBytes + std::min(archive_, kBytesOfBlob * blob_));
  }
  [[nodiscard]] std::uint64_t most_steps() const {
    return kFreeSteps + std::min(archive_ / 2, kStepsOfBlob * blob_);
  }

  std::uint64_t archive_ = 0;
  std::uint64_t blob_ = 0;
  std::uint64_t kept_ = 0;
  std::uint64_t walked_ = 0;
  std::uint64_t filled_ = 0;
  const std::uint64_t file_bytes_;
};

}  // namespace spc
