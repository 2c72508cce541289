#include "meeting/gatherings.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cstdio>

namespace spc {
namespace {

constexpr unsigned kMostQuestions =
    64;  // of one node; each costs srun the more the more nodes there are

bool is_address(const PeerAddress& address) {
  return std::any_of(address.ip.begin(), address.ip.end(),
                     [](std::uint8_t byte) { return byte != 0; });
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

/// A firewall between the nodes: two have found nobody, and nobody has got anything. Who comes now
/// need not find out.
bool is_closed(const Gatherings::Gathering& gathering) {
  return gathering.cut_off >= 2 &&
         std::none_of(gathering.members.begin(), gathering.members.end(),
                      [](const Gatherings::Member& one) { return one.from.nodes > 0; });
}

}  // namespace

Gatherings::Gathering* Gatherings::find(const Seat& seat) {
  const auto found = all_.find(seat.image);
  return found != all_.end() && seat.index < found->second.members.size() ? &found->second
                                                                          : nullptr;
}

std::optional<MeetingRecord> Gatherings::join(const MeetingRecord& question,
                                              const std::string& node, const PeerAddress& seen_at,
                                              std::optional<Seat>& seat, Seconds now) {
  if (seat) gone(*seat);
  seat.reset();
  if (members_ >= most_) return std::nullopt;
  const auto [found, is_new] =
      all_.try_emplace(question.image, Gathering{.order = PeerOrder(fanout_)});
  Gathering& gathering = found->second;
  if (is_new && ::getrandom(gathering.key.data(), gathering.key.size(), 0) !=
                    static_cast<ssize_t>(gathering.key.size())) {
    all_.erase(found);
    return std::nullopt;
  }
  ++members_;
  seat = Seat{question.image, gathering.order.join(question.node_id)};
  gathering.members.push_back({.node_id = question.node_id,
                               .node = node,
                               .at = relay_of(question, seen_at),
                               .joined = now});
  const auto place = place_of(gathering, *seat);
  if (gathering.members.back().at.port == 0)
    gathering.order.leave(seat->index);  // it takes, and gives nothing
  return place;
}

std::optional<MeetingRecord> Gatherings::more(const MeetingRecord& question, const Seat& seat) {
  Gathering* const gathering = find(seat);
  if (gathering == nullptr || question.count > question.indices.size()) return std::nullopt;
  if (++gathering->members[seat.index].questions > kMostQuestions) return std::nullopt;
  const auto because =
      question.kind == MeetingKind::slow ? PeerOrder::Because::slow : PeerOrder::Because::dead;
  gathering->order.move(seat.index, std::span(question.indices).first(question.count), because);
  return place_of(*gathering, seat);
}

bool Gatherings::told(const MeetingRecord& record, const Seat& seat, Seconds now) {
  Gathering* const gathering = find(seat);
  if (gathering == nullptr) return false;
  Member& member = gathering->members[seat.index];
  switch (record.kind) {
    case MeetingKind::progress:
      member.done = record.done;
      member.total = record.total;
      member.from = record.from;
      return true;
    case MeetingKind::done:
      member.has_all = true;
      member.from = record.from;
      member.ready = now;
      return true;
    case MeetingKind::cut_off:
      ++gathering->cut_off;
      [[fallthrough]];  // nor can others reach it, probably
    case MeetingKind::left: gathering->order.leave(seat.index); return true;
    default: return false;
  }
}

void Gatherings::gone(const Seat& seat) {
  Gathering* const gathering = find(seat);
  if (gathering == nullptr || gathering->members[seat.index].has_all) return;
  gathering->order.leave(seat.index);
  gathering->members[seat.index].died = true;  // nobody waits for it any more
}

MeetingRecord Gatherings::place_of(const Gathering& gathering, const Seat& seat) {
  MeetingRecord place;
  place.kind = MeetingKind::place;
  place.image = seat.image;
  place.index = seat.index;
  place.node_id = gathering.members[seat.index].node_id;
  place.key = gathering.key;
  if (is_closed(gathering)) return place;
  for (const std::uint32_t index : gathering.order.sources_of(seat.index)) {
    if (place.count == place.sources.size()) break;
    place.sources[place.count++] = {.index = index, .at = gathering.members[index].at};
  }
  return place;
}

namespace {

struct Sum {
  std::size_t nodes = 0, failed = 0;
  std::uint64_t size = 0;  ///< of what most of them lack
  BytesFrom from;
  const Gatherings::Member* slowest = nullptr;
  Gatherings::Seconds begin = Gatherings::Seconds::max();
  std::vector<Gatherings::Seconds> ready;
};

double part_of(const Gatherings::Member& one) {
  return static_cast<double>(one.done) / static_cast<double>(one.total);
}

Sum sum_of(const Gatherings& gatherings) {
  Sum sum;
  for (const auto& [image, gathering] : gatherings.all()) {
    for (const auto& member : gathering.members) {
      sum.failed += member.died ? 1 : 0;
      sum.from += member.from;
      sum.size = std::max(sum.size, member.total);
      if (member.total == 0 || member.died) continue;
      ++sum.nodes;
      sum.begin = std::min(sum.begin, member.joined);
      if (member.has_all) {
        sum.ready.push_back(member.ready);
      } else if (sum.slowest == nullptr || part_of(member) < part_of(*sum.slowest)) {
        sum.slowest = &member;
      }
    }
  }
  std::sort(sum.ready.begin(), sum.ready.end());
  return sum;
}

std::string decimal(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string times(std::uint64_t bytes, std::uint64_t size, int digits) {
  return decimal(size == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(size), digits) +
         " x";
}

std::string in_json(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  }
  return escaped;
}

std::string counted(std::size_t count) {
  return std::to_string(count) + (count == 1 ? " node" : " nodes");
}

}  // namespace

std::string progress_line(const Gatherings& gatherings, const std::string& image) {
  const Sum sum = sum_of(gatherings);
  if (sum.slowest == nullptr) return {};
  const auto percent = static_cast<unsigned>(std::min(part_of(*sum.slowest), 1.0) * 100);
  return "pulling " + (image.empty() ? "" : image + " ") + "on " + counted(sum.nodes) +
         ", slowest " + sum.slowest->node + " at " + std::to_string(percent) + " % of " +
         std::to_string((sum.slowest->total + 500'000) / 1'000'000) + " MB, registry " +
         times(sum.from.registry, sum.size, 1);
}

std::string statistics_line(const Gatherings& gatherings, const std::string& image) {
  const Sum sum = sum_of(gatherings);
  if (sum.nodes + sum.failed == 0) return {};
  std::string line = (image.empty() ? "the image" : image) + " came to " +
                     std::to_string(sum.ready.size()) + " of " + counted(sum.nodes + sum.failed);
  const auto after = [&](std::size_t index) {
    return decimal((sum.ready[index] - sum.begin).count(), 1);
  };
  if (!sum.ready.empty()) {
    line += " in " + after(sum.ready.size() - 1) + " s (first " + after(0) + ", median " +
            after(sum.ready.size() / 2) + ")";
  }
  line += ": registry " + times(sum.from.registry, sum.size, 2) + ", nodes " +
          times(sum.from.nodes, sum.size, 2) + ", shared store " +
          times(sum.from.shared, sum.size, 2);
  if (sum.from.mirrors > 0) line += ", mirrors " + times(sum.from.mirrors, sum.size, 2);
  return sum.failed == 0 ? line : line + ", " + counted(sum.failed) + " failed";
}

std::string statistics_json(const Gatherings& gatherings, const std::string& image) {
  const Sum sum = sum_of(gatherings);
  if (sum.nodes + sum.failed == 0) return {};
  std::string json = "{\"event\": \"step_pull\", \"image\": \"" + in_json(image) + "\"";
  const auto add = [&](const char* key, const std::string& value) {
    json += std::string(", \"") + key + "\": " + value;
  };
  const auto add_time = [&](const char* key, double part) {  // of the nodes that are ready
    const auto index =
        sum.ready.empty()
            ? 0
            : static_cast<std::size_t>(part * static_cast<double>(sum.ready.size() - 1));
    add(key, sum.ready.empty() ? "null" : decimal((sum.ready[index] - sum.begin).count(), 3));
  };
  add("nodes", std::to_string(sum.nodes + sum.failed));
  add("ready", std::to_string(sum.ready.size()));
  add("failed", std::to_string(sum.failed));
  add("pulled_bytes", std::to_string(sum.size));
  add("registry_bytes", std::to_string(sum.from.registry));
  add("mirror_bytes", std::to_string(sum.from.mirrors));
  add("node_bytes", std::to_string(sum.from.nodes));
  add("shared_bytes", std::to_string(sum.from.shared));
  add_time("first_s", 0);
  add_time("median_s", 0.5);
  add_time("p99_s", 0.99);
  add_time("last_s", 1);
  return json + "}";
}

}  // namespace spc
