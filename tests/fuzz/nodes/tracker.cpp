// Messages of nodes to srun: connections of any peer that found its port, each with its bytes in
// order.

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "lib/property.hpp"
#include "share/node_networks.hpp"
#include "share/tracker.hpp"

using namespace spc;
using namespace spc::fuzz;

namespace {

constexpr TrackerToken kToken{'t', 'o', 'k', 'e', 'n'};
constexpr std::size_t kMostPeers = 64;
const PeerAddress kSeenAt{.ip = Network::parse("10.0.0.9/32").address};
const std::vector<Network> kOwn{Network::parse("10.0.0.1/24"), Network::parse("fd00::1/64")};

void check_line(const PeerSessions& sessions) {
  for (const std::string& line :
       {progress_line(sessions, "image"), statistics_line(sessions, "image")}) {
    must(is_printable(line) && line.size() < 400, "what srun shows is a line for a terminal");
  }
  std::size_t peers = 0;
  for (const auto& [image, session] : sessions.all()) peers += session.peers.size();
  must(peers <= kMostPeers, "there are no more peers than places");
}

/// Checks a peer's record as sent to a node. `import` validates it again.
void check_place(const TrackerRecord& place, const PeerSessions& sessions) {
  must(place.kind == TrackerKind::place && place.count <= kMostSources, "an answer is a place");
  const auto session = sessions.all().find(place.image);
  must(session != sessions.all().end() && place.key == session->second.key,
       "of the nodes that lack this image");
  must(place.index < session->second.peers.size(), "that has this one among them");
  for (std::uint32_t i = 0; i < place.count; ++i) {
    const PeerSource& source = place.sources[i];
    must(source.index < place.index, "nobody waits for himself");
    must(source.at.port != 0, "a source listens");
    const bool may = NodeNetworks{kOwn}.may_ask(source.at, {});
    must(!may || std::any_of(kOwn.begin(), kOwn.end(),
                             [&](const Network& one) { return one.has(source.at.ip); }),
         "only what is near is asked");
    must(!may || (source.at.port >= 1024 && url_of(source.at).starts_with("http://")),
         "and no service of root's");
  }
  for (const std::uint32_t index : place.indices)
    must(index == 0, "nothing of one node's question is another one's answer");
}

}  // namespace

// Input pieces: connection and length in two bytes, then these bytes. An empty piece closes the
// connection and opens a new one.
FUZZ_TARGET(tracker) {
  if (const auto address = TrackerAddress::parse(text_of(data, size))) {
    const auto again = TrackerAddress::parse(address->variable());
    must(again && again->port == address->port && again->token == address->token,
         "an address is read as it is written");
  }
  PeerSessions sessions(kMostPeers);
  std::array<std::optional<TrackerProtocol>, 4> connections;
  PeerSessions::Seconds now{};
  const std::uint8_t* const end = data + size;
  while (end - data >= 2) {
    auto& protocol = connections[data[0] % 4];
    if (!protocol) protocol.emplace(sessions, kSeenAt);
    std::size_t length = std::min<std::size_t>(4U * data[1] + data[0] / 4 % 4,
                                               static_cast<std::size_t>(end - data) - 2);
    data += 2;
    bool stays_open = length > 0;
    while (stays_open && length > 0) {
      const auto room = protocol->room();
      must(!room.empty(), "there is room for the next byte");
      const std::size_t some = std::min(room.size(), length);
      std::memcpy(room.data(), data, some);
      data += some;
      length -= some;
      const auto outcome = protocol->take(some, kToken, now);
      now += PeerSessions::Seconds(1);
      if (outcome.answer) check_place(*outcome.answer, sessions);
      must(!outcome.kind || protocol->has_greeted(), "no record is accepted without the token");
      stays_open = outcome.stays_open;
    }
    data += length;
    if (!stays_open) {
      protocol->end();
      protocol.reset();
    }
    check_line(sessions);
  }
  return 0;
}
