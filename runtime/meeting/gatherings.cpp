#include "meeting/gatherings.hpp"

#include <sys/random.h>

#include <algorithm>

namespace spc {
namespace {

constexpr unsigned kMostQuestions = 64;  // of one node; each costs srun the more the more nodes there are

bool is_address(const PeerAddress& address) {
  return std::any_of(address.ip.begin(), address.ip.end(), [](std::uint8_t byte) { return byte != 0; });
}

/// The first where a relay listens; without an address of its own: at the one it came from.
PeerAddress relay_of(const MeetingRecord& join, const PeerAddress& seen_at) {
  for (PeerAddress address : join.addresses) {
    if (address.port == 0) continue;
    if (!is_address(address)) address.ip = seen_at.ip;
    return address;
  }
  return {};
}

}  // namespace

Gatherings::Gathering* Gatherings::find(const Seat& seat) {
  const auto found = all_.find(seat.image);
  return found != all_.end() && seat.index < found->second.members.size() ? &found->second : nullptr;
}

std::optional<MeetingRecord> Gatherings::join(const MeetingRecord& question, const std::string& node, const PeerAddress& seen_at,
                                              std::optional<Seat>& seat) {
  if (seat) gone(*seat);
  seat.reset();
  if (members_ >= most_) return std::nullopt;
  const auto [found, is_new] = all_.try_emplace(question.image);
  Gathering& gathering = found->second;
  if (is_new && ::getrandom(gathering.key.data(), gathering.key.size(), 0) != static_cast<ssize_t>(gathering.key.size())) {
    all_.erase(found);
    return std::nullopt;
  }
  ++members_;
  seat = Seat{question.image, gathering.order.join(question.node_id)};
  gathering.members.push_back({.node_id = question.node_id, .node = node, .at = relay_of(question, seen_at)});
  const auto place = place_of(gathering, *seat);
  if (gathering.members.back().at.port == 0) gathering.order.leave(seat->index);  // it takes, and gives nothing
  return place;
}

std::optional<MeetingRecord> Gatherings::more(const MeetingRecord& question, const Seat& seat) {
  Gathering* const gathering = find(seat);
  if (gathering == nullptr || question.count > question.indices.size()) return std::nullopt;
  if (++gathering->members[seat.index].questions > kMostQuestions) return std::nullopt;
  const auto because = question.kind == MeetingKind::slow ? PeerOrder::Because::slow : PeerOrder::Because::dead;
  gathering->order.move(seat.index, std::span(question.indices).first(question.count), because);
  return place_of(*gathering, seat);
}

bool Gatherings::told(const MeetingRecord& record, const Seat& seat) {
  Gathering* const gathering = find(seat);
  if (gathering == nullptr) return false;
  Member& member = gathering->members[seat.index];
  switch (record.kind) {
    case MeetingKind::progress:
      member.done = record.done;
      member.total = record.total;
      return true;
    case MeetingKind::done: member.has_all = true; return true;
    case MeetingKind::left: gathering->order.leave(seat.index); return true;
    default: return false;
  }
}

void Gatherings::gone(const Seat& seat) {
  Gathering* const gathering = find(seat);
  if (gathering == nullptr || gathering->members[seat.index].has_all) return;
  gathering->order.leave(seat.index);
  gathering->members[seat.index].total = 0;  // nobody waits for it any more
}

MeetingRecord Gatherings::place_of(const Gathering& gathering, const Seat& seat) {
  MeetingRecord place;
  place.kind = MeetingKind::place;
  place.image = seat.image;
  place.index = seat.index;
  place.node_id = gathering.members[seat.index].node_id;
  place.key = gathering.key;
  for (const std::uint32_t index : gathering.order.sources_of(seat.index)) {
    if (place.count == place.sources.size()) break;
    place.sources[place.count++] = {.index = index, .at = gathering.members[index].at};
  }
  return place;
}

std::string progress_line(const Gatherings& gatherings) {
  std::size_t nodes = 0;
  const Gatherings::Member* slowest = nullptr;
  const auto part = [](const Gatherings::Member& one) { return static_cast<double>(one.done) / static_cast<double>(one.total); };
  for (const auto& [image, gathering] : gatherings.all()) {
    for (const auto& member : gathering.members) {
      if (member.total == 0) continue;
      ++nodes;
      if (!member.has_all && (slowest == nullptr || part(member) < part(*slowest))) slowest = &member;
    }
  }
  if (slowest == nullptr) return {};
  const auto percent = static_cast<unsigned>(std::min(part(*slowest), 1.0) * 100);
  return "pulling on " + std::to_string(nodes) + (nodes == 1 ? " node" : " nodes") + ", slowest " + slowest->node + " at " +
         std::to_string(percent) + " % of " + std::to_string((slowest->total + 500'000) / 1'000'000) + " MB";
}

}  // namespace spc
