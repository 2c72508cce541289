#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/export/new_file.hpp"
#include "image/reference/named_image.hpp"

namespace spc {

/// Files of servers that a user's jobs have fetched, in a directory of the user's cache, which
/// several nodes may see:
///
///     files/HEX          a file, named by its digest; the time of its last access is when it was
///     last used files/names/HEX    what a name or URL meant last (NamedImage; its indexes are the
///     validators that the server gave) files/names/HEX.lock
///
/// Everything is the user's own, who may remove any of it at any time.
class KeptFiles {
 public:
  /// `cache`: ~/.cache; made with what is needed in it.
  static Result<KeptFiles> open(const std::string& cache);

  /// The path of the file of this digest, which counts as used now.
  [[nodiscard]] std::optional<std::string> find(const Digest& digest) const;
  /// What `text` meant last, if the file is there.
  [[nodiscard]] std::optional<NamedImage> known(const std::string& text) const;
  /// That it means this now.
  Result<void> remember(const std::string& text, NamedImage named) const;

  /// For keep().
  [[nodiscard]] Result<NewFile> create() const;
  /// Gives the file its name.
  Result<std::string> keep(NewFile& file, const Digest& digest) const;
  /// Removes what nobody has used for long.
  void forget_old() const;
  /// Of FetchLock; it may fail.
  [[nodiscard]] UniqueFd lock_file(const std::string& text) const;

 private:
  std::string directory_;
};

/// The right to fetch one file, for the processes of a user on all nodes that see the directory.
/// Its holder says now and then that it goes on; of one that says nothing for long nobody waits:
/// the file is then fetched twice.
class FetchLock {
 public:
  /// `patience`: for how long its holder may say nothing.
  static FetchLock wait_for(const KeptFiles& files, const std::string& text,
                            std::chrono::seconds patience);
  void goes_on() const;

 private:
  UniqueFd file_;
};

}  // namespace spc
