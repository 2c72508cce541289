#include "image/peers/peers.hpp"

#include <algorithm>
#include <list>
#include <sstream>
#include <tuple>

#include "base/format.hpp"
#include "base/sha256.hpp"

namespace spc {
namespace {

constexpr int kMostQuestions = 3;  // for more
constexpr int kMostWrong = 2;
constexpr std::chrono::milliseconds kPaceLook{250}, kPaceStale{1000}, kReachable{1800};
constexpr std::chrono::milliseconds kFirstLook{1000},
    kLongestLook{4000};  // at nodes that were left
constexpr std::size_t kMostAtOnce = 4;

std::string hex_of(const PeerKey& key) {
  std::string text;
  for (const std::uint8_t byte : key) text += formatted("{:02x}", byte);
  return text;
}

RegistryEndpoint endpoint_at(const PeerAddress& at, const PeerKey& key) {
  RegistryEndpoint endpoint;
  endpoint.base_url = url_of(at);
  endpoint.name = endpoint.base_url.substr(7);
  endpoint.repository = "peer";
  endpoint.is_peer = true;
  endpoint.authorization = SecretText("Bearer " + hex_of(key));
  return endpoint;
}

}  // namespace

Peers::Peers(PeersContext context) : context_(std::move(context)), networks_(NodeNetworks::find()) {
  for (const std::string& text : context_.config.networks) wanted_.push_back(Network::parse(text));
}

/// Who has the same digest lacks the same bytes: an index stands for other ones on another
/// platform. Who has the bytes is of no use to those that lack them, so those who lack rights meet
/// by themselves.
void Peers::meet(const Digest& top, Lack lack) {
  if (std::exchange(has_met_, true)) return;
  const auto own = networks_.in(wanted_);
  if (own.empty()) return;
  // Nodes are told this address only.
  auto listener = Listener::open(PortRange::parse(context_.config.ports).value_or(PortRange()),
                                 own.front().address);
  if (!listener) return;
  order_ = Sha256::of(top.str() + " " +
                      (lack == Lack::bytes ? context_.platform.str() : "who may have it"));
  MeetingRecord join{.kind = MeetingKind::join, .image = order_};
  join.addresses[0] = {.ip = own.front().address, .port = listener->port};
  const auto place = context_.meet(join);
  if (!place || place->kind != MeetingKind::place) {
    const std::string why = place ? "srun gives no place" : place.error().message();
    context_.log.write(
        LogLevel::info,
        formatted("the nodes of this step do not take the image from each other: {}", why));
    return;
  }
  is_alone_ = false;
  key_ = place->key;
  take_place(*place);
  start_relay(*std::move(listener), place->key);
  find_reachable();
}

/// All at once, so that what a firewall swallows is waited for once; until one answers. Who does
/// not is as dead as who falls silent later.
void Peers::find_reachable() {
  std::list<std::pair<Source*, AliveQuestion>> asked;
  for (Source& source : sources_) {
    if (asked.size() < kMostAtOnce)
      asked.emplace_back(std::piecewise_construct, std::tuple(&source),
                         std::tie(context_.http, source.session.endpoints.front()));
  }
  const auto is = [&](AliveQuestion::Answer answer) {
    return [answer](const auto& one) { return one.second.answer() == answer; };
  };
  const auto until = Clock::now() + kReachable;
  const auto someone = [&] {
    return std::any_of(asked.begin(), asked.end(), is(AliveQuestion::Answer::alive));
  };
  while (!someone() && Clock::now() < until &&
         std::any_of(asked.begin(), asked.end(), is(AliveQuestion::Answer::none))) {
    if (!context_.http.wait(std::chrono::milliseconds(50))) return;
  }
  const bool is_one_there = someone();
  for (auto& [source, question] : asked) {
    const bool failed = question.answer() == AliveQuestion::Answer::failed;
    if (failed || !is_one_there)
      leave(*source,
            Error(ErrorKind::unavailable, failed ? "cannot be reached" : "does not answer"));
  }
  if (are_unreachable()) tell({}, MeetingKind::cut_off);
}

void Peers::take_place(const MeetingRecord& place) {
  index_ = place.index;
  auto first = sources_.begin();  // those of the new place go before it, in their order
  for (std::uint32_t i = 0; i < std::min(place.count, kMostSources); ++i) {
    const PeerSource& given = place.sources[i];
    // Only of those that came before: so nobody waits for himself, whatever srun says.
    if (given.index >= index_ || !networks_.may_ask(given.at, wanted_)) continue;
    const auto known = std::find_if(sources_.begin(), sources_.end(),
                                    [&](const Source& one) { return one.index == given.index; });
    if (known != sources_.end()) {
      if (known == first) {
        ++first;
      } else {
        sources_.splice(first, sources_, known);
      }
      continue;
    }
    RegistryEndpoint endpoint = endpoint_at(given.at, key_);
    const std::string name = endpoint.name;
    sources_.insert(first, {.index = given.index,
                            .session = {.http = context_.http,
                                        .log = context_.log,
                                        .registry = name,
                                        .repository = "peer",
                                        .endpoints = {std::move(endpoint)},
                                        .login_servers = {},
                                        .ask_user = {}}});
  }
}

void Peers::start_relay(Listener listener, const PeerKey& key) {
  auto file = context_.new_file();
  auto spool = file && context_.agent >= 0
                   ? Spool::start({.listener = std::move(listener.socket),
                                   .file = *std::move(file),
                                   .agent = context_.agent,
                                   .key = key,
                                   .fanout = context_.config.fanout,
                                   .program = context_.relay})
                   : Result<Spool>(Error(ErrorKind::unavailable, "start the relay"));
  if (spool) {
    spool_.emplace(*std::move(spool));
  } else {
    tell({}, MeetingKind::left);
  }
}

Peers::Source* Peers::next(const std::set<std::uint32_t>& tried) {
  if (are_unreachable()) return nullptr;
  Source* slow = nullptr;
  for (Source& source : sources_) {
    if (source.is_dead || source.is_barred || tried.contains(source.index)) continue;
    if (!source.is_slow) return &source;
    if (slow == nullptr) slow = &source;
  }
  return slow;
}

bool Peers::ask_for_more(const std::set<std::uint32_t>& useless) {
  return !are_unreachable() && ask_srun_for_others(useless);
}

bool Peers::ask_srun_for_others(const std::set<std::uint32_t>& useless) {
  if (is_alone_ || asked_for_more_ == kMostQuestions) return false;
  ++asked_for_more_;
  MeetingRecord more{.kind = MeetingKind::more, .index = index_, .image = order_};
  for (const Source& source : sources_) {
    if (more.count == kMostSources) break;
    if (source.is_dead || source.is_barred || useless.contains(source.index))
      more.indices[more.count++] = source.index;
  }
  const auto place = context_.meet(more);
  if (!place || place->kind != MeetingKind::place) {
    is_alone_ = true;
    return false;
  }
  const std::size_t known = sources_.size();
  take_place(*place);
  return sources_.size() > known;
}

void Peers::note_bytes(std::uint64_t bytes, CameFrom from) {
  from_.add(from, bytes);
  has_helped_ = has_helped_ || from == CameFrom::node;
  note_here(bytes);
}

void Peers::note_here(std::uint64_t bytes) {
  here_ += bytes;
  if (spool_) spool_->tell(here_, leader_, pace_);
}

void Peers::watch_pace(Source& source, bool takes_nothing) {
  const auto now = Clock::now();
  if (watched_ != &source) {
    if (watched_ != nullptr && now - watched_at_ < kPaceStale)
      return;  // another layer comes from there
    watched_ = &source;
    alive_.reset();
    source_pace_.restart();
  }
  watched_at_ = now;
  if (takes_nothing) source_pace_.restart();
  if (alive_ && alive_->answer() == AliveQuestion::Answer::alive) {
    std::uint64_t there = 0, leader = 0, pace = 0;
    std::istringstream(alive_->said()) >> there >> leader >> pace;
    alive_.reset();
    leader_ = std::max(leader_, leader);
    pace_ = std::max(pace_, pace);
    const SourcePace::Seen seen{
        .now = std::chrono::duration<double>(now.time_since_epoch()).count(),
        .here = static_cast<double>(here_),
        .there = static_cast<double>(there),
        .leader = static_cast<double>(leader_),
        .pace = static_cast<double>(pace_)};
    if (source_pace_.is_slow(seen)) look_for_faster(source);
  } else if (alive_ && alive_->answer() == AliveQuestion::Answer::failed) {
    alive_.reset();
  }
  if (alive_ || now - asked_ < kPaceLook) return;
  asked_ = now;
  alive_.emplace(context_.http, source.session.endpoints.front());
}

/// Not from a node that is slow, too; srun knows who is below it.
void Peers::look_for_faster(Source& source) {
  if (is_alone_) return;
  MeetingRecord slow{.kind = MeetingKind::slow, .index = index_, .image = order_};
  slow.indices[slow.count++] = source.index;
  for (const Source& other : sources_) {
    if (slow.count < kMostSources && (other.is_slow || other.is_dead || other.is_barred))
      slow.indices[slow.count++] = other.index;
  }
  const auto place = context_.meet(slow);
  if (!place || place->kind != MeetingKind::place) {
    is_alone_ = true;
    return;
  }
  if (place->count == 0 || place->sources[0].index == source.index) return;
  take_place(*place);
  source.is_slow = true;
  context_.log.write(LogLevel::info,
                     formatted("node {} of the step, {}: is slow: going on elsewhere", source.index,
                               in_quotes(source.session.registry)));
}

void Peers::leave(Source& source, const Error& why) {
  if (std::exchange(source.is_dead, true)) return;
  ++unreachable_;
  context_.log.write(LogLevel::info,
                     formatted("node {} of the step, {}: {}: going on elsewhere", source.index,
                               in_quotes(source.session.registry), why.message()));
}

/// Each time after a longer pause. A node that has less than this one would only be waited for.
/// Where srun has named nobody, since others had reached nobody, it is asked once more.
void Peers::look_again() {
  if (index_ == 0) return;
  for (auto& [source, question] : again_) {
    std::uint64_t there = 0;
    if (question.answer() != AliveQuestion::Answer::alive ||
        !(std::istringstream(question.said()) >> there) || there < here_)
      continue;
    if (!std::exchange(source->is_dead, false)) continue;
    ++came_back_;
    unreachable_ = 0;
    context_.log.write(LogLevel::info,
                       formatted("node {} of the step, {}: answers again: going on there",
                                 source->index, in_quotes(source->session.registry)));
  }
  again_.remove_if(
      [](const auto& one) { return one.second.answer() != AliveQuestion::Answer::none; });
  const auto now = Clock::now();
  if (look_pause_ == look_pause_.zero()) next_look_ = now + (look_pause_ = kFirstLook);
  if (now < next_look_) return;
  next_look_ = now + (look_pause_ = std::min(2 * look_pause_, kLongestLook));
  again_.clear();
  if (sources_.empty() && ask_srun_for_others({})) ++came_back_;
  for (Source& source : sources_) {
    if (source.is_dead && !source.is_barred && again_.size() < kMostAtOnce)
      again_.emplace_back(std::piecewise_construct, std::tuple(&source),
                          std::tie(context_.http, source.session.endpoints.front()));
  }
}

void Peers::bar(const std::set<std::uint32_t>& sources, const Digest& blob) {
  ++wrong_[blob];
  for (Source& source : sources_) {
    if (!sources.contains(source.index) || std::exchange(source.is_barred, true)) continue;
    context_.log.write(
        LogLevel::warning,
        formatted("node {} of the step, {}: sent wrong bytes for {}: it is not asked again",
                  source.index, in_quotes(source.session.registry), in_quotes(blob.str())));
  }
}

bool Peers::were_wrong_twice(const Digest& blob) const {
  const auto found = wrong_.find(blob);
  return found != wrong_.end() && found->second >= kMostWrong;
}

void Peers::put_document(const Digest& digest, std::string_view bytes) {
  const auto slot = slot_of(digest, bytes.size());
  if (!slot) return;
  write(*slot, 0, std::as_bytes(std::span(bytes)));
  complete(*slot);
}

void Peers::will_fetch(const std::vector<std::pair<Digest, std::uint64_t>>& blobs,
                       std::uint64_t here) {
  note_here(here);
  for (const auto& [digest, size] : blobs) slot_of(digest, size);
  if (spool_) spool_->close();
}

std::optional<Spool::Slot> Peers::slot_of(const Digest& blob, std::uint64_t size) {
  return spool_ ? spool_->add(blob, size) : std::nullopt;
}

bool Peers::write(Spool::Slot slot, std::uint64_t offset, std::span<const std::byte> bytes) {
  if (spool_ && !spool_->write(slot, offset, bytes)) stop_serving();
  return spool_.has_value();
}

std::size_t Peers::read(Spool::Slot slot, std::uint64_t offset, std::span<std::byte> into) const {
  return spool_ ? spool_->read(slot, offset, into) : 0;
}

void Peers::complete(Spool::Slot slot) {
  if (spool_) spool_->complete(slot);
}

void Peers::drop(Spool::Slot slot) {
  if (spool_) spool_->drop(slot);
}

void Peers::will_not_fetch(const Digest& blob, std::uint64_t size) {
  note_here(size);
  if (const auto slot = slot_of(blob, size)) drop(*slot);
}

void Peers::stop_serving() {
  if (!spool_) return;
  spool_->give_up();
  spool_.reset();
  tell({}, MeetingKind::left);
}

void Peers::tell_progress(std::uint64_t done, std::uint64_t total) {
  const auto now = Clock::now();
  if (is_alone_ || now < next_word_) return;
  next_word_ = now + std::max(std::chrono::milliseconds(500),
                              std::chrono::milliseconds(context_.nodes) * 1000 / 2048);
  if (spool_ && !spool_->is_alive()) stop_serving();
  tell({.done = done, .total = total}, MeetingKind::progress);
}

void Peers::tell_done() { tell({}, spool_ ? MeetingKind::done : MeetingKind::left); }

void Peers::tell(MeetingRecord record, MeetingKind kind) {
  if (is_alone_) return;
  record.kind = kind;
  record.index = index_;
  record.image = order_;
  record.from = from_;
  // srun shows less then, and whoever is sent here for nothing goes on.
  [[maybe_unused]] const auto told = context_.tell(record);
}

}  // namespace spc
