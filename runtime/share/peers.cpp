// The node's side of peer-to-peer transfer: joining a group, choosing sources, and streaming blobs
// from them.

#include "share/peers.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <list>
#include <memory>
#include <sstream>
#include <tuple>
#include <utility>

#include "base/format.hpp"
#include "base/hash.hpp"

namespace spc {

// --- liveness query ---

AliveQuestion::AliveQuestion(HttpClient& http, const RegistryEndpoint& node) : http_(http) {
  HttpRequest request;
  request.url = node.base_url + "/alive";
  request.authorization = node.authorization.text();
  request.is_peer = true;
  if (!http_.start(request, *this)) answer_ = Answer::failed;
}

HttpHandler::Take AliveQuestion::body(const HttpHead& /*head*/, std::span<const std::byte> bytes) {
  if (said_.size() + bytes.size() > 64) return Take::stop;
  said_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return Take::taken;
}

void AliveQuestion::ended(const HttpHead& head, HttpEnd end) {
  answer_ =
      end.kind == HttpEnd::Kind::complete && head.status == 200 ? Answer::alive : Answer::failed;
}

// --- public statement ---

namespace {

constexpr int kSeconds = 60;
constexpr std::string_view kMagic = "spank-container: public ";

/// libmunge, which belongs to Slurm's auth/munge. Loaded on demand, because clusters with
/// auth/slurm do not have it.
class Munge {
 public:
  static const Munge* find() {
    static const Munge munge;
    return munge.is_whole() ? &munge : nullptr;
  }
  [[nodiscard]] Result<std::string> encode(const std::string& text) const {
    const auto context = new_context();
    char* made = nullptr;
    if (!context || set_(context.get(), kTtl, kSeconds) != 0 ||
        set_(context.get(), kUidRestriction, ::geteuid()) != 0)
      return Error(ErrorKind::unavailable, "munge: cannot be set up");
    const int failed = encode_(&made, context.get(), text.data(), static_cast<int>(text.size()));
    const std::unique_ptr<char, void (*)(void*)> freed(made, &std::free);
    if (failed != 0 || made == nullptr)
      return Error(ErrorKind::unavailable, std::string("munge: ") + name_(failed));
    return std::string(made);
  }
  /// Returns the signed text if this process's user has signed it. A credential that was decoded on
  /// this node before, for another step, is accepted.
  [[nodiscard]] Result<std::string> decode(const std::string& credential) const {
    void* text = nullptr;
    int size = 0;
    uid_t uid = 0;
    gid_t gid = 0;
    const int failed = decode_(credential.c_str(), nullptr, &text, &size, &uid, &gid);
    const std::unique_ptr<void, void (*)(void*)> freed(text, &std::free);
    if ((failed != 0 && failed != kReplayed) || text == nullptr || size <= 0)
      return Error(ErrorKind::refused, std::string("munge: ") + name_(failed));
    if (uid != ::geteuid())
      return Error(ErrorKind::refused, "signed by user " + std::to_string(uid));
    return std::string(static_cast<const char*>(text), static_cast<std::size_t>(size));
  }

 private:
  // <munge.h>; the numbers are those of libmunge.so.2
  static constexpr int kTtl = 4, kUidRestriction = 9, kReplayed = 17;
  using Context = std::unique_ptr<void, void (*)(void*)>;

  Munge() : library_(::dlopen("libmunge.so.2", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    load(create_, "munge_ctx_create");
    load(destroy_, "munge_ctx_destroy");
    load(set_, "munge_ctx_set");
    load(encode_, "munge_encode");
    load(decode_, "munge_decode");
    load(name_, "munge_strerror");
  }
  template <typename Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
  }
  [[nodiscard]] bool is_whole() const {
    return create_ && destroy_ && set_ && encode_ && decode_ && name_;
  }
  [[nodiscard]] Context new_context() const { return {create_(), destroy_}; }

  void* library_;  // never closed
  void* (*create_)() = nullptr;
  void (*destroy_)(void*) = nullptr;
  int (*set_)(void*, int, ...) = nullptr;
  int (*encode_)(char**, void*, const void*, int) = nullptr;
  int (*decode_)(const char*, void*, void**, int*, uid_t*, gid_t*) = nullptr;
  const char* (*name_)(int) = nullptr;
};

}  // namespace

Digest PublicStatement::name() const {
  return Sha256::of(std::string(kMagic) + place + "@" + top.str());
}

std::string PublicStatement::text() const {
  return std::string(kMagic) + place + "@" + top.str() + " " + std::to_string(asked_at);
}

Result<std::string> sign(const PublicStatement& statement) {
  const Munge* const munge = Munge::find();
  if (munge == nullptr) return Error(ErrorKind::unavailable, "libmunge.so.2: not here");
  return munge->encode(statement.text());
}

Result<PublicStatement> read_statement(const std::string& place, const Digest& top,
                                       const std::string& is_signed) {
  const Munge* const munge = Munge::find();
  if (munge == nullptr) return Error(ErrorKind::unavailable, "libmunge.so.2: not here");
  const std::string said = SPC_TRY(munge->decode(is_signed));
  PublicStatement statement{.place = place, .top = top};
  const std::size_t space = std::min(said.rfind(' '), said.size());
  const char* const end = said.data() + said.size();
  const auto number =
      std::from_chars(said.data() + std::min(space + 1, said.size()), end, statement.asked_at);
  if (number.ptr != end || statement.text() != said)
    return Error(ErrorKind::refused, "is about something else");
  statement.asked_at = std::min<std::int64_t>(statement.asked_at, std::time(nullptr));
  return statement;
}

// --- peer stream ---

namespace {

using std::chrono::milliseconds;

// With these limits a dead node is detected within two seconds, and a slow node is not taken for
// dead. If there is another source, the node is left earlier (kDoubt).
constexpr milliseconds kSilence{250}, kDoubt{200}, kAnswer{500};
constexpr int kMostMisses = 3;
constexpr std::size_t kPiece = std::size_t{256} << 10;
constexpr int kMostReturns = 3;
// per turn; then the other layers get a turn
constexpr int kPiecesATurn = 32;
// Limit for a node that answers but gets no byte of any blob: its own source is slow, or its user's
// registry stalls on purpose.
constexpr std::chrono::seconds kPatience{60};

}  // namespace

PeerStream::PeerStream(Peers& peers, PeerBlob blob, FetchSink& sink)
    : peers_(peers), blob_(std::move(blob)), sink_(sink) {
  if (blob_.size) slot_ = peers_.slot_of(blob_.digest, *blob_.size);
}

void PeerStream::start() { go_on(); }

/// Switches to the next node or, if none is left, to the other source.
void PeerStream::go_on() {
  fetch_.reset();
  alive_.reset();
  source_ = nullptr;
  if (!peers_.were_wrong_twice(blob_.digest)) {
    Peers::Source* next = peers_.next(tried_);
    // A source in doubt is better than the registry: stay until the node is known to be dead.
    if (next == nullptr && !doubted_.empty()) {
      for (const std::uint32_t source : std::exchange(doubted_, {})) tried_.erase(source);
      next = peers_.next(tried_);
    }
    // A full node is better than a slow one.
    if ((next == nullptr || next->is_slow) && !full_.empty()) {
      for (const std::uint32_t source : std::exchange(full_, {}))
        tried_.erase(source), useless_.erase(source);
      insists_ = true;
      next = peers_.next(tried_);
    }
    // A node that only lacks the blob has the layer already, and other nodes may have it as well.
    // So ask srun for others only after other failures.
    if (next == nullptr && !useless_.empty() && peers_.ask_for_more(useless_))
      next = peers_.next(tried_);
    if (next != nullptr) {
      is_second_try_ = false;
      return fetch_from(*next);
    }
  }
  if (!blob_.otherwise) {
    failed_ = Error(ErrorKind::not_found, "no node has it");
    is_done_ = true;
    return;
  }
  go_elsewhere();
}

void PeerStream::go_elsewhere() {
  peers_.note_no_source();
  came_back_ = peers_.came_back();
  skip_ = blob_.otherwise_at_begin ? came_ : 0;
  other_ = blob_.otherwise(*this, came_);
  other_->start();
}

/// Returns from the registry or a mirror to a node that answers again, at the current byte. Does
/// not stop a stream from the shared store, which also writes to the store.
bool PeerStream::go_back() {
  if (blob_.otherwise_at_begin || is_paused_ || returns_ == kMostReturns || other_->finished())
    return false;
  peers_.look_again();
  if (came_back_ == peers_.came_back()) return false;
  came_back_ = peers_.came_back();
  for (const std::uint32_t source : std::exchange(useless_, {})) tried_.erase(source);
  Peers::Source* const next = peers_.next(tried_);
  if (next == nullptr) return false;
  ++returns_;
  other_.reset();
  is_second_try_ = false;
  fetch_from(*next);
  return true;
}

void PeerStream::fetch_from(Peers::Source& source) {
  source_ = &source;
  tried_.insert(source.index);
  began_at_ = came_;
  last_byte_ = last_growth_ = Clock::now();
  misses_ = 0;
  said_.clear();
  FetchSink& here = *this;
  fetch_ = std::make_unique<Fetch>(
      source.session,
      FetchRequest{.path = blob_.path + peers_.suffix() + (insists_ ? "&last=1" : ""),
                   .what = blob_.what,
                   .max_size = blob_.limit,
                   .exact_size = blob_.size,
                   .begin_at = came_},
      here);
  fetch_->start();
}

/// Writes into the spool first, so that neither other nodes nor this node's sources wait for the
/// converter. Without a spool, they wait.
HttpHandler::Take PeerStream::take(std::span<const std::byte> bytes) {
  last_byte_ = Clock::now();
  if (source_ != nullptr) source_->last_byte = last_byte_;
  const auto known = static_cast<std::size_t>(std::min<std::uint64_t>(skip_, bytes.size()));
  const auto fresh = bytes.subspan(known);
  const bool is_kept = slot_ && peers_.write(*slot_, came_, fresh);
  // Bytes that the sink lacks are lost with the spool: advance() fetches them again.
  if (!is_kept && (passed_ < came_ || pass(fresh) == HttpHandler::Take::later)) {
    is_paused_ = true;
    return HttpHandler::Take::later;
  }
  skip_ -= known;
  came_ += fresh.size();
  if (blob_.size) peers_.note_bytes(fresh.size(), comes_from());
  if (source_ != nullptr && !fresh.empty()) used_.insert(source_->index);
  if (is_kept && !is_sink_full_ && passed_ + fresh.size() == came_) pass(fresh);
  return HttpHandler::Take::taken;
}

HttpHandler::Take PeerStream::pass(std::span<const std::byte> bytes) {
  is_sink_full_ = !bytes.empty() && sink_.take(bytes) == HttpHandler::Take::later;
  if (is_sink_full_) return HttpHandler::Take::later;
  passed_ += bytes.size();
  return HttpHandler::Take::taken;
}

/// Passes bytes from the spool to the sink until it is full.
void PeerStream::feed() {
  for (int i = 0; i < kPiecesATurn && !is_sink_full_ && passed_ < came_ && slot_; ++i) {
    piece_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, came_ - passed_)));
    const std::size_t got = peers_.read(*slot_, passed_, piece_);
    if (got == 0) return without_spool();
    pass(std::span(piece_).first(got));
  }
}

/// Continues without the spool, and fetches bytes that the sink lacks again.
void PeerStream::without_spool() {
  slot_.reset();
  if (passed_ == came_) return;
  came_ = passed_;
  is_paused_ = false;
  if (other_) return go_elsewhere();
  is_done_ = false;
  fetch_from(*source_);
}

void PeerStream::watch(std::vector<pollfd>& descriptors) const {
  if (other_) other_->watch(descriptors);
  // A file is always readable, so poll returns at once while there are bytes for the sink.
  if (slot_ && passed_ < came_ && !is_sink_full_)
    descriptors.push_back({.fd = peers_.spool_file(), .events = POLLIN, .revents = 0});
}

void PeerStream::advance() {
  if (slot_ && !peers_.is_serving()) without_spool();
  feed();
  if (other_ && !go_back()) return other_->advance();
  if (is_done_ || !fetch_) return;
  fetch_->advance();
  if (fetch_->finished()) {
    settle();
  } else {
    look_after_source();
  }
}

void PeerStream::settle() {
  const auto outcome = fetch_->outcome();
  if (outcome) {
    is_done_ = true;
    fetch_.reset();
    alive_.reset();
    return;
  }
  const bool is_broken = outcome.error().kind() != ErrorKind::not_found &&
                         outcome.error().kind() != ErrorKind::refused;
  // The node may have presumed this one dead while the converter had no processor time.
  if (is_broken && came_ > began_at_ && !std::exchange(is_second_try_, true))
    return fetch_from(*source_);
  if (is_second_try_ || outcome.error().kind() != ErrorKind::not_found)
    useless_.insert(source_->index);
  if (outcome.error().kind() == ErrorKind::refused && !insists_) full_.insert(source_->index);
  if (is_broken) peers_.leave(*source_, outcome.error());
  go_on();
}

/// Asks the source for its state while it sends nothing, unless this node is not reading. If this
/// node's link is congested, a missing answer does not mean that a sending source is dead.
void PeerStream::look_after_source() {
  const auto now = Clock::now();
  if (alive_ && alive_->answer() == AliveQuestion::Answer::alive) {
    const std::string here = alive_->said().substr(0, alive_->said().find(' '));
    if (here != std::exchange(said_, here)) last_growth_ = now;
    misses_ = 0;
    alive_.reset();
  } else if (alive_ &&
             (alive_->answer() == AliveQuestion::Answer::failed || now - asked_ > kAnswer)) {
    ++misses_;
    alive_.reset();
  }
  const auto sent = std::max(last_byte_, source_->last_byte);  // of this blob or another one
  if (sent > asked_) misses_ = 0;
  if (!source_->is_dead && leave_if_slow()) return;
  if (is_paused_ || source_->is_dead || now - sent < kSilence) {
    if (!source_->is_dead) return;
    misses_ = kMostMisses;  // another blob's stream has found it dead
  }
  if (misses_ >= kMostMisses) {
    peers_.leave(*source_, Error(ErrorKind::unavailable, "does not answer"));
    useless_.insert(source_->index);
    return go_on();
  }
  if (now - std::max(sent, last_growth_) > kPatience) {
    useless_.insert(source_->index);
    return go_on();
  }
  if (alive_ && now - asked_ > kDoubt && leave_in_doubt()) return;
  if (alive_ || now - asked_ < kSilence) return;
  asked_ = now;
  alive_.emplace(peers_.http(), source_->session.endpoints.front());
}

/// Leaves a silent source before its state is known. Two unnecessary switches cost less than one
/// switch that is a second late.
bool PeerStream::leave_in_doubt() {
  const Peers::Source* const other = peers_.next(tried_);
  if (other == nullptr || other->is_slow || !left_.insert(source_->index).second) return false;
  doubted_.insert(source_->index);
  go_on();
  return true;
}

/// Leaves a slow source at the current byte. It may be used again, because it is better than the
/// registry, but is not left twice.
bool PeerStream::leave_if_slow() {
  peers_.watch_rate(*source_, is_paused_);
  if (!source_->is_slow || is_paused_ || left_.contains(source_->index)) return false;
  const Peers::Source* const other = peers_.next(tried_);
  if (other == nullptr || other->is_slow) return false;
  left_.insert(source_->index);
  tried_.erase(source_->index);
  go_on();
  return true;
}

void PeerStream::resume() {
  is_sink_full_ = false;
  feed();
  if (!std::exchange(is_paused_, false)) return;
  last_byte_ = Clock::now();
  if (other_) return other_->resume();
  if (fetch_) fetch_->resume();
}

bool PeerStream::waits_for_node() const {
  return other_ ? other_->waits_for_node() : source_ != nullptr && passed_ == 0;
}

Result<void> PeerStream::outcome() {
  if (other_) return other_->outcome();
  if (failed_) return *failed_;
  return {};
}

const char* PeerStream::whose_fault() const {
  return other_ ? other_->whose_fault() : "another node of the step changed it";
}

void PeerStream::proven(bool is_right) {
  is_right_ = is_right;
  if (other_) other_->proven(is_right);
  if (is_right) peers_.report_wrong(blob_.digest);
  if (slot_ && is_right) peers_.complete(*slot_);
  if (slot_ && !is_right) peers_.drop(*slot_);
}

bool PeerStream::blames_nodes() {
  if (is_right_ || used_.empty()) return false;
  if (slot_) peers_.drop(*slot_);
  peers_.bar(used_, blob_.digest);
  return true;
}

// --- peers ---

namespace {

constexpr int kMostQuestions = 3;  // for other sources
constexpr int kMostWrong = 2;
constexpr std::chrono::milliseconds kRateLook{250}, kRateStale{1000}, kReachable{1800};
constexpr std::chrono::milliseconds kFirstLook{1000},
    kLongestLook{4000};  // limit of the pause between looks at nodes that were left
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

/// Joins the nodes with the same digest and platform, which lack the same bytes. The platform
/// matters because an index leads to other layers on another platform. Nodes that lack only access
/// form a group of their own: they have the bytes already and are no source for nodes that lack
/// them.
void Peers::join(const Digest& top, Lack lack) {
  if (std::exchange(has_joined_, true)) return;
  const auto own = networks_.in(wanted_);
  if (own.empty()) return;
  // Other nodes get only this address.
  auto listener = Listener::open(PortRange::parse(context_.config.ports).value_or(PortRange()),
                                 own.front().address);
  if (!listener) return;
  order_ = Sha256::of(top.str() + " " +
                      (lack == Lack::bytes ? context_.platform.str() : "who may have it"));
  TrackerRecord join{.kind = TrackerKind::join, .image = order_};
  join.addresses[0] = {.ip = own.front().address, .port = listener->port};
  const auto place = context_.ask_tracker(join);
  if (!place || place->kind != TrackerKind::place) {
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

/// Asks all sources at once, so that packets dropped by a firewall cost one time-out, and stops at
/// the first answer. A source without an answer is treated as dead, like one that falls silent
/// later.
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
  if (are_unreachable()) tell({}, TrackerKind::cut_off);
}

void Peers::take_place(const TrackerRecord& place) {
  index_ = place.index;
  auto first = sources_.begin();  // sources of the new place precede it, in their order
  for (std::uint32_t i = 0; i < std::min(place.count, kMostSources); ++i) {
    const PeerSource& given = place.sources[i];
    // Accept only lower indices, so that there is no cycle even if srun is wrong.
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
                                        .ask_user = {}}});
  }
}

void Peers::start_relay(Listener listener, const PeerKey& key) {
  auto file = context_.new_file();
  const bool can_start = file && context_.agent >= 0 && context_.relay != nullptr;
  auto spool = can_start ? Spool::start({.listener = std::move(listener.socket),
                                         .file = *std::move(file),
                                         .agent = context_.agent,
                                         .key = key,
                                         .fanout = context_.config.fanout,
                                         .starter = context_.relay})
                         : Result<Spool>(Error(ErrorKind::unavailable, "start the relay"));
  if (spool) {
    spool_.emplace(*std::move(spool));
  } else {
    tell({}, TrackerKind::left);
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
  TrackerRecord more{.kind = TrackerKind::more, .index = index_, .image = order_};
  for (const Source& source : sources_) {
    if (more.count == kMostSources) break;
    if (source.is_dead || source.is_barred || useless.contains(source.index))
      more.indices[more.count++] = source.index;
  }
  const auto place = context_.ask_tracker(more);
  if (!place || place->kind != TrackerKind::place) {
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
  if (spool_) spool_->tell(here_, leader_, peer_rate_);
}

void Peers::watch_rate(Source& source, bool takes_nothing) {
  const auto now = Clock::now();
  if (watched_ != &source) {
    // another layer reads from the watched source
    if (watched_ != nullptr && now - watched_at_ < kRateStale) return;
    watched_ = &source;
    alive_.reset();
    source_rate_.restart();
  }
  watched_at_ = now;
  if (takes_nothing) source_rate_.restart();
  if (alive_ && alive_->answer() == AliveQuestion::Answer::alive) {
    std::uint64_t there = 0, leader = 0, rate = 0;
    std::istringstream(alive_->said()) >> there >> leader >> rate;
    alive_.reset();
    leader_ = std::max(leader_, leader);
    peer_rate_ = std::max(peer_rate_, rate);
    const SourceRate::Seen seen{
        .now = std::chrono::duration<double>(now.time_since_epoch()).count(),
        .here = static_cast<double>(here_),
        .there = static_cast<double>(there),
        .leader = static_cast<double>(leader_),
        .peer_rate = static_cast<double>(peer_rate_)};
    if (source_rate_.is_slow(seen)) look_for_faster(source);
  } else if (alive_ && alive_->answer() == AliveQuestion::Answer::failed) {
    alive_.reset();
  }
  if (alive_ || now - asked_ < kRateLook) return;
  asked_ = now;
  alive_.emplace(context_.http, source.session.endpoints.front());
}

/// Asks srun for another source, and excludes slow ones. srun knows which nodes are below this one.
void Peers::look_for_faster(Source& source) {
  if (is_alone_) return;
  TrackerRecord slow{.kind = TrackerKind::slow, .index = index_, .image = order_};
  slow.indices[slow.count++] = source.index;
  for (const Source& other : sources_) {
    if (slow.count < kMostSources && (other.is_slow || other.is_dead || other.is_barred))
      slow.indices[slow.count++] = other.index;
  }
  const auto place = context_.ask_tracker(slow);
  if (!place || place->kind != TrackerKind::place) {
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

/// Asks dead sources again, with growing pauses. A node that has fewer bytes than this one is not
/// used, because this node would only wait for it. If srun has named no source because other nodes
/// had reached none, asks srun once more.
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
    doubts_[blob].push_back(
        formatted("node {} of the step, {}: sent wrong bytes for {}: it is not asked again",
                  source.index, in_quotes(source.session.registry), in_quotes(blob.str())));
  }
}

void Peers::report_wrong(const Digest& blob) {
  for (const std::string& line : std::exchange(doubts_[blob], {}))
    context_.log.write(LogLevel::warning, line);
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
  tell({}, TrackerKind::left);
}

void Peers::tell_progress(std::uint64_t done, std::uint64_t total) {
  const auto now = Clock::now();
  if (is_alone_ || now < next_word_) return;
  next_word_ = now + std::max(std::chrono::milliseconds(500),
                              std::chrono::milliseconds(context_.nodes) * 1000 / 2048);
  if (spool_ && !spool_->is_alive()) stop_serving();
  tell({.done = done, .total = total}, TrackerKind::progress);
}

void Peers::tell_done() { tell({}, spool_ ? TrackerKind::done : TrackerKind::left); }

void Peers::tell(TrackerRecord record, TrackerKind kind) {
  if (is_alone_) return;
  record.kind = kind;
  record.index = index_;
  record.image = order_;
  record.from = from_;
  // If this fails, srun shows less progress, and nodes that were sent here use another source.
  [[maybe_unused]] const auto told = context_.tell_tracker(record);
}

}  // namespace spc
