// What nodes say to srun: connections of whoever has found its port, each with its bytes as they
// come.

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "image/peers/node_networks.hpp"
#include "lib/property.hpp"
#include "meeting/address.hpp"
#include "meeting/talk.hpp"

using namespace spc;
using namespace spc::fuzz;

namespace {

constexpr MeetingToken kToken{'t', 'o', 'k', 'e', 'n'};
constexpr std::size_t kMostMembers = 64;
const PeerAddress kSeenAt{.ip = Network::parse("10.0.0.9/32").address};
const std::vector<Network> kOwn{Network::parse("10.0.0.1/24"), Network::parse("fd00::1/64")};

void check_line(const Gatherings& gatherings) {
  for (const std::string& line :
       {progress_line(gatherings, "image"), statistics_line(gatherings, "image")}) {
    must(is_printable(line) && line.size() < 400, "what srun shows is a line for a terminal");
  }
  std::size_t members = 0;
  for (const auto& [image, gathering] : gatherings.all()) members += gathering.members.size();
  must(members <= kMostMembers, "there are no more members than places");
}

/// What a node is told; whatever it is, `import` looks at it once more.
void check_place(const MeetingRecord& place, const Gatherings& gatherings) {
  must(place.kind == MeetingKind::place && place.count <= kMostSources, "an answer is a place");
  const auto gathering = gatherings.all().find(place.image);
  must(gathering != gatherings.all().end() && place.key == gathering->second.key,
       "of the nodes that lack this image");
  must(place.index < gathering->second.members.size(), "that has this one among them");
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

// Pieces: whose they are and how long, in two bytes, and these bytes. An empty one ends the
// connection, and opens it anew.
FUZZ_TARGET(meeting) {
  if (const auto address = MeetingAddress::parse(text_of(data, size))) {
    const auto again = MeetingAddress::parse(address->variable());
    must(again && again->port == address->port && again->token == address->token,
         "an address is read as it is written");
  }
  Gatherings gatherings(kMostMembers);
  std::array<std::optional<MeetingTalk>, 4> talks;
  Gatherings::Seconds now{};
  const std::uint8_t* const end = data + size;
  while (end - data >= 2) {
    auto& talk = talks[data[0] % 4];
    if (!talk) talk.emplace(gatherings, kSeenAt);
    std::size_t length = std::min<std::size_t>(4U * data[1] + data[0] / 4 % 4,
                                               static_cast<std::size_t>(end - data) - 2);
    data += 2;
    bool goes_on = length > 0;
    while (goes_on && length > 0) {
      const auto room = talk->room();
      must(!room.empty(), "there is room for the next byte");
      const std::size_t some = std::min(room.size(), length);
      std::memcpy(room.data(), data, some);
      data += some;
      length -= some;
      const auto heard = talk->take(some, kToken, now);
      now += Gatherings::Seconds(1);
      if (heard.answer) check_place(*heard.answer, gatherings);
      must(!heard.kind || talk->has_greeted(), "nobody is heard without the token");
      goes_on = heard.goes_on;
    }
    data += length;
    if (!goes_on) {
      talk->end();
      talk.reset();
    }
    check_line(gatherings);
  }
  return 0;
}
