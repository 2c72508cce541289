#include "hook_engine/enroot_fstab.hpp"

#include <sys/mount.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace spc {
namespace {

constexpr std::string_view kBlanks = " \t\r";

struct Option {
  std::string_view name;
  unsigned long flag;
  bool clears = false;
};

// mount(8), "filesystem-independent mount options".
constexpr std::array<Option, 35> kFlags{{{"async", MS_SYNCHRONOUS, true},
                                         {"atime", MS_NOATIME, true},
                                         {"bind", MS_BIND},
                                         {"dev", MS_NODEV, true},
                                         {"diratime", MS_NODIRATIME, true},
                                         {"dirsync", MS_DIRSYNC},
                                         {"exec", MS_NOEXEC, true},
                                         {"iversion", MS_I_VERSION},
                                         {"lazytime", MS_LAZYTIME},
                                         {"loud", MS_SILENT, true},
                                         {"mand", MS_MANDLOCK},
                                         {"noatime", MS_NOATIME},
                                         {"nodev", MS_NODEV},
                                         {"nodiratime", MS_NODIRATIME},
                                         {"noexec", MS_NOEXEC},
                                         {"noiversion", MS_I_VERSION, true},
                                         {"nolazytime", MS_LAZYTIME, true},
                                         {"nomand", MS_MANDLOCK, true},
                                         {"norelatime", MS_RELATIME, true},
                                         {"nostrictatime", MS_STRICTATIME, true},
                                         {"nosuid", MS_NOSUID},
                                         {"rbind", MS_BIND | MS_REC},
                                         {"relatime", MS_RELATIME},
                                         {"remount", MS_REMOUNT},
                                         {"ro", MS_RDONLY},
                                         {"rw", MS_RDONLY, true},
                                         {"silent", MS_SILENT},
                                         {"strictatime", MS_STRICTATIME},
                                         {"suid", MS_NOSUID, true},
                                         {"sync", MS_SYNCHRONOUS},
                                         {"x-move", MS_MOVE},
                                         {"nosymfollow", 256},
                                         {"symfollow", 256, true},
                                         {"defaults", 0},
                                         {"auto", 0}}};

constexpr std::array<Option, 8> kPropagation{{{"private", MS_PRIVATE},
                                              {"rprivate", MS_PRIVATE | MS_REC},
                                              {"shared", MS_SHARED},
                                              {"rshared", MS_SHARED | MS_REC},
                                              {"slave", MS_SLAVE},
                                              {"rslave", MS_SLAVE | MS_REC},
                                              {"unbindable", MS_UNBINDABLE},
                                              {"runbindable", MS_UNBINDABLE | MS_REC}}};

/// For the tools around fstab, and what is handled by name.
constexpr std::array<std::string_view, 15> kOthers{"group",   "noauto",       "nogroup",       "noowner",       "nouser",
                                                   "nousers", "owner",        "user",          "users",         "nofail",
                                                   "_netdev", "x-create=dir", "x-create=file", "x-create=auto", "x-detach"};

template <typename Options>
const Option* option_in(const Options& options, std::string_view name) {
  const auto found = std::find_if(options.begin(), options.end(), [&](const Option& option) { return option.name == name; });
  return found == options.end() ? nullptr : &*found;
}

/// Whether a field is a list of options and no path.
bool is_options(std::string_view field) {
  if (field.starts_with('/')) return false;
  return field.find(',') != std::string_view::npos || option_in(kFlags, field) != nullptr ||
         option_in(kPropagation, field) != nullptr || std::find(kOthers.begin(), kOthers.end(), field) != kOthers.end();
}

bool is_octal(char c) { return c >= '0' && c <= '7'; }

std::string without_escapes(std::string_view field) {
  std::string text;
  for (std::size_t i = 0; i < field.size(); ++i) {
    const bool escape = field[i] == '\\' && i + 3 < field.size() && field[i + 1] <= '3' && is_octal(field[i + 1]) &&
                        is_octal(field[i + 2]) && is_octal(field[i + 3]);
    text += escape ? static_cast<char>((field[i + 1] - '0') * 64 + (field[i + 2] - '0') * 8 + (field[i + 3] - '0')) : field[i];
    if (escape) i += 3;
  }
  return text;
}

std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> fields;
  for (;;) {
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.empty()) return fields;
    const auto field = line.substr(0, line.find_first_of(kBlanks));
    fields.push_back(without_escapes(field));
    line.remove_prefix(field.size());
  }
}

void add_option(EnrootFstabLine& line, std::string_view option) {
  using Create = EnrootFstabLine::Create;
  if (const Option* flag = option_in(kFlags, option); flag != nullptr) {
    line.flags = flag->clears ? line.flags & ~flag->flag : line.flags | flag->flag;
    line.quiet = (option == "silent" || line.quiet) && option != "loud";
  } else if (const Option* propagation = option_in(kPropagation, option); propagation != nullptr) {
    line.propagation = propagation->flag;
  } else if (option == "x-create=file") {
    line.create = Create::file;
  } else if (option == "x-create=dir") {
    line.create = Create::directory;
  } else if (option == "x-create=auto") {
    line.create = Create::as_source;
  } else if (option == "x-detach") {
    line.detach = true;
  } else if (option == "nofail") {
    line.no_fail = true;
  } else if (std::find(kOthers.begin(), kOthers.end(), option) == kOthers.end()) {
    line.data.append(line.data.empty() ? "" : ",").append(option);
  }
}

/// All six fields, the missing ones guessed.
Result<std::vector<std::string>> complete(std::vector<std::string> fields, std::string_view line) {
  if (fields.size() == 1 && fields[0].starts_with('/')) fields.push_back(fields[0]);
  if (fields.size() == 2 && is_options(fields[1])) fields = {fields[0], fields[0], "none", fields[1]};
  if (fields.size() == 2 && fields[0] == "tmpfs") fields.insert(fields.end(), {"tmpfs", ""});
  if (fields.size() == 2) fields.insert(fields.end(), {"none", "rbind,x-create=auto"});
  if (fields.size() >= 3 && is_options(fields[2])) {
    fields.insert(fields.begin() + 2, fields[0] == "tmpfs" ? "tmpfs" : "none");
  }
  if (fields.size() < 3 || fields[1].empty()) return Error(ErrorKind::invalid, "invalid fstab entry: " + in_quotes(line));
  fields.resize(6);
  return fields;
}

int number_in(const std::string& field) {
  int number = 0;
  std::from_chars(field.data(), field.data() + field.size(), number);
  return number;
}

Result<EnrootFstabLine> parse_line(std::string_view text) {
  auto fields = SPC_TRY(complete(fields_of(text), text));
  EnrootFstabLine line;
  line.source = std::move(fields[0]);
  line.target = std::move(fields[1]);
  line.type = std::move(fields[2]);
  for (std::string_view rest = fields[3]; !rest.empty();) {
    const auto option = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(option.size() + 1, rest.size()));
    if (!option.empty()) add_option(line, option);
  }
  line.pass = number_in(fields[5]);
  if (line.pass == 0) line.pass = number_in(fields[4]);
  line.flags &= ~static_cast<unsigned long>(MS_SILENT);
  return line;
}

}  // namespace

Result<std::vector<EnrootFstabLine>> parse_enroot_mounts(std::string_view text) {
  std::vector<EnrootFstabLine> lines;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.size() >= kMostOfFstabLine)
      return Error(ErrorKind::invalid, "fstab entry of more than 4095 bytes: " + in_quotes(line));
    const auto first = line.find_first_not_of(kBlanks);
    if (first == std::string_view::npos || line[first] == '#') continue;
    lines.push_back(SPC_TRY(parse_line(line)));
  }
  return lines;
}

}  // namespace spc
