// The memory and file that `import` shares with `relay`: the index of blobs and their bytes.

#include "share/spool.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <new>
#include <utility>

#include "base/process/own_program.hpp"
#include "base/socket.hpp"

namespace spc {

// --- spool ---

namespace {

/// Bytes between wake-ups of the relay: a few thousand wake-ups per gigabyte, and little delay for
/// each node on the way.
constexpr std::uint64_t kTellEvery = std::uint64_t{256} << 10;

constexpr std::size_t kDescriptors = kRelayAgent - kRelayListener + 1;

/// The starter's answer. The relay's pidfd is sent with it.
struct Started {
  int failed = 0;  ///< errno
};

Result<Child> start_relay(const std::string& program, std::span<const UniqueFd> descriptors) {
  Program relay{.path = program,
                .arguments = {"relay"},
                .environment = std::vector<std::string>(),
                .death_signal = 0};
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    relay.descriptors.push_back({descriptors[i].get(), kRelayListener + static_cast<int>(i)});
  }
  return Child::start(relay);
}

/// Runs the starter until its socket is closed. Closes the descriptors inherited from `import`
/// first: otherwise the agent would not see that `import` has ended.
int serve_starts(int socket, const std::string& program) {
  constexpr int kSocket = 3;
  ::dup2(socket, kSocket);
  ::syscall(SYS_close_range, kSocket + 1U, ~0U, 0U);
  for (;;) {
    Started answer;
    const auto descriptors = receive_struct(kSocket, answer, kDescriptors);
    if (!descriptors || descriptors->size() != kDescriptors) return 0;
    auto relay = start_relay(program, *descriptors);
    answer.failed = relay ? 0 : relay.error().sys_errno();
    const int pidfd = relay ? relay->watch() : -1;
    const auto passed = std::span(&pidfd, relay ? 1U : 0U);
    if (!send_struct(kSocket, answer, passed)) return 0;
    if (relay) relay->release();
  }
}

}  // namespace

Result<RelayStarter> RelayStarter::create(const std::string& program) {
  const std::string path = program.empty() ? own_program("relay") : program;
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const int socket = theirs.get();
  auto child = SPC_TRY(Child::run([&] { return serve_starts(socket, path); }, "start the relay"));
  return RelayStarter(std::move(ours), std::move(child));
}

Result<UniqueFd> RelayStarter::start(std::span<const int> descriptors) const {
  Started answer;
  SPC_TRY(send_struct(socket_.get(), answer, descriptors));
  auto relay = SPC_TRY(receive_struct(socket_.get(), answer, 1));
  if (relay.size() != 1) return Error::from_errno(answer.failed, "start the relay");
  return std::move(relay.front());
}

Result<Spool> Spool::start(Start with) {
  SharedSpoolIndex index = SPC_TRY(SharedSpoolIndex::create());
  index->key = with.key;
  index->fanout = with.fanout;
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::array<int, 2> ends{};
  if (!wake || ::pipe2(ends.data(), O_CLOEXEC) != 0)
    return Error::from_errno(errno, "start the relay");
  const UniqueFd theirs(ends[0]);
  UniqueFd life(ends[1]);
  // in the order of their numbers in the relay
  const int descriptors[kDescriptors] = {with.listener.get(), index.file(), with.file.get(),
                                         wake.get(),          theirs.get(), with.agent};
  auto relay = SPC_TRY(with.starter->start(descriptors));
  return Spool(std::move(index), std::move(with.file), std::move(wake), std::move(life),
               std::move(relay));
}

Spool::Spool(SharedSpoolIndex index, UniqueFd file, UniqueFd wake, UniqueFd life, UniqueFd relay)
    : index_(std::move(index)),
      file_(std::move(file)),
      wake_(std::move(wake)),
      life_(std::move(life)),
      relay_(std::move(relay)) {}

bool Spool::is_alive() const {
  pollfd relay{.fd = relay_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&relay, 1, 0) == 0;
}

void Spool::wake() {
  unsaid_ = 0;
  const std::uint64_t one = 1;
  // EAGAIN: the relay has not handled the last wake-up yet
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

std::optional<Spool::Slot> Spool::add(const Digest& blob, std::uint64_t size) {
  const Slot slot = index_->count.load(std::memory_order_relaxed);
  if (const auto* known = index_->find(blob)) {
    if (known->state == BlobState::gone) return std::nullopt;
    return static_cast<Slot>(known - index_->entries.data());
  }
  if (slot == SpoolIndex::kMostBlobs || !file_) return std::nullopt;
  auto& entry = index_->entries[slot];
  entry.blob = blob;
  entry.size = size;
  entry.offset = end_;
  end_ += size;
  index_->count.store(slot + 1, std::memory_order_release);
  wake();
  return slot;
}

Result<void> Spool::write(Slot slot, std::uint64_t offset, std::span<const std::byte> bytes) {
  auto& entry = index_->entries[slot];
  // If a blob is fetched again from its beginning, bytes that readers may have seen stay unchanged.
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
                              static_cast<off_t>(index_->entries[slot].offset + offset));
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}

void Spool::complete(Slot slot) {
  auto& entry = index_->entries[slot];
  if (entry.state == BlobState::comes)
    entry.state = entry.have == entry.size ? BlobState::complete : BlobState::gone;
  wake();
}

void Spool::drop(Slot slot) {
  index_->entries[slot].state = BlobState::gone;
  wake();
}

void Spool::close() {
  index_->is_closed = 1;
  wake();
}

void Spool::give_up() {
  for (Slot slot = 0; slot < index_->count; ++slot) index_->entries[slot].state = BlobState::gone;
  close();
  if (file_) [[maybe_unused]]
    const int emptied = ::ftruncate(file_.get(), 0);
  file_.reset();
  ::syscall(SYS_pidfd_send_signal, relay_.get(), SIGKILL, nullptr, 0U);
}

// --- index ---

Result<SharedSpoolIndex> SharedSpoolIndex::create() {
  UniqueFd file(::memfd_create("relay", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ::ftruncate(file.get(), sizeof(SpoolIndex)) != 0)
    return Error::from_errno(errno, "make the spool index");
  void* const memory =
      ::mmap(nullptr, sizeof(SpoolIndex), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return Error::from_errno(errno, "map the spool index");
  SharedSpoolIndex index(new (memory) SpoolIndex, std::move(file));
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (::fcntl(index.file(), F_ADD_SEALS, kSeals) != 0)
    return Error::from_errno(errno, "seal the spool index");
  return index;
}

Result<SharedSpoolIndex> SharedSpoolIndex::open(int file) {
  struct stat status {};
  if (::fstat(file, &status) != 0 || status.st_size != sizeof(SpoolIndex))
    return Error(ErrorKind::invalid, "not a spool index");
  void* const memory = ::mmap(nullptr, sizeof(SpoolIndex), PROT_READ, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return Error::from_errno(errno, "map the spool index");
  return SharedSpoolIndex(static_cast<SpoolIndex*>(memory));
}

SharedSpoolIndex::SharedSpoolIndex(SharedSpoolIndex&& other) noexcept
    : index_(std::exchange(other.index_, nullptr)), file_(std::move(other.file_)) {}

SharedSpoolIndex::~SharedSpoolIndex() {
  if (index_ != nullptr) ::munmap(index_, sizeof(SpoolIndex));
}

}  // namespace spc
