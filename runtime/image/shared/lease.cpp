#include "image/shared/lease.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <random>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/unique_fd.hpp"

namespace spc {
namespace {

constexpr std::chrono::seconds kPulse{1}, kStale{5};
constexpr std::size_t kLongest = 1024;

/// Who holds it: no two have the same.
std::string new_token() {
  char host[64] = {};
  ::gethostname(host, sizeof host - 1);
  return formatted("{} {} {}", host, ::getpid(), random_text());
}

/// Opened anew each time: a network file system then asks its server.
std::string content_of(int directory, const std::string& name) {
  const UniqueFd file(
      ::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  auto text = file ? read_file(file.get(), kLongest) : Result<std::string>(std::string());
  return text ? *std::move(text) : std::string();
}

/// Whether the lease is there now; `flags` besides: O_EXCL, or 0 for one's own.
Result<void> write_lease(int directory, const std::string& name, int flags,
                         const std::string& text) {
  const UniqueFd file(::openat(directory, name.c_str(),
                               O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0600));
  if (!file) return Error::from_errno(errno, "open lease " + in_quotes(name));
  auto written = write_all(file.get(), text);
  if (written && ::fdatasync(file.get()) != 0)
    written = Error::from_errno(errno, "write lease " + in_quotes(name));
  if (!written && (flags & O_EXCL) != 0) ::unlinkat(directory, name.c_str(), 0);
  return written;
}

}  // namespace

std::string random_text() {
  std::random_device device;
  return formatted("{:08x}{:08x}", device(), device());
}

Lease::~Lease() {
  // Who was thought dead may find that of another one: a moment later it can still be taken away,
  // which costs a second copy.
  if (directory_ >= 0 && content_of(directory_, name_).starts_with(token_))
    ::unlinkat(directory_, name_.c_str(), 0);
}

void Lease::beat() {
  const auto now = Clock::now();
  if (now < next_) return;
  next_ = now + kPulse;
  // It may be gone, or another one's. The text never gets shorter than what it replaces.
  if (content_of(directory_, name_).starts_with(token_)) {
    (void)write_lease(directory_, name_, 0, formatted("{} {:020} {}", token_, ++count_, note_));
  }
}

void Lease::tell(std::string note) {
  note_ = std::move(note);
  next_ = Clock::now();
  beat();
}

bool WatchedLease::is_stale(std::string content) {
  const auto now = Clock::now();
  if (content_ != content) {
    content_ = std::move(content);
    since_ = now;
  }
  return now - since_ >= kStale;
}

std::string WatchedLease::note() const {
  std::size_t at = 0;
  for (int field = 0; field < 4 && at != std::string::npos; ++field)
    at = content_ ? content_->find(' ', at + 1) : std::string::npos;
  return at == std::string::npos ? std::string() : content_->substr(at + 1);
}

Result<std::optional<Lease>> take_lease(int directory, const std::string& name,
                                        WatchedLease& others) {
  const std::string token = new_token();
  for (int tries = 0; tries < 2; ++tries) {
    const auto made =
        write_lease(directory, name, O_CREAT | O_EXCL, formatted("{} {:020}", token, 0));
    if (made) return std::optional(Lease(directory, name, token));
    if (made.error().sys_errno() != EEXIST) return made.error();
    if (tries > 0 || !others.is_stale(content_of(directory, name))) break;
    // Of several who see that only one moves it away.
    const std::string away = formatted("{}.{}", name, token.substr(token.rfind(' ') + 1));
    if (::renameat(directory, name.c_str(), directory, away.c_str()) == 0)
      ::unlinkat(directory, away.c_str(), 0);
  }
  return std::optional<Lease>();
}

}  // namespace spc
