#include "share/peer_order.hpp"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "protocol/tracker.hpp"

namespace spc {

// --- peer order ---

namespace {

constexpr std::size_t kOthers = 2;  // sources besides parent and ancestors

/// Visits the nodes of a level, the nearest node_id first, until `taken` returns true.
template <typename Level, typename Taken>
void visit_nearest(const Level& level, std::uint32_t node_id, Taken&& taken) {
  auto above = level.lower_bound({node_id, 0});
  auto below = above;
  while (above != level.end() || below != level.begin()) {
    const bool up =
        below == level.begin() ||
        (above != level.end() && above->first - node_id <= node_id - std::prev(below)->first);
    if (taken(up ? (above++)->second : (--below)->second)) return;
  }
}

}  // namespace

PeerOrder::Index PeerOrder::join(std::uint32_t node_id) {
  Index parent = nearest_open(node_id);
  const Index index = size();
  nodes_.push_back({.node_id = node_id});
  living_.push_back(index);
  // a shunned parent, or none if no other node lives
  if (parent == kNone) parent = place_for(index, kNone, {});
  if (parent != kNone) {
    attach(index, parent);
  } else {
    list(index);
  }
  return index;
}

std::vector<PeerOrder::Index> PeerOrder::leave(Index index) {
  std::vector<Index> told;
  if (!lives(index)) return told;
  const Index above = nodes_[index].parent;
  detach(index);
  unlist(index);
  nodes_[index].lives = false;
  living_.erase(std::lower_bound(living_.begin(), living_.end(), index));
  auto orphans = nodes_[index].children;
  std::sort(orphans.begin(), orphans.end());  // lowest first: the others may be placed below it
  for (const Index orphan : orphans) detach(orphan);
  for (const Index orphan : orphans) settle(orphan, above, {}, told);
  return told;
}

std::vector<PeerOrder::Index> PeerOrder::move(Index index, Barred barred, Because because) {
  std::vector<Index> told;
  if (!lives(index)) return told;
  const Index above = nodes_[index].parent;
  if (because == Because::slow) {
    const Index better = place_for(index, above, barred);
    if (better == kNone || takes_from(better, barred)) return told;
  }
  for (const Index other : barred) {
    if (!lives(other) || other == index) continue;
    unlist(other);
    nodes_[other].shunned = true;
  }
  detach(index);
  settle(index, above, barred, told);
  return told;
}

std::vector<PeerOrder::Index> PeerOrder::sources_of(Index index) const {
  std::vector<Index> sources;
  if (!lives(index)) return sources;
  for (Index at = nodes_[index].parent; at != kNone && sources.size() < kMostSources - kOthers;
       at = nodes_[at].parent) {
    sources.push_back(at);
  }
  if (!sources.empty()) add_others(index, sources);
  return sources;
}

/// Adds nodes with free places, the deepest first, because these serve the fewest other nodes. Adds
/// nodes below the parent only if there are no others: if the parent dies, those nodes have to find
/// another source as well.
void PeerOrder::add_others(Index index, std::vector<Index>& sources) const {
  const Index parent = sources.front();
  std::size_t missing = kOthers, looked = 0;
  std::vector<Index> below_parent;
  for (auto level = open_.rbegin(); level != open_.rend() && missing > 0; ++level) {
    visit_nearest(*level, nodes_[index].node_id, [&](Index other) {
      if (other < index && std::find(sources.begin(), sources.end(), other) == sources.end()) {
        if (takes_from(other, {&parent, 1})) {
          below_parent.push_back(other);
        } else {
          sources.push_back(other), --missing;
        }
      }
      return missing == 0 || ++looked % 64 == 0;  // distant nodes are not worth a longer search
    });
  }
  below_parent.resize(std::min(below_parent.size(), missing));
  sources.insert(sources.end(), below_parent.begin(), below_parent.end());
}

/// Finds a new parent for a node without one; `above` is the parent of its last parent. If all
/// places are taken, it displaces a node with a higher index, which then searches itself. The
/// displaced node has more candidates, so the search ends.
void PeerOrder::settle(Index index, Index above, Barred barred, std::vector<Index>& told) {
  for (;;) {
    if (std::find(told.begin(), told.end(), index) == told.end()) told.push_back(index);
    if (const Index parent = place_for(index, above, barred); parent != kNone)
      return attach(index, parent);
    const Index full = place_to_clear(index, barred);
    if (full == kNone) return set_depth(index, 0);
    const Index displaced =
        *std::max_element(nodes_[full].children.begin(), nodes_[full].children.end());
    detach(displaced);
    attach(index, full);
    index = displaced, above = full, barred = {};
  }
}

/// Returns the nearest ancestor with a free place, or a node with one where the tree is least deep.
/// As a last resort before the registry, returns a node that fetches from a barred one: that node
/// will lose its source as well, and find another.
PeerOrder::Index PeerOrder::place_for(Index index, Index above, Barred barred) const {
  const auto has_place = [&](Index at) {
    return at < index && nodes_[at].children.size() < places_ && can_serve(at, barred);
  };
  for (; above != kNone; above = nodes_[above].parent) {
    if (has_place(above) && !nodes_[above].shunned && !takes_from(above, barred)) return above;
  }
  const auto rank = [&](Index at) {
    return std::tuple(takes_from(at, barred), nodes_[at].shunned, nodes_[at].depth,
                      distance(at, nodes_[index].node_id));
  };
  Index best = kNone;
  for (const Index at : living_) {
    if (at >= index) break;
    if (has_place(at) && (best == kNone || rank(at) < rank(best))) best = at;
  }
  return best;
}

PeerOrder::Index PeerOrder::place_to_clear(Index index, Barred barred) const {
  for (const Index at : living_) {
    if (at >= index) break;
    const auto higher = [&](Index child) { return child > index; };
    const auto& children = nodes_[at].children;
    if (can_serve(at, barred) && std::any_of(children.begin(), children.end(), higher)) return at;
  }
  return kNone;
}

bool PeerOrder::can_serve(Index index, Barred barred) const {
  return lives(index) && std::find(barred.begin(), barred.end(), index) == barred.end();
}

PeerOrder::Index PeerOrder::nearest_open(std::uint32_t node_id) const {
  Index found = kNone;
  for (const auto& level : open_) {
    visit_nearest(level, node_id, [&](Index at) { return found = at, true; });
    if (found != kNone) break;
  }
  return found;
}

/// Returns whether `index` is one of `barred` or fetches through one of them.
bool PeerOrder::takes_from(Index index, Barred barred) const {
  for (; index != kNone && !barred.empty(); index = nodes_[index].parent) {
    if (std::find(barred.begin(), barred.end(), index) != barred.end()) return true;
  }
  return false;
}

std::uint32_t PeerOrder::distance(Index one, std::uint32_t node_id) const {
  return std::max(nodes_[one].node_id, node_id) - std::min(nodes_[one].node_id, node_id);
}

void PeerOrder::attach(Index index, Index parent) {
  unlist(parent);
  nodes_[parent].children.push_back(index);
  list(parent);
  nodes_[index].parent = parent;
  set_depth(index, nodes_[parent].depth + 1);
}

void PeerOrder::detach(Index index) {
  const Index parent = std::exchange(nodes_[index].parent, kNone);
  if (parent == kNone) return;
  unlist(parent);
  std::erase(nodes_[parent].children, index);
  list(parent);
}

void PeerOrder::set_depth(Index index, std::uint32_t depth) {
  if (nodes_[index].depth == depth) return list(index);
  unlist(index);
  nodes_[index].depth = depth;
  list(index);
  for (const Index child : nodes_[index].children) set_depth(child, depth + 1);
}

void PeerOrder::list(Index index) {
  const Node& node = nodes_[index];
  if (!node.lives || node.shunned || node.children.size() >= fanout_) return;
  if (open_.size() <= node.depth) open_.resize(node.depth + 1);
  open_[node.depth].emplace(node.node_id, index);
}

void PeerOrder::unlist(Index index) {
  const Node& node = nodes_[index];
  if (node.depth < open_.size()) open_[node.depth].erase({node.node_id, index});
}

// --- source rate ---

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
