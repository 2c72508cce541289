#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "base/log.hpp"

namespace spc::tool {

// --- terminal ---

/// Prints one line on stderr, red on a terminal: `scontainer: …`.
void report_error(std::string_view message);

enum class Colour { none, bold, green, yellow, red };
/// Returns `text` in this color if stdout is a terminal and NO_COLOR is not set.
std::string coloured(std::string_view text, Colour colour);

/// Prints a table in columns as wide as their widest cell. The first row is the heading. On a
/// terminal the widest columns are cut until the table fits: the first one keeps its end.
void print_table(const std::vector<std::vector<std::string>>& table);

/// Returns whether progress is a bar (stderr is a capable terminal) or lines.
bool draws_progress();

/// Progress of one image: a bar on a terminal, plain lines otherwise. Warnings are always lines.
class PullDisplay final : public Log {
 public:
  PullDisplay(std::string image, bool quiet);
  PullDisplay(const PullDisplay&) = delete;
  PullDisplay& operator=(const PullDisplay&) = delete;
  /// Removes the bar.
  ~PullDisplay() override;

  void write(LogLevel level, std::string_view line) noexcept override;
  /// Sets the received and total bytes of the image's blobs.
  void meter(std::uint64_t done, std::uint64_t total);

 private:
  void draw(const std::string& line);
  void clear();

  std::string image_;
  bool quiet_;
  bool drawn_ = false;
  std::uint64_t began_us_ = 0;     // time of the first byte
  std::uint64_t began_bytes_ = 0;  // bytes at that time
};

/// Returns `3 days`, `just now`.
std::string human_age(std::int64_t seconds);

}  // namespace spc::tool
