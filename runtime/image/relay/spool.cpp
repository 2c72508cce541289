#include "image/relay/spool.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/process/own_program.hpp"

namespace spc {
namespace {

/// Rarely enough that the relay wakes a few thousand times a gigabyte, often enough that each hop
/// adds little.
constexpr std::uint64_t kTellEvery = std::uint64_t{256} << 10;

}  // namespace

Result<Spool> Spool::start(Start with) {
  SharedBoard board = SPC_TRY(SharedBoard::create());
  board->key = with.key;
  board->fanout = with.fanout;
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::array<int, 2> ends{};
  if (!wake || ::pipe2(ends.data(), O_CLOEXEC) != 0)
    return Error::from_errno(errno, "start the relay");
  const UniqueFd theirs(ends[0]);
  UniqueFd life(ends[1]);
  const std::string path = with.program.empty() ? own_program("relay") : with.program;
  auto child = SPC_TRY(Child::start({.path = path,
                                     .arguments = {"relay"},
                                     .environment = std::vector<std::string>(),
                                     .descriptors = {{with.listener.get(), kRelayListener},
                                                     {board.file(), kRelayBoard},
                                                     {with.file.get(), kRelaySpool},
                                                     {wake.get(), kRelayWake},
                                                     {theirs.get(), kRelayImport},
                                                     {with.agent, kRelayAgent}},
                                     .death_signal = 0}));
  return Spool(std::move(board), std::move(with.file), std::move(wake), std::move(life),
               std::move(child));
}

Spool::Spool(SharedBoard board, UniqueFd file, UniqueFd wake, UniqueFd life, Child child)
    : board_(std::move(board)),
      file_(std::move(file)),
      wake_(std::move(wake)),
      life_(std::move(life)),
      child_(std::move(child)) {}

Spool::~Spool() { child_.release(); }

void Spool::wake() {
  unsaid_ = 0;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written =
      ::write(wake_.get(), &one, sizeof one);  // full: it is awake
}

std::optional<Spool::Slot> Spool::add(const Digest& blob, std::uint64_t size) {
  const Slot slot = board_->count.load(std::memory_order_relaxed);
  if (const auto* known = board_->find(blob)) {
    if (known->state == BlobState::gone) return std::nullopt;
    return static_cast<Slot>(known - board_->entries.data());
  }
  if (slot == RelayBoard::kMostBlobs || !file_) return std::nullopt;
  auto& entry = board_->entries[slot];
  entry.blob = blob;
  entry.size = size;
  entry.offset = end_;
  end_ += size;
  board_->count.store(slot + 1, std::memory_order_release);
  wake();
  return slot;
}

Result<void> Spool::write(Slot slot, std::uint64_t offset, std::span<const std::byte> bytes) {
  auto& entry = board_->entries[slot];
  // A blob that is brought again from its beginning: what others have read of it stays what it was.
  const std::uint64_t have = entry.have.load(std::memory_order_relaxed);
  if (entry.state != BlobState::comes || offset + bytes.size() <= have) return {};
  if (offset < have) {
    bytes = bytes.subspan(static_cast<std::size_t>(have - offset));
    offset = have;
  }
  if (offset != have || bytes.size() > entry.size - offset)
    return Error(ErrorKind::internal, "spool: a hole in a blob");
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file_.get(), bytes.data(), bytes.size(),
                                     static_cast<off_t>(entry.offset + offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0)
      return Error::from_errno(written < 0 ? errno : ENOSPC, "write what other nodes want");
    offset += static_cast<std::uint64_t>(written);
    unsaid_ += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    entry.have.store(offset, std::memory_order_release);
  }
  if (unsaid_ >= kTellEvery || offset == entry.size) wake();
  return {};
}

std::size_t Spool::read(Slot slot, std::uint64_t offset, std::span<std::byte> into) const {
  const ssize_t got = ::pread(file_.get(), into.data(), into.size(),
                              static_cast<off_t>(board_->entries[slot].offset + offset));
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}

void Spool::complete(Slot slot) {
  auto& entry = board_->entries[slot];
  if (entry.state == BlobState::comes)
    entry.state = entry.have == entry.size ? BlobState::complete : BlobState::gone;
  wake();
}

void Spool::drop(Slot slot) {
  board_->entries[slot].state = BlobState::gone;
  wake();
}

void Spool::close() {
  board_->is_closed = 1;
  wake();
}

void Spool::give_up() {
  for (Slot slot = 0; slot < board_->count; ++slot) board_->entries[slot].state = BlobState::gone;
  close();
  if (file_) [[maybe_unused]]
    const int emptied = ::ftruncate(file_.get(), 0);
  file_.reset();
  child_.kill();
}

}  // namespace spc
