#include "meeting/talk.hpp"

#include <algorithm>
#include <cstring>

namespace spc {
namespace {

static_assert(sizeof(MeetingHello) <= sizeof(MeetingRecord));

/// Whether it is the name of a node, and nothing that a terminal would obey.
bool is_plain_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

}  // namespace

std::span<char> MeetingTalk::room() {
  return std::span(bytes_).subspan(received_, wanted() - received_);
}

MeetingTalk::Heard MeetingTalk::take(std::size_t bytes, const MeetingToken& token,
                                     Gatherings::Seconds now) {
  received_ += bytes;
  if (received_ < wanted()) return {};
  received_ = 0;
  return has_greeted_ ? hear(now) : Heard{.goes_on = greet(token)};
}

bool MeetingTalk::greet(const MeetingToken& token) {
  MeetingHello hello;
  std::memcpy(&hello, bytes_.data(), sizeof hello);
  unsigned differs = 0;  // looks at every byte, however many are right
  for (std::size_t byte = 0; byte < token.size(); ++byte)
    differs |= hello.token[byte] ^ token[byte];
  if (differs != 0 || hello.magic != MeetingHello().magic) return false;
  node_.assign(hello.node.begin(), std::find(hello.node.begin(), hello.node.end(), '\0'));
  has_greeted_ = is_plain_name(node_);
  return has_greeted_;
}

MeetingTalk::Heard MeetingTalk::hear(Gatherings::Seconds now) {
  MeetingRecord question;
  std::memcpy(&question, bytes_.data(), sizeof question);
  Heard heard{.kind = question.kind};
  switch (question.kind) {
    case MeetingKind::join:
      heard.answer = gatherings_.join(question, node_, seen_at_, seat_, now);
      break;
    case MeetingKind::more:
    case MeetingKind::slow:
      if (seat_) heard.answer = gatherings_.more(question, *seat_);
      break;
    default: heard.goes_on = seat_ && gatherings_.told(question, *seat_, now); return heard;
  }
  heard.goes_on = heard.answer.has_value();
  return heard;
}

}  // namespace spc
