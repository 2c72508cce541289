#include "tool/surroundings/terminal.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/clock.hpp"
#include "base/format.hpp"
#include "base/result.hpp"
#include "base/text.hpp"

namespace spc::tool {

// --- terminal ---

namespace {

bool can_colour(int descriptor) {
  const char* no = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return (no == nullptr || *no == '\0') && ::isatty(descriptor) == 1 && terminal != nullptr &&
         std::string_view(terminal) != "dumb";
}

const char* code_of(Colour colour) {
  switch (colour) {
    case Colour::bold: return "\033[1m";
    case Colour::green: return "\033[32m";
    case Colour::yellow: return "\033[33m";
    case Colour::red: return "\033[31m";
    case Colour::none: break;
  }
  return "";
}

std::size_t terminal_width(int descriptor) {
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

constexpr std::size_t kBetweenColumns = 2;

/// Narrows the widest columns until the table is at most `width` wide.
void narrow(std::vector<std::size_t>& widths, std::size_t width) {
  constexpr std::size_t kNarrowest = 8;
  for (;;) {
    std::size_t sum = 0;
    for (const std::size_t one : widths) sum += one + kBetweenColumns;
    const auto widest = std::ranges::max_element(widths);
    if (sum <= width + kBetweenColumns || *widest <= kNarrowest) return;
    --*widest;
  }
}

/// Cuts a cell to `width` bytes.
std::string cut(const std::string& cell, std::size_t width, bool keeps_end) {
  constexpr std::string_view kCut = "...";
  if (cell.size() <= width) return cell;
  if (keeps_end) return std::string(kCut) + cell.substr(cell.size() - (width - kCut.size()));
  const auto head = std::string_view(cell).substr(0, width - kCut.size());
  return std::string(head.substr(0, utf8_bytes(head))) + std::string(kCut);
}

std::string clock_time(std::uint64_t seconds) {
  char text[40];
  std::snprintf(text, sizeof text, "%llu:%02llu", static_cast<unsigned long long>(seconds / 60),
                static_cast<unsigned long long>(seconds % 60));
  return text;
}

}  // namespace

void report_error(std::string_view message) {
  const bool red = can_colour(STDERR_FILENO);
  std::string text(message);
  // Without a step there is one machine.
  constexpr std::string_view kStep = " on every node of the step";
  if (const auto at = text.find(kStep); at != std::string::npos) text.erase(at, kStep.size());
  for (const std::string_view empty :
       {" (hint: it must exist)", " (hint: the source must exist)"}) {
    if (const auto at = text.find(empty); at != std::string::npos) text.erase(at, empty.size());
  }
  // scontainer uses a job's options without this prefix, and so do its error messages, except
  // commands of Slurm in them.
  constexpr std::string_view kJobs = "--container-";
  for (auto at = text.find(kJobs); at != std::string::npos && text.rfind("srun ", at) > at;
       at = text.find(kJobs, at))
    text.replace(at, kJobs.size(), "--");
  const std::string line = (red ? "\033[31mscontainer:\033[0m " : "scontainer: ") + text + "\n";
  std::fputs(line.c_str(), stderr);
}

std::string coloured(std::string_view text, Colour colour) {
  static const bool can = can_colour(STDOUT_FILENO);
  if (!can || colour == Colour::none) return std::string(text);
  return code_of(colour) + std::string(text) + "\033[0m";
}

bool draws_progress() {
  const char* terminal = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && terminal != nullptr &&
         std::string_view(terminal) != "dumb";
}

PullDisplay::PullDisplay(std::string image, bool quiet) : image_(std::move(image)), quiet_(quiet) {
  if (!quiet_ && draws_progress()) draw(image_ + ": contacting the registry");
}

PullDisplay::~PullDisplay() { clear(); }

void PullDisplay::write(LogLevel level, std::string_view line) noexcept {
  if (level == LogLevel::debug || (quiet_ && level != LogLevel::warning)) return;
  try {
    clear();
    const std::string text =
        std::string(level == LogLevel::warning ? "warning: " : "") + printable(line) + "\n";
    std::fputs(text.c_str(), stderr);
  } catch (const std::exception&) {
    // A write error loses one line.
  }
}

void PullDisplay::meter(std::uint64_t done, std::uint64_t total) {
  if (quiet_ || !draws_progress() || total == 0) return;
  const std::uint64_t now = now_us();
  if (began_us_ == 0) {
    began_us_ = now;
    began_bytes_ = done;
  }
  const std::size_t width = terminal_width(STDERR_FILENO) - 1;
  std::string right =
      formatted(" {}% {} of {}", done * 100 / total, human_bytes(done), human_bytes(total));
  if (done >= total) {
    right += ", finishing";
  } else if (now - began_us_ > 500'000 && done > began_bytes_) {
    const std::uint64_t rate = (done - began_bytes_) * 1'000'000 / (now - began_us_);
    right += formatted(", {}/s", human_bytes(rate));
    if (rate > 0) right += formatted(", {} left", clock_time((total - done) / rate));
  }
  // The bar takes the rest of the line. The image's name is shortened first.
  std::string name = image_;
  const std::size_t for_name = width > right.size() + 14 ? width - right.size() - 14 : 0;
  if (name.size() > for_name)
    name = for_name > 3 ? "..." + name.substr(name.size() - (for_name - 3)) : "";
  const std::size_t used = name.size() + right.size() + 3;
  const std::size_t bar = std::min<std::size_t>(width > used ? width - used : 0, 40);
  const std::size_t full = static_cast<std::size_t>(
      static_cast<double>(bar) * static_cast<double>(done) / static_cast<double>(total));
  draw(formatted("{} [{}{}]{}", name, std::string(full, '#'), std::string(bar - full, '.'), right));
}

void PullDisplay::draw(const std::string& line) {
  std::fputs(("\r\033[K" + line.substr(0, terminal_width(STDERR_FILENO) - 1)).c_str(), stderr);
  std::fflush(stderr);
  drawn_ = true;
}

void PullDisplay::clear() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

void print_table(const std::vector<std::vector<std::string>>& table) {
  std::vector<std::size_t> widths;
  for (const auto& row : table) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  if (::isatty(STDOUT_FILENO) == 1) narrow(widths, terminal_width(STDOUT_FILENO));
  for (std::size_t line = 0; line < table.size(); ++line) {
    std::string text;
    for (std::size_t i = 0; i < table[line].size(); ++i) {
      const std::string cell = cut(table[line][i], widths[i], i == 0);
      const bool last = i + 1 == table[line].size();
      text += cell + (last ? "" : std::string(widths[i] - cell.size() + kBetweenColumns, ' '));
    }
    std::puts(coloured(text, line == 0 ? Colour::bold : Colour::none).c_str());
  }
}

std::string human_age(std::int64_t seconds) {
  const auto some = [](std::int64_t count, const char* unit) {
    return formatted("{} {}{}", count, unit, count == 1 ? "" : "s");
  };
  if (seconds < 60) return "just now";
  if (seconds < 7200) return some(seconds / 60, "minute");
  if (seconds < 172'800) return some(seconds / 3600, "hour");
  return some(seconds / 86'400, "day");
}

}  // namespace spc::tool
