#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/log.hpp"

namespace spc {

/// One line for the user on stderr, red on a terminal: `scontainer: …`.
void report_error(std::string_view message);

enum class Colour { none, bold, green, yellow, red };
/// `text` in this colour if stdout is a terminal and NO_COLOR is not set.
std::string coloured(std::string_view text, Colour colour);

/// Whether progress is drawn (stderr is a terminal that can) or written in lines.
bool draws_progress();

/// Progress of one image: a bar that is redrawn on a terminal, plain lines otherwise. Warnings always are lines.
class PullDisplay final : public Log {
 public:
  PullDisplay(std::string image, bool quiet);
  PullDisplay(const PullDisplay&) = delete;
  PullDisplay& operator=(const PullDisplay&) = delete;
  /// Takes the bar away.
  ~PullDisplay() override;

  void write(LogLevel level, std::string_view line) noexcept override;
  /// Bytes of the image's blobs that have come, of all that have to.
  void meter(std::uint64_t done, std::uint64_t total);

 private:
  void draw(const std::string& line);
  void clear();

  std::string image_;
  bool quiet_;
  bool drawn_ = false;
  std::uint64_t began_us_ = 0;     // of the first byte
  std::uint64_t began_bytes_ = 0;  // that were there then
};

/// `1.4 GB`, `23 kB`: for people.
std::string human_bytes(std::uint64_t bytes);
/// `3 days`, `just now`: for people.
std::string human_age(std::int64_t seconds);

}  // namespace spc
