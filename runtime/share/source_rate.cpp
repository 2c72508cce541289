#include "share/source_rate.hpp"

#include <algorithm>

namespace spc {

namespace {

constexpr double kSlow = 1.0 / 3, kHelps = 2;
constexpr double kBehind = 0.5;  // allowed lag, in seconds at the achievable rate
constexpr double kLeastBehind = 1 << 20, kMostBehind = 32 << 20;
constexpr double kTime = 1, kSourcesTime = 2, kLeaderTime = 1, kPause = 5;
constexpr int kMostMoves = 3, kMostInVain = 2;

}  // namespace

std::optional<double> SourceRate::Lag::rate(double now, double has, double ahead, double limit,
                                            double time) {
  if (ahead - has <= limit) {
    since = -1;
    return std::nullopt;
  }
  if (since < 0) {
    since = now, begin = has;
    return std::nullopt;
  }
  if (now - since < time) return std::nullopt;
  const double rate = (has - begin) / (now - since);
  since = now, begin = has;
  return rate;
}

/// Returns the achievable rate, 0 while it is not known.
double SourceRate::can_be_had(const Seen& seen) {
  if (leader_since_ < 0) leader_since_ = seen.now, leader_begin_ = seen.leader;
  if (seen.now - leader_since_ >= kLeaderTime) {
    const double rate = (seen.leader - leader_begin_) / (seen.now - leader_since_);
    if (rate > 0 || !leader_rate_) leader_rate_ = rate;
    leader_since_ = seen.now, leader_begin_ = seen.leader;
  }
  if (!leader_rate_) return 0;
  // A leader whose number never grew has the whole image: then only its sending rate matters.
  return *leader_rate_ > 0 ? std::min(*leader_rate_, seen.peer_rate) : seen.peer_rate;
}

bool SourceRate::is_slow(const Seen& seen) {
  const double can = can_be_had(seen);
  const double limit = can > 0 ? std::clamp(kBehind * can, kLeastBehind, kMostBehind) : kMostBehind;
  const auto mine = mine_.rate(seen.now, seen.here, seen.there, limit, kTime);
  const auto sources = sources_.rate(seen.now, seen.there, seen.leader, 2 * limit, kSourcesTime);
  for (const auto& rate : {mine, sources}) {
    if (rate && *rate < kSlow * can) return may_move(seen.now, *rate);
  }
  return false;
}

bool SourceRate::may_move(double now, double rate) {
  if (moves_ == kMostMoves || (moves_ > 0 && now - last_move_ < kPause)) return false;
  if (moves_ > 0 && rate < kHelps * rate_before_ && ++in_vain_ == kMostInVain) moves_ = kMostMoves;
  if (moves_ == kMostMoves) return false;
  ++moves_;
  last_move_ = now, rate_before_ = rate;
  return true;
}

}  // namespace spc
