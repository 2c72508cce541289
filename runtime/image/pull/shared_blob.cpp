#include "image/pull/shared_blob.hpp"

#include <random>

#include "base/file.hpp"
#include "base/format.hpp"

namespace spc {
namespace {

/// Many nodes look at the same time.
std::chrono::milliseconds pause_between_looks() {
  static std::minstd_rand random(std::random_device{}());
  return std::chrono::milliseconds(std::uniform_int_distribution<>(250, 1000)(random));
}

/// As for another job on this node: who brings it may have a registry that is slow on purpose.
std::chrono::seconds patience_for(const Descriptor& blob) { return std::chrono::seconds(30 + blob.size / 8'000'000); }

}  // namespace

SharedBlob::~SharedBlob() {
  if (publishing_.joinable()) publishing_.join();
}

void SharedBlob::look() {
  if (UniqueFd there = from_.store.find(blob_.digest, blob_.size, from_.place)) {
    const auto opened = std::make_shared<OpenedPart>(OpenedPart{.file = std::move(there), .offset = 0, .size = blob_.size});
    const auto give = [opened]() -> Result<OpenedPart> { return std::move(*opened); };
    auto file = std::make_unique<FileStream>(blob_, static_cast<FetchSink&>(*this), give, "the copy in the shared store is damaged");
    file_ = file.get();
    source_ = std::move(file);
    source_->start();
    return;
  }
  auto lease = from_.store.lease(blob_.digest, others_);
  const auto now = Clock::now();
  if (lease && !*lease) {
    if (!waits_since_) waits_since_ = now;
    next_look_ = now + pause_between_looks();
    if (now - *waits_since_ < patience_for(blob_)) return;
  }
  if (!lease) {
    without_copy(lease.error());
  } else {
    if (*lease) lease_.emplace(std::move(**lease));
    auto copy = from_.store.new_blob(blob_.digest, blob_.size);
    if (copy) {
      copy_.emplace(*std::move(copy));
    } else {
      without_copy(copy.error());
    }
  }
  fetch();
}

void SharedBlob::fetch() {
  file_ = nullptr;
  skip_ = passed_;
  source_ = from_.fetch(*this);
  source_->start();
}

HttpHandler::Take SharedBlob::take(std::span<const std::byte> bytes) {
  if (skip_ > 0) {
    const auto known = static_cast<std::size_t>(std::min<std::uint64_t>(skip_, bytes.size()));
    if (known < bytes.size() && sink_.take(bytes.subspan(known)) == HttpHandler::Take::later) return HttpHandler::Take::later;
    skip_ -= known;
    passed_ += bytes.size() - known;
    return HttpHandler::Take::taken;
  }
  if (sink_.take(bytes) == HttpHandler::Take::later) return HttpHandler::Take::later;
  passed_ += bytes.size();
  if (copy_) {
    if (auto written = write_all(copy_->file(), bytes); !written) without_copy(written.error());
  }
  return HttpHandler::Take::taken;
}

/// A file that another node has removed, or that cannot be read: the registry has the rest.
bool SharedBlob::may_go_on() const { return file_ != nullptr && file_->finished() && file_->sent() < blob_.size; }

void SharedBlob::without_copy(const Error& error) {
  from_.log.write(LogLevel::warning, formatted("shared store {}: {}: pulling layer {} without it", in_quotes(from_.store.directory()),
                                               error.message(), in_quotes(blob_.digest.str())));
  copy_.reset();
  lease_.reset();
}

void SharedBlob::watch(std::vector<pollfd>& descriptors) const {
  if (source_) source_->watch(descriptors);
}

void SharedBlob::advance() {
  if (!source_) {
    if (Clock::now() >= next_look_) look();
    return;
  }
  if (lease_ && !publishing_.joinable()) lease_->beat();
  source_->advance();
  if (may_go_on()) fetch();
}

void SharedBlob::resume() { source_->resume(); }

const char* SharedBlob::whose_fault() const {
  return file_ != nullptr ? "the copy in the shared store was damaged, and is removed: try again" : source_->whose_fault();
}

void SharedBlob::proven(bool is_right) {
  if (!is_right && file_ != nullptr) from_.store.remove(blob_.digest);
  if (!is_right || !copy_) {
    copy_.reset();
    lease_.reset();
    return;
  }
  publishing_ = std::thread([this] {
    (void)copy_->publish(from_.place);  // if it fails, the next node fetches it again
    copy_.reset();
    lease_.reset();
  });
}

}  // namespace spc
