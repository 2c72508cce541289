// What is in a shared store, and what leaves it.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/directory.hpp"
#include "base/file.hpp"
#include "image/shared/shared_store.hpp"

namespace spc {
namespace {

// A lease is rewritten each second: what nobody has for ten minutes is a dead node's, whatever the
// clocks of nodes say that write times by their own. A file in tmp/ may rest while its node
// converts.
constexpr std::int64_t kLeaseAge = 600, kFileAge = 24 * 3600;
constexpr std::size_t kLongestPlace = 1024;

UniqueFd opened_again(int directory, const char* name = ".") {
  return UniqueFd(::openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

std::optional<struct stat> file_at(const DirectoryReader& files) {
  struct stat status {};
  const bool is_file =
      ::fstatat(files.descriptor(), files.c_name(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
      S_ISREG(status.st_mode);
  return is_file ? std::optional(status) : std::nullopt;
}

std::optional<Digest> digest_of(std::string_view hexadecimal) {
  const auto digest = Digest::parse("sha256:" + std::string(hexadecimal));
  return digest ? std::optional(*digest) : std::nullopt;
}

}  // namespace

/// What counts for the limit.
struct SharedStore::File {
  int directory = -1;
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t used_at = 0;
};

std::vector<SharedStore::File> SharedStore::files() const {
  std::vector<File> all;
  const auto add = [&](int directory, const std::string& form, DirectoryReader files) {
    while (files.next()) {
      const auto status = file_at(files);
      if (status)
        all.push_back({directory, form + std::string(files.name()),
                       static_cast<std::uint64_t>(status->st_size), status->st_mtim.tv_sec});
    }
  };
  add(blobs_.get(), "", DirectoryReader(opened_again(blobs_.get())));
  for (DirectoryReader forms(opened_again(layers_.get())); forms.next();) {
    add(layers_.get(), std::string(forms.name()) + "/",
        DirectoryReader(opened_again(forms.descriptor(), forms.c_name())));
  }
  std::ranges::sort(all, {}, &File::used_at);
  return all;
}

std::vector<SharedStore::Blob> SharedStore::blobs() const {
  std::vector<Blob> blobs;
  for (DirectoryReader files(opened_again(blobs_.get())); files.next();) {
    const auto digest = digest_of(files.name());
    const auto status = digest ? file_at(files) : std::nullopt;
    if (status)
      blobs.push_back(
          {*digest, static_cast<std::uint64_t>(status->st_size), status->st_mtim.tv_sec});
  }
  std::ranges::sort(blobs, {}, &Blob::used_at);
  return blobs;
}

std::map<Digest, std::vector<std::string>> SharedStore::places() const {
  std::map<Digest, std::vector<std::string>> places;
  for (DirectoryReader all(opened_again(delivered_.get())); all.next();) {
    DirectoryReader notes(opened_again(all.descriptor(), all.c_name()));
    const UniqueFd file(
        ::openat(notes.descriptor(), "name", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    const auto name =
        file ? read_file(file.get(), kLongestPlace) : Result<std::string>(std::string());
    while (name && !name->empty() && notes.next()) {
      if (const auto digest = digest_of(notes.name())) places[*digest].push_back(*name);
    }
  }
  return places;
}

/// By the clock that files there have their times from.
std::int64_t SharedStore::time_there() const {
  const std::string name = "clock." + random_text();
  const UniqueFd file(::openat(temporary_.get(), name.c_str(),
                               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  struct stat status {};
  const bool is_known = file && ::fstat(file.get(), &status) == 0;
  if (file) ::unlinkat(temporary_.get(), name.c_str(), 0);
  return is_known ? status.st_mtim.tv_sec : std::time(nullptr);
}

std::size_t SharedStore::remove_strays(std::int64_t now, bool dry) const {
  std::size_t removed = 0;
  for (const auto& [directory, age] :
       {std::pair(temporary_.get(), kFileAge), std::pair(leases_.get(), kLeaseAge)}) {
    for (DirectoryReader files(opened_again(directory)); files.next();) {
      const auto status = file_at(files);
      if (!status || status->st_mtim.tv_sec >= now - age) continue;
      if (dry || ::unlinkat(files.descriptor(), files.c_name(), 0) == 0) ++removed;
    }
  }
  return removed;
}

/// Who reads a file goes on: it stays until it is closed.
SharedStore::Removed SharedStore::evict(std::uint64_t needed, std::int64_t used_before,
                                        bool dry) const {
  const auto files = this->files();
  std::uint64_t total = needed;
  for (const File& file : files) total += file.bytes;
  Removed removed;
  for (const File& file : files) {
    if ((max_size_ == 0 || total <= max_size_) && file.used_at >= used_before) break;
    if (!dry && ::unlinkat(file.directory, file.path.c_str(), 0) != 0) continue;
    total -= file.bytes;
    removed.bytes += file.bytes;
    ++removed.files;
    if (dry || file.directory != blobs_.get()) continue;
    for (DirectoryReader places(opened_again(delivered_.get())); places.next();) {
      ::unlinkat(places.descriptor(), (std::string(places.name()) + "/" + file.path).c_str(), 0);
    }
  }
  return removed;
}

SharedStore::Removed SharedStore::clean(std::int64_t unused_for, bool dry) const {
  const std::int64_t now = time_there();
  Removed removed = evict(0, unused_for == 0 ? 0 : now - unused_for, dry);
  removed.strays = remove_strays(now, dry);
  return removed;
}

void SharedStore::make_room(std::uint64_t needed, std::int64_t now) const {
  if (!std::exchange(has_removed_strays_, true)) (void)remove_strays(now, false);
  if (max_size_ != 0) (void)evict(needed, 0, false);
}

}  // namespace spc
