// Copies files of the context, a stage or an image into the image that is built.

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"
#include "export/archive.hpp"
#include "task/entering/arrival.hpp"
#include "tool/build/build_step.hpp"

namespace spc::tool {

namespace {

/// Applies one clause of chmod, as u=rwX; empty: it is none.
std::optional<mode_t> changed_mode(std::string_view clause, mode_t mode) {
  const auto end = std::min(clause.find_first_of("+-="), clause.size());
  mode_t who = 0;
  for (const char c : clause.substr(0, end)) {
    if (c != 'u' && c != 'g' && c != 'o' && c != 'a') return std::nullopt;
    who |= c == 'u' ? 04700 : c == 'g' ? 02070 : c == 'o' ? 01007 : 07777;
  }
  if (end == clause.size()) return std::nullopt;
  if (who == 0) who = 07777;
  mode_t bits = 0;
  for (const char c : clause.substr(end + 1)) {
    constexpr mode_t kExecute = 0111;
    switch (c) {
      case 'r': bits |= 0444; break;
      case 'w': bits |= 0222; break;
      case 'x': bits |= kExecute; break;
      case 'X': bits |= S_ISDIR(mode) || (mode & kExecute) != 0 ? kExecute : 0; break;
      case 's': bits |= 06000; break;
      case 't': bits |= 01000; break;
      default: return std::nullopt;
    }
  }
  bits &= who;
  if (clause[end] == '-') return mode & ~bits;
  return clause[end] == '+' ? mode | bits : (mode & ~(who & 0777)) | bits;
}

}  // namespace

Result<void> BuildCopy::set_mode(const std::string& text) {
  mode_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value, 8);
  if (end.ec == std::errc() && end.ptr == text.data() + text.size() && value <= 07777) {
    mode = value;
    return {};
  }
  for (const std::string_view clause : split(text, ',')) {
    if (!changed_mode(clause, 0))
      return Error(ErrorKind::invalid, formatted("--chmod={}: is not a mode", text))
          .hint("--chmod=755 or --chmod=u=rwX,go=rX");
  }
  mode_changes = text;
  return {};
}

mode_t BuildCopy::mode_for(mode_t own) const {
  if (mode) return *mode;
  if (!mode_changes.empty()) {
    for (const std::string_view clause : split(mode_changes, ','))
      own = changed_mode(clause, own).value_or(own);
  }
  return own & 07777;
}

namespace {

UniqueFd open_in(int root, const std::string& path, int flags) {
  return open_resolved(root, path.empty() ? "." : path.c_str(), flags,
                       RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
}

/// Returns the path without `.`, empty parts and the slash at its begin. `..` stays: openat2 keeps
/// it in the root.
std::string plain_path(std::string_view path) {
  std::string result;
  for (const std::string_view part : split(path, '/')) {
    if (part.empty() || part == ".") continue;
    if (part == ".." && !result.empty()) {
      const auto slash = result.rfind('/');
      result.resize(slash == std::string::npos ? 0 : slash);
    } else if (part != "..") {
      result.append(result.empty() ? "" : "/").append(part);
    }
  }
  return result;
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_pattern(std::string_view path) { return path.find_first_of("*?[") != path.npos; }

/// Adds the files below `directory` (relative, or empty) that match the remaining parts of the
/// pattern.
Result<void> find_below(int root, const std::string& directory, std::string_view pattern,
                        FoundFiles& found) {
  const auto part = next_part(pattern, '/');
  const std::string before = directory.empty() ? "" : directory + "/";
  if (!is_pattern(part)) {
    const std::string path = before + std::string(part);
    if (!pattern.empty()) return find_below(root, path, pattern, found);
    if (open_in(root, path, O_PATH)) found.push_back(path);
    return {};
  }
  UniqueFd opened = open_in(root, directory, O_RDONLY | O_DIRECTORY);
  if (!opened) return {};
  DirectoryReader entries(std::move(opened));
  std::vector<std::string> names;
  while (entries.next()) {
    if (matches_glob(part, entries.name())) names.emplace_back(entries.name());
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (pattern.empty())
      found.push_back(before + name);
    else
      SPC_TRY(find_below(root, before + name, pattern, found));
  }
  return {};
}

/// `below`: the path below the source, or the name of a source that is a file.
bool is_left_out(const std::string& path, const std::string& below, const BuildCopy& copy,
                 const IgnoreFile* ignored) {
  if (ignored != nullptr && ignored->matches(path)) return true;
  return std::any_of(copy.excludes.begin(), copy.excludes.end(), [&](const std::string& pattern) {
    return matches_path(pattern, path) || matches_path(pattern, below);
  });
}

struct Visited {
  const std::string& path;  ///< below the root
  std::string below;        ///< below the source: empty for the source itself
  int parent;
  const char* name;
  struct stat status;
};
using Visit = std::function<Result<void>(const Visited&)>;

/// Visits a file and all below it. A directory that is left out is entered only if a pattern may
/// bring back files in it.
Result<void> visit_tree(int parent, const char* name, const std::string& path,
                        const std::string& below, const BuildCopy& copy, const IgnoreFile* ignored,
                        const Visit& visit) {
  Visited one{.path = path, .below = below, .parent = parent, .name = name, .status = {}};
  if (::fstatat(parent, name, &one.status, AT_SYMLINK_NOFOLLOW) != 0)
    return Error::from_errno(errno, "read " + in_quotes(path));
  const bool left_out = !path.empty() && is_left_out(path, below, copy, ignored);
  if (left_out &&
      (ignored == nullptr || !ignored->has_exceptions() || !S_ISDIR(one.status.st_mode)))
    return {};
  if (!left_out) SPC_TRY(visit(one));
  if (!S_ISDIR(one.status.st_mode)) return {};
  UniqueFd opened(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened) return Error::from_errno(errno, "open directory " + in_quotes(path));
  DirectoryReader entries(std::move(opened));
  std::vector<std::string> names;
  while (entries.next()) names.emplace_back(entries.name());
  if (entries.error() != 0)
    return Error::from_errno(entries.error(), "read directory " + in_quotes(path));
  std::sort(names.begin(), names.end());
  const auto in = [](const std::string& directory, const std::string& entry) {
    return directory.empty() ? entry : directory + "/" + entry;
  };
  for (const std::string& entry : names) {
    SPC_TRY(visit_tree(entries.descriptor(), entry.c_str(), in(path, entry), in(below, entry), copy,
                       ignored, visit));
  }
  return {};
}

/// Visits a source, following a link at its end, as BuildKit does.
Result<void> visit_source(int root, const std::string& found, const BuildCopy& copy,
                          const IgnoreFile* ignored, const Visit& visit) {
  const std::string path = plain_path(found);
  const UniqueFd file = open_in(root, path, O_PATH);
  if (!file) return Error::from_errno(errno, "open " + in_quotes(path));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return Error::from_errno(errno, "read " + in_quotes(path));
  if (S_ISDIR(status.st_mode)) return visit_tree(file.get(), ".", path, "", copy, ignored, visit);
  if (is_left_out(path, last_part(path), copy, ignored)) return {};
  // Reopened by its descriptor: `name` below is a link in /proc to the file itself.
  const std::string itself = "/proc/self/fd/" + std::to_string(file.get());
  return visit(
      {.path = path, .below = "", .parent = AT_FDCWD, .name = itself.c_str(), .status = status});
}

Result<UniqueFd> open_content(const Visited& file) {
  UniqueFd content(::openat(file.parent, file.name, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!content) return Error::from_errno(errno, "open " + in_quotes(file.path));
  return content;
}

Result<std::string> link_target(const Visited& link) {
  std::string target(static_cast<std::size_t>(link.status.st_size) + 4096, '\0');
  const ssize_t size = ::readlinkat(link.parent, link.name, target.data(), target.size());
  if (size < 0) return Error::from_errno(errno, "read link " + in_quotes(link.path));
  target.resize(static_cast<std::size_t>(size));
  return target;
}

/// Returns the path with /./ where `source` has it: --parents keeps the directories after it.
std::string with_pivot(std::string path, const std::string& source) {
  const auto pivot = source.find("/./");
  if (pivot == std::string::npos) return path;
  const std::string before = plain_path(source.substr(0, pivot));
  if (before.empty()) return path;
  std::size_t at = 0;
  for (auto left = std::ranges::count(before, '/') + 1; left > 0; --left)
    at = path.find('/', at == 0 ? 0 : at + 1);
  return at == std::string::npos ? path : path.insert(at, "/.");
}

}  // namespace

Result<FoundFiles> find_sources(int root, const BuildCopy& copy, const IgnoreFile* ignored) {
  FoundFiles found;
  for (const std::string& source : copy.sources) {
    const std::string path = plain_path(source);
    const std::size_t before = found.size();
    if (path.empty())
      found.emplace_back();
    else
      SPC_TRY(find_below(root, "", path, found));
    if (found.size() == before && !is_pattern(path))
      return Error(ErrorKind::not_found, formatted("no file {}", in_quotes(source)))
          .hint("paths begin at the context, or at the root of the --from image");
    if (copy.keeps_parents) {
      for (std::size_t i = before; i < found.size(); ++i)
        found[i] = with_pivot(std::move(found[i]), source);
    }
    if (!is_pattern(path) && ignored != nullptr && ignored->matches(path) &&
        !ignored->has_exceptions()) {
      return Error(ErrorKind::not_found,
                   formatted("file {} is left out by .dockerignore", in_quotes(source)));
    }
  }
  return found;
}

Result<Digest> digest_of_files(int root, const FoundFiles& files, const BuildCopy& copy,
                               const IgnoreFile* ignored) {
  Sha256 all;
  const auto add = [&](std::string_view text) {
    all.update(std::as_bytes(std::span(text)));
    all.update(std::as_bytes(std::span("\0", 1)));
  };
  const auto hash = [&](const Visited& file) -> Result<void> {
    add(file.path);
    add(formatted("{}", static_cast<unsigned>(file.status.st_mode)));
    if (S_ISLNK(file.status.st_mode)) add(SPC_TRY(link_target(file)));
    if (!S_ISREG(file.status.st_mode)) return {};
    const auto content = SPC_TRY(open_content(file));
    static thread_local std::array<std::byte, 1 << 18> buffer;
    add(formatted("{}", static_cast<std::uint64_t>(file.status.st_size)));
    for (;;) {
      const ssize_t got = ::read(content.get(), buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error::from_errno(errno, "read " + in_quotes(file.path));
      if (got == 0) return {};
      all.update(std::span(buffer).first(static_cast<std::size_t>(got)));
    }
  };
  for (const std::string& path : files) SPC_TRY(visit_source(root, path, copy, ignored, hash));
  return all.finish();
}

Result<void> make_directory_in(int image, const std::string& path) {
  const std::string plain = plain_path(path);
  std::string so_far;
  for (const std::string_view part : split(plain, '/')) {
    const UniqueFd parent = open_in(image, so_far, O_PATH | O_DIRECTORY);
    if (!parent) return Error::from_errno(errno, "open directory " + in_quotes("/" + so_far));
    so_far.append(so_far.empty() ? "" : "/").append(part);
    if (part.empty() || open_in(image, so_far, O_PATH | O_DIRECTORY)) continue;
    if (::mkdirat(parent.get(), std::string(part).c_str(), 0755) != 0)
      return Error::from_errno(errno, "make directory " + in_quotes("/" + so_far));
  }
  return {};
}

namespace {

/// Writes copies into directories of the image.
class Copier {
 public:
  Copier(int image, const BuildCopy& copy) : image_(image), copy_(copy) {}

  Result<void> put(const Visited& file, const std::string& target) {
    const std::string name = last_part(target);
    const auto slash = target.rfind('/');
    const UniqueFd parent = open_in(
        image_, slash == std::string::npos ? "" : target.substr(0, slash), O_PATH | O_DIRECTORY);
    if (!parent)
      return Error::from_errno(errno, "open the directory of " + in_quotes("/" + target));
    if (S_ISDIR(file.status.st_mode)) return put_directory(file, target);
    struct stat there {};
    if (::fstatat(parent.get(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0) {
      if (S_ISDIR(there.st_mode))
        return Error(ErrorKind::invalid,
                     formatted("{} is a directory in the image", in_quotes("/" + target)));
      if (::unlinkat(parent.get(), name.c_str(), 0) != 0)
        return Error::from_errno(errno, "replace " + in_quotes("/" + target));
    }
    if (S_ISREG(file.status.st_mode)) return put_regular(file, parent.get(), name, target);
    if (S_ISLNK(file.status.st_mode)) {
      const std::string to = SPC_TRY(link_target(file));
      return check(::symlinkat(to.c_str(), parent.get(), name.c_str()),
                   "make link " + in_quotes("/" + target));
    }
    if (S_ISFIFO(file.status.st_mode)) {
      return check(::mkfifoat(parent.get(), name.c_str(), file.status.st_mode & 07777),
                   "make FIFO " + in_quotes("/" + target));
    }
    return Error(ErrorKind::invalid,
                 formatted("{} is a device or a socket, which is not copied", in_quotes(file.path)))
        .hint("name it in .dockerignore");
  }

 private:
  Result<void> put_directory(const Visited& file, const std::string& target) {
    SPC_TRY(make_directory_in(image_, target));
    const auto made = open_in(image_, target, O_RDONLY | O_DIRECTORY);
    if (!made) return Error::from_errno(errno, "open directory " + in_quotes("/" + target));
    return check(::fchmod(made.get(), copy_.mode_for(file.status.st_mode)),
                 "set the mode of " + in_quotes("/" + target));
  }

  Result<void> put_regular(const Visited& file, int parent, const std::string& name,
                           const std::string& target) {
    const auto content = SPC_TRY(open_content(file));
    const UniqueFd made(
        ::openat(parent, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!made) return Error::from_errno(errno, "create " + in_quotes("/" + target));
    for (bool copies = true;;) {
      constexpr std::size_t kMost = 1 << 30;
      ssize_t got =
          copies ? ::copy_file_range(content.get(), nullptr, made.get(), nullptr, kMost, 0) : -1;
      if (copies && got < 0 && errno != EINTR) copies = false;
      if (!copies) {
        got = ::read(content.get(), buffer_.data(), buffer_.size());
        if (got > 0)
          SPC_TRY_DURING(
              "write " + in_quotes("/" + target),
              write_all(made.get(), std::span(buffer_).first(static_cast<std::size_t>(got))));
      }
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error::from_errno(errno, "copy " + in_quotes(file.path));
      if (got == 0) break;
    }
    SPC_TRY(check(::fchmod(made.get(), copy_.mode_for(file.status.st_mode)),
                  "set the mode of " + in_quotes("/" + target)));
    const timespec times[2] = {file.status.st_mtim, file.status.st_mtim};
    return check(::futimens(made.get(), times), "set the time of " + in_quotes("/" + target));
  }

  int image_;
  const BuildCopy& copy_;
  std::array<std::byte, 1 << 18> buffer_{};
};

/// Unpacks an archive in a child whose root is the image, so that no link leads out of it.
Result<void> unpack_into(int archive, int image, const std::string& target) {
  SPC_TRY(make_directory_in(image, target));
  return run_apart(
      [&]() -> Result<void> {
        SPC_TRY(check(::fchdir(image), "enter the image"));
        SPC_TRY(check(::chroot("."), "enter the image"));
        SPC_TRY(check(::chdir(("/" + target).c_str()), "enter " + in_quotes("/" + target)));
        return unpack_archive(archive);
      },
      "unpack an archive");
}

}  // namespace

Result<void> copy_files(int from, const FoundFiles& files, const BuildCopy& copy,
                        const IgnoreFile* ignored, int image) {
  Copier copier(image, copy);
  const std::string target = plain_path(copy.target);
  const UniqueFd there = open_in(image, target, O_PATH | O_DIRECTORY);
  const bool into = copy.target.ends_with('/') || there || files.size() > 1;
  if (into) SPC_TRY(make_directory_in(image, target));
  const auto in = [](const std::string& directory, const std::string& entry) {
    return directory.empty() || entry.empty() ? directory + entry : directory + "/" + entry;
  };
  for (const std::string& path : files) {
    const std::string base = copy.as_cp && into ? in(target, last_part(path)) : target;
    const auto put = [&](const Visited& file) -> Result<void> {
      if (copy.keeps_parents) {
        const auto pivot = path.find("/./");
        const std::string kept = pivot == std::string::npos ? path : path.substr(pivot + 3);
        const std::string place = in(target, in(kept, file.below));
        const auto slash = place.rfind('/');
        if (slash != std::string::npos) SPC_TRY(make_directory_in(image, place.substr(0, slash)));
        return copier.put(file, place);
      }
      // The content of a directory is copied, not the directory.
      const bool is_tree = std::string_view(file.name) == "." || !file.below.empty();
      if (is_tree && file.below.empty()) return make_directory_in(image, base);
      if (is_tree) return copier.put(file, in(base, file.below));
      if (copy.unpacks && S_ISREG(file.status.st_mode)) {
        const auto content = SPC_TRY(open_content(file));
        if (is_archive(content.get())) return unpack_into(content.get(), image, target);
      }
      if (into) return copier.put(file, in(target, last_part(path)));
      const auto slash = target.rfind('/');
      if (slash != std::string::npos) SPC_TRY(make_directory_in(image, target.substr(0, slash)));
      return copier.put(file, target);
    };
    SPC_TRY(visit_source(from, path, copy, ignored, put));
  }
  return {};
}

Result<void> write_file_in(int image, const std::string& path, const std::string& text,
                           std::optional<mode_t> mode) {
  const auto content = SPC_TRY(sealed_memory_file("here-document", text));
  const std::string itself = "/proc/self/fd/" + std::to_string(content.get());
  BuildCopy copy;
  copy.mode = mode.value_or(0644);
  Visited file{.path = path, .below = "", .parent = AT_FDCWD, .name = itself.c_str(), .status = {}};
  if (::fstat(content.get(), &file.status) != 0)
    return Error::from_errno(errno, "read a here-document");
  file.status.st_mode = S_IFREG | 0644;
  if (const auto now = latest_time()) file.status.st_mtim = {*now, 0};
  const std::string target = plain_path(path);
  const auto slash = target.rfind('/');
  if (slash != std::string::npos) SPC_TRY(make_directory_in(image, target.substr(0, slash)));
  return Copier(image, copy).put(file, target);
}

}  // namespace spc::tool
