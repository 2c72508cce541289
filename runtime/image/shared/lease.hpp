#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/result.hpp"

namespace spc {

/// 16 hexadecimal digits that nobody else has drawn.
std::string random_text();

/// The right to do something for all nodes, kept as a small file on a file system that they share:
/// no flock, and no clock but one's own. Its holder rewrites it once a second; who waits for it
/// takes it over when it has not changed for five seconds. Two holders do no harm, for what they
/// make has the same name and the same bytes.
class Lease {
 public:
  Lease(Lease&& other) noexcept
      : directory_(std::exchange(other.directory_, -1)),
        name_(std::move(other.name_)),
        token_(std::move(other.token_)),
        note_(std::move(other.note_)),
        count_(other.count_),
        next_(other.next_) {}
  Lease& operator=(Lease&&) = delete;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  /// Gives it back.
  ~Lease();

  /// To be called often; writes at most once a second.
  void beat();
  /// What others are to know, without blanks at its ends; they are told at once.
  void tell(std::string note);

 private:
  friend Result<std::optional<Lease>> take_lease(int directory, const std::string& name,
                                                 class WatchedLease& others);
  using Clock = std::chrono::steady_clock;
  Lease(int directory, std::string name, std::string token)
      : directory_(directory),
        name_(std::move(name)),
        token_(std::move(token)),
        next_(Clock::now()) {}

  int directory_;  // borrowed; -1: it was moved
  std::string name_, token_, note_;
  std::uint64_t count_ = 0;
  Clock::time_point next_{};
};

/// What is known of a lease that somebody else has.
class WatchedLease {
 public:
  /// Whether its holder has died, or has stopped: `content` is as it was, five seconds ago.
  bool is_stale(std::string content);
  /// What its holder told when it was last looked at; it is anybody's text.
  [[nodiscard]] std::string note() const;

 private:
  using Clock = std::chrono::steady_clock;
  std::optional<std::string> content_;
  Clock::time_point since_{};
};

/// Empty: somebody else has it. Error: it cannot be made here.
Result<std::optional<Lease>> take_lease(int directory, const std::string& name,
                                        WatchedLease& others);

}  // namespace spc
