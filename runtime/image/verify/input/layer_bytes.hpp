#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/result.hpp"

namespace spc::verify {

/// A layer's file, or test data.
class LayerBytes {
 public:
  virtual ~LayerBytes() = default;
  [[nodiscard]] virtual std::uint64_t size() const = 0;
  /// Fills `into` from `offset`. The caller has checked the bounds.
  virtual Result<void> read(std::uint64_t offset, std::span<std::byte> into) = 0;
};

/// Bytes in memory.
class SpanBytes : public LayerBytes {
 public:
  explicit SpanBytes(std::span<const std::byte> bytes) : bytes_(bytes) {}
  [[nodiscard]] std::uint64_t size() const override { return bytes_.size(); }
  Result<void> read(std::uint64_t offset, std::span<std::byte> into) override {
    if (!into.empty())
      std::memcpy(into.data(), bytes_.subspan(offset, into.size()).data(), into.size());
    return {};
  }

 private:
  std::span<const std::byte> bytes_;
};

/// Reads little-endian numbers from the front; the caller has checked the size.
class Fields {
 public:
  explicit Fields(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <std::unsigned_integral Number>
  Number take() {
    Number number = 0;
    for (std::size_t i = 0; i < sizeof(Number); ++i) {
      number = static_cast<Number>(number | static_cast<Number>(bytes_[i]) << (8 * i));
    }
    bytes_ = bytes_.subspan(sizeof(Number));
    return number;
  }

 private:
  std::span<const std::byte> bytes_;
};

inline Error refused(std::string what) { return Error(ErrorKind::refused, std::move(what)); }

}  // namespace spc::verify
