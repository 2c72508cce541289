#include "hook_engine/enroot_fstab.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "protocol/task.hpp"

namespace spc {

// --- root path ---

namespace {

UniqueFd open_below(int root, const std::string& path, int flags) {
  return open_resolved(root, path.empty() ? "." : path.c_str(), flags | O_PATH,
                       RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
}

/// Returns whether the path as written leaves the root. Links may contain any number of `..` and
/// still stay inside.
bool climbs_out(std::string_view path) {
  int depth = 0;
  while (!path.empty()) {
    const auto part = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(part.size() + 1, path.size()));
    if (part.empty() || part == ".") continue;
    depth += part == ".." ? -1 : 1;
    if (depth < 0) return true;
  }
  return false;
}

Error error_at(const std::string& path, int err) {
  return Error::from_errno(err, formatted("open {} in the container", in_quotes(path)));
}

}  // namespace

Result<UniqueFd> open_in_root(int root, const std::string& path, MakeTarget make) {
  if (climbs_out(path)) return error_at(path, EXDEV);
  std::string left = path;
  std::string done;  // exists; a directory
  for (int links = 0; links < 40;) {
    while (!left.empty() && left.front() == '/') left.erase(0, 1);
    const std::string part = left.substr(0, left.find('/'));
    const std::string rest = left.substr(std::min(part.size() + 1, left.size()));
    const bool last = rest.find_first_not_of('/') == std::string::npos;
    const std::string here = done + "/" + part;
    UniqueFd found = open_below(root, here, 0);
    if (found && last) return found;
    if (!found) {
      if (errno != ENOENT) return error_at(path, errno);
      const UniqueFd parent = open_below(root, done, O_DIRECTORY);
      if (!parent) return error_at(path, errno);
      char link[PATH_MAX];
      const ssize_t size = ::readlinkat(parent.get(), part.c_str(), link, sizeof link);
      if (size > 0) {
        ++links;
        const std::string next(link, static_cast<std::size_t>(size));
        left = next + "/" + rest;
        if (next[0] == '/') done.clear();
        continue;
      }
      if (make == MakeTarget::no) return error_at(path, ENOENT);
      bool made = false;
      if (last && make == MakeTarget::file) {
        made = bool(UniqueFd(::openat(parent.get(), part.c_str(),
                                      O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644)));
      } else {
        made = ::mkdirat(parent.get(), part.c_str(), 0755) == 0;
      }
      if (!made && errno != EEXIST)
        return Error::from_errno(errno, formatted("make {} in the container", in_quotes(path)));
      if (!made) ++links;
      continue;
    }
    done = here;
    left = rest;
  }
  return error_at(path, ELOOP);
}

// --- mount options ---

namespace {

struct Option {
  std::string_view name;
  unsigned long set = 0;
  unsigned long clear = 0;
};

// Options of mount(8), "filesystem-independent mount options". The kernel ignores the last ones.
constexpr Option kFlags[] = {{"async", 0, MS_SYNCHRONOUS},
                             {"atime", 0, MS_NOATIME},
                             {"bind", MS_BIND},
                             {"dev", 0, MS_NODEV},
                             {"diratime", 0, MS_NODIRATIME},
                             {"dirsync", MS_DIRSYNC},
                             {"exec", 0, MS_NOEXEC},
                             {"iversion", MS_I_VERSION},
                             {"lazytime", MS_LAZYTIME},
                             {"mand", MS_MANDLOCK},
                             {"noatime", MS_NOATIME},
                             {"nodev", MS_NODEV},
                             {"nodiratime", MS_NODIRATIME},
                             {"noexec", MS_NOEXEC},
                             {"noiversion", 0, MS_I_VERSION},
                             {"nolazytime", 0, MS_LAZYTIME},
                             {"nomand", 0, MS_MANDLOCK},
                             {"norelatime", 0, MS_RELATIME},
                             {"nostrictatime", 0, MS_STRICTATIME},
                             {"nosuid", MS_NOSUID},
                             {"nosymfollow", MS_NOSYMFOLLOW},
                             {"rbind", MS_BIND | MS_REC},
                             {"relatime", MS_RELATIME},
                             {"remount", MS_REMOUNT},
                             {"ro", MS_RDONLY},
                             {"rw", 0, MS_RDONLY},
                             {"strictatime", MS_STRICTATIME},
                             {"suid", 0, MS_NOSUID},
                             {"symfollow", 0, MS_NOSYMFOLLOW},
                             {"sync", MS_SYNCHRONOUS},
                             {"x-move", MS_MOVE},
                             {"_netdev"},
                             {"auto"},
                             {"defaults"},
                             {"group"},
                             {"noauto"},
                             {"nogroup"},
                             {"noowner"},
                             {"nouser"},
                             {"nousers"},
                             {"owner"},
                             {"user"},
                             {"users"}};

constexpr Option kPropagation[] = {
    {"private", MS_PRIVATE},       {"rprivate", MS_PRIVATE | MS_REC},
    {"shared", MS_SHARED},         {"rshared", MS_SHARED | MS_REC},
    {"slave", MS_SLAVE},           {"rslave", MS_SLAVE | MS_REC},
    {"unbindable", MS_UNBINDABLE}, {"runbindable", MS_UNBINDABLE | MS_REC}};

const Option* option_in(const auto& options, std::string_view name) {
  const auto* found = std::ranges::find(options, name, &Option::name);
  return found == std::end(options) ? nullptr : found;
}

}  // namespace

bool MountOptions::add(std::string_view option) {
  if (const Option* flag = option_in(kFlags, option)) {
    flags = (flags & ~flag->clear) | flag->set;
  } else if (const Option* one = option_in(kPropagation, option)) {
    propagation = one->set;
  } else if (option == "x-create=file") {
    create = Create::file;
  } else if (option == "x-create=dir") {
    create = Create::directory;
  } else if (option == "x-create=auto") {
    create = Create::as_source;
  } else if (option == "x-detach") {
    detach = true;
  } else if (option == "nofail") {
    no_fail = true;
  } else if (option == "silent" || option == "loud") {
    quiet = option == "silent";
  } else {
    return false;
  }
  return true;
}

bool is_mount_option(std::string_view word) { return MountOptions().add(word); }

std::uint32_t source_flags_of(const MountOptions& options) {
  std::uint32_t flags = 0;
  if ((options.flags & MS_RDONLY) != 0) flags |= TaskMessage::source_read_only;
  if ((options.flags & MS_NOEXEC) != 0) flags |= TaskMessage::source_no_exec;
  if ((options.flags & MS_NOSYMFOLLOW) != 0) flags |= TaskMessage::source_no_symlinks;
  if ((options.propagation & MS_PRIVATE) != 0) flags |= TaskMessage::source_private;
  if ((options.propagation & MS_UNBINDABLE) != 0) flags |= TaskMessage::source_unbindable;
  return flags;
}

// --- enroot fstab ---

namespace {

constexpr std::string_view kBlanks = " \t\r";

/// Returns whether a field is a list of options rather than a path.
bool is_options(std::string_view field) {
  return !field.starts_with('/') &&
         (field.find(',') != std::string_view::npos || is_mount_option(field));
}

bool is_octal(char c) { return c >= '0' && c <= '7'; }

std::string without_escapes(std::string_view field) {
  std::string text;
  for (std::size_t i = 0; i < field.size(); ++i) {
    const bool escape = field[i] == '\\' && i + 3 < field.size() && field[i + 1] <= '3' &&
                        is_octal(field[i + 1]) && is_octal(field[i + 2]) && is_octal(field[i + 3]);
    text += escape ? static_cast<char>((field[i + 1] - '0') * 64 + (field[i + 2] - '0') * 8 +
                                       (field[i + 3] - '0'))
                   : field[i];
    if (escape) i += 3;
  }
  return text;
}

std::vector<std::string> fields_of(std::string_view line, const ExpandField& expand) {
  std::vector<std::string> fields;
  for (;;) {
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.empty()) return fields;
    const auto field = line.substr(0, line.find_first_of(kBlanks));
    fields.push_back(expand ? expand(without_escapes(field)) : without_escapes(field));
    line.remove_prefix(field.size());
  }
}

/// Returns all six fields, with defaults for missing ones.
Result<std::vector<std::string>> complete(std::vector<std::string> fields, std::string_view line) {
  if (fields.size() == 1 && fields[0].starts_with('/')) fields.push_back(fields[0]);
  if (fields.size() == 2 && is_options(fields[1]))
    fields = {fields[0], fields[0], "none", fields[1]};
  if (fields.size() == 2 && fields[0] == "tmpfs") fields.insert(fields.end(), {"tmpfs", ""});
  if (fields.size() == 2) fields.insert(fields.end(), {"none", "rbind,x-create=auto"});
  if (fields.size() >= 3 && is_options(fields[2])) {
    fields.insert(fields.begin() + 2, fields[0] == "tmpfs" ? "tmpfs" : "none");
  }
  const auto has_nul = [](const std::string& field) {
    return field.find('\0') != std::string::npos;
  };  // the kernel would stop there
  if (fields.size() < 3 || fields[1].empty() || std::ranges::any_of(fields, has_nul))
    return Error(ErrorKind::invalid, "invalid fstab entry: " + in_quotes(line));
  fields.resize(6);
  return fields;
}

int number_in(const std::string& field) {
  int number = 0;
  std::from_chars(field.data(), field.data() + field.size(), number);
  return number;
}

}  // namespace

Result<EnrootFstabLine> parse_fstab_line(std::string_view text, const ExpandField& expand) {
  auto fields = SPC_TRY(complete(fields_of(text, expand), text));
  EnrootFstabLine line;
  line.source = std::move(fields[0]);
  line.target = std::move(fields[1]);
  line.type = std::move(fields[2]);
  for (const std::string_view option : split(fields[3], ',')) {
    if (option.empty()) continue;
    line.options.emplace_back(option);
    const bool is_for_programs = option.starts_with("x-");  // mount(8): the kernel ignores it
    if (!line.add(option) && !is_for_programs)
      line.data.append(line.data.empty() ? "" : ",").append(option);
  }
  line.pass = number_in(fields[5]);
  if (line.pass == 0) line.pass = number_in(fields[4]);
  return line;
}

std::vector<std::pair<unsigned, std::string_view>> fstab_lines(std::string_view text) {
  std::vector<std::pair<unsigned, std::string_view>> lines;
  for (unsigned number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto first = line.find_first_not_of(kBlanks);
    if (first != std::string_view::npos && line[first] != '#') lines.emplace_back(number, line);
  }
  return lines;
}

Result<std::vector<EnrootFstabLine>> parse_enroot_mounts(std::string_view text) {
  std::vector<EnrootFstabLine> lines;
  for (const auto& [number, line] : fstab_lines(text)) {
    if (line.size() >= kMostOfFstabLine) {
      return Error(ErrorKind::invalid, "fstab entry of more than 4095 bytes: " + in_quotes(line));
    }
    lines.push_back(SPC_TRY(parse_fstab_line(line)));
  }
  return lines;
}

}  // namespace spc
