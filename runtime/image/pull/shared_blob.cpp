#include "image/pull/shared_blob.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>

#include "base/file.hpp"
#include "base/format.hpp"

namespace spc {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{256} << 10;
constexpr int kChunksATurn = 8;  // then the other layers get theirs

/// Many nodes look at the same time.
std::chrono::milliseconds pause_between_looks() {
  static std::minstd_rand random(std::random_device{}());
  return std::chrono::milliseconds(std::uniform_int_distribution<>(100, 300)(random));
}

/// Without a byte from the node that brings it.
constexpr std::chrono::seconds kPatience{30};

}  // namespace

SharedBlob::~SharedBlob() {
  if (publishing_.joinable()) publishing_.join();
}

bool SharedBlob::find() {
  UniqueFd there =
      is_broken_ ? UniqueFd() : from_.store.find(blob_.digest, blob_.size, from_.place);
  is_whole_ = static_cast<bool>(there);
  if (there) read_file_of(std::move(there));
  return is_whole_;
}

void SharedBlob::look() {
  if (find()) return;
  auto lease = from_.store.lease(blob_.digest, from_.place, others_);
  if (!lease) {
    without_copy(lease.error());
    return fetch(std::nullopt);
  }
  // Once more: who had it until now may have brought the blob.
  if (*lease && !find()) fetch(*std::move(lease));
  if (*lease) return;
  const auto now = Clock::now();
  if (now - waits_since_ >= kPatience) return fetch(std::nullopt);
  next_look_ = now + pause_between_looks();
  if (UniqueFd growing =
          is_broken_ ? UniqueFd() : from_.store.follow(others_.note(), blob_.digest)) {
    read_file_of(std::move(growing));
  }
}

/// From where the sink is: it has the same bytes, or the digest will tell.
void SharedBlob::read_file_of(UniqueFd file) {
  file_ = std::move(file);
  has_more_ = true;
}

void SharedBlob::read() {
  for (int i = 0; i < kChunksATurn && file_ && has_more_ && !is_paused_ && passed_ < blob_.size;
       ++i) {
    if (from_chunk_ == chunk_.size()) {
      chunk_.resize(
          static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, blob_.size - passed_)));
      from_chunk_ = 0;
      const ssize_t got =
          ::pread(file_.get(), chunk_.data(), chunk_.size(), static_cast<off_t>(passed_));
      is_broken_ = is_whole_ ? got <= 0 : got < 0;
      has_more_ = got > 0;
      chunk_.resize(has_more_ ? static_cast<std::size_t>(got) : 0);
      if (!has_more_) return;
      waits_since_ = Clock::now();
    }
    const auto bytes = std::span(chunk_).subspan(from_chunk_);
    is_paused_ = sink_.take(bytes) == HttpHandler::Take::later;
    if (is_paused_) return;
    passed_ += bytes.size();
    from_chunk_ = chunk_.size();
  }
}

/// `lease`: none: for this node alone.
void SharedBlob::fetch(std::optional<Lease> lease) {
  file_.reset();
  chunk_.clear();
  from_chunk_ = 0;
  if (lease) {
    auto copy = from_.store.new_blob(blob_.digest, blob_.size);
    if (copy) {
      copy_.emplace(*std::move(copy));
      lease_.emplace(*std::move(lease));
      lease_->tell(copy_->name());
    } else {
      without_copy(copy.error());
    }
  }
  skip_ = passed_;
  fetching_ = from_.fetch(*this);
  fetching_->start();
}

HttpHandler::Take SharedBlob::take(std::span<const std::byte> bytes) {
  const auto known = static_cast<std::size_t>(std::min<std::uint64_t>(skip_, bytes.size()));
  if (known < bytes.size() && sink_.take(bytes.subspan(known)) == HttpHandler::Take::later)
    return HttpHandler::Take::later;
  skip_ -= known;
  passed_ += bytes.size() - known;
  if (copy_) {
    if (auto written = write_all(copy_->file(), bytes); !written) without_copy(written.error());
  }
  return HttpHandler::Take::taken;
}

void SharedBlob::without_copy(const Error& error) {
  from_.log.write(LogLevel::warning, formatted("shared store {}: {}: pulling layer {} without it",
                                               in_quotes(from_.store.directory()), error.message(),
                                               in_quotes(blob_.digest.str())));
  copy_.reset();
  lease_.reset();
}

void SharedBlob::watch(std::vector<pollfd>& descriptors) const {
  if (fetching_) return fetching_->watch(descriptors);
  // A file is always readable: whoever waits for it goes on at once.
  if (file_ && has_more_ && !is_paused_)
    descriptors.push_back({.fd = file_.get(), .events = POLLIN, .revents = 0});
}

void SharedBlob::advance() {
  if (is_published_) lease_.reset();
  if (lease_) lease_->beat();
  if (fetching_) return fetching_->advance();
  read();
  if (!finished() && !is_paused_ && !(file_ && has_more_) && Clock::now() >= next_look_) look();
}

void SharedBlob::resume() {
  is_paused_ = false;
  if (fetching_) fetching_->resume();
}

const char* SharedBlob::whose_fault() const {
  return fetching_ ? fetching_->whose_fault()
                   : "the copy in the shared store was damaged, and is removed: try again";
}

void SharedBlob::proven(bool is_right) {
  if (!is_right && !fetching_) from_.store.remove(blob_.digest);
  if (is_right && !fetching_ && !is_whole_)
    from_.store.adopt(others_.note(), blob_.digest, from_.place);
  if (!is_right || !copy_) {
    copy_.reset();
    lease_.reset();
    return;
  }
  publishing_ = std::thread([this] {
    (void)copy_->publish(from_.place);  // if it fails, the next node fetches it again
    copy_.reset();
    is_published_ = true;
  });
}

}  // namespace spc
