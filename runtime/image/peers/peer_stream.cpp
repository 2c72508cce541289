#include "image/peers/peer_stream.hpp"

#include <algorithm>
#include <utility>

#include "base/format.hpp"

namespace spc {
namespace {

using std::chrono::milliseconds;

// A node that has died is noticed within two seconds, and one that is only slow is not taken for
// dead. Who has another source need not be sure to go on there.
constexpr milliseconds kSilence{250}, kDoubt{200}, kAnswer{500};
constexpr int kMostMisses = 3;
constexpr std::size_t kPiece = std::size_t{256} << 10;
constexpr int kMostReturns = 3;
constexpr int kPiecesATurn = 32;  // then the other layers get theirs
// One that lives but has no byte of anything: its own source is slow, or its user has a registry
// that is so on purpose.
constexpr std::chrono::seconds kPatience{60};

}  // namespace

PeerStream::PeerStream(Peers& peers, PeerBlob blob, FetchSink& sink)
    : peers_(peers), blob_(std::move(blob)), sink_(sink) {
  if (blob_.size) slot_ = peers_.slot_of(blob_.digest, *blob_.size);
}

void PeerStream::start() { go_on(); }

/// The next node or, if none is left, what there is besides.
void PeerStream::go_on() {
  fetch_.reset();
  alive_.reset();
  source_ = nullptr;
  if (!peers_.were_wrong_twice(blob_.digest)) {
    Peers::Source* next = peers_.next(tried_);
    if (next == nullptr &&
        !doubted_.empty()) {  // better than the registry: this time until it is known to be dead
      for (const std::uint32_t source : std::exchange(doubted_, {})) tried_.erase(source);
      next = peers_.next(tried_);
    }
    if ((next == nullptr || next->is_slow) &&
        !full_.empty()) {  // one that is full is better than one that is slow
      for (const std::uint32_t source : std::exchange(full_, {}))
        tried_.erase(source), useless_.erase(source);
      insists_ = true;
      next = peers_.next(tried_);
    }
    // Who just lacks it has it already: others may as well.
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

/// From the registry, or a mirror, to a node that answers again, at the byte where it is. What
/// comes from the shared store it would have put there as well, so that goes on.
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

/// Into the spool first: neither other nodes nor this one's sources wait for our converter, unless
/// there is no spool.
HttpHandler::Take PeerStream::take(std::span<const std::byte> bytes) {
  last_byte_ = Clock::now();
  if (source_ != nullptr) source_->last_byte = last_byte_;
  const auto known = static_cast<std::size_t>(std::min<std::uint64_t>(skip_, bytes.size()));
  const auto fresh = bytes.subspan(known);
  const bool is_kept = slot_ && peers_.write(*slot_, came_, fresh);
  // What the sink does not have is lost with the spool: advance() begins there once more.
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

/// What is in the spool only, as far as the sink takes it.
void PeerStream::feed() {
  for (int i = 0; i < kPiecesATurn && !is_sink_full_ && passed_ < came_ && slot_; ++i) {
    piece_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, came_ - passed_)));
    const std::size_t got = peers_.read(*slot_, passed_, piece_);
    if (got == 0) return without_spool();
    pass(std::span(piece_).first(got));
  }
}

/// What the sink does not have comes once more.
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
  // A file is always readable: there is more for the sink.
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
  // It may have taken us for dead while our converter had no time.
  if (is_broken && came_ > began_at_ && !std::exchange(is_second_try_, true))
    return fetch_from(*source_);
  if (is_second_try_ || outcome.error().kind() != ErrorKind::not_found)
    useless_.insert(source_->index);
  if (outcome.error().kind() == ErrorKind::refused && !insists_) full_.insert(source_->index);
  if (is_broken) peers_.leave(*source_, outcome.error());
  go_on();
}

/// Asked while it sends nothing; not while we take nothing. Answers that our own link holds up say
/// nothing of a node that sends.
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
    misses_ = kMostMisses;  // another blob's stream has seen it
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

/// It sends nothing and has not answered yet. Two moves that were not needed cost less than one
/// that comes a second late.
bool PeerStream::leave_in_doubt() {
  const Peers::Source* const other = peers_.next(tried_);
  if (other == nullptr || other->is_slow || !left_.insert(source_->index).second) return false;
  doubted_.insert(source_->index);
  go_on();
  return true;
}

/// At the byte where it is. What is slow is still better than the registry, and may be come back
/// to; but it is not left twice.
bool PeerStream::leave_if_slow() {
  peers_.watch_pace(*source_, is_paused_);
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
  if (slot_ && is_right) peers_.complete(*slot_);
  if (slot_ && !is_right) peers_.drop(*slot_);
}

bool PeerStream::blames_nodes() {
  if (is_right_ || used_.empty()) return false;
  if (slot_) peers_.drop(*slot_);
  peers_.bar(used_, blob_.digest);
  return true;
}

}  // namespace spc
