#include "launch/site/enroot_text.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "base/format.hpp"

namespace spc {
namespace {

constexpr std::string_view kBlanks = " \t\r";

bool is_name_character(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

bool is_name(std::string_view text) {
  return !text.empty() && (text[0] < '0' || text[0] > '9') && std::all_of(text.begin(), text.end(), is_name_character);
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    lines.push_back(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(lines.back().size() + 1, text.size()));
  }
  return lines;
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.empty()) return fields;
    fields.push_back(line.substr(0, line.find_first_of(kBlanks)));
    line.remove_prefix(fields.back().size());
  }
}

std::vector<std::string_view> options_of(std::string_view list) {
  std::vector<std::string_view> options;
  while (!list.empty()) {
    options.push_back(list.substr(0, list.find(',')));
    list.remove_prefix(std::min(options.back().size() + 1, list.size()));
  }
  return options;
}

bool is_octal(char c) { return c >= '0' && c <= '7'; }

/// `\040` and its like.
std::string without_escapes(std::string_view field) {
  std::string text;
  for (std::size_t i = 0; i < field.size(); ++i) {
    if (field[i] == '\\' && i + 3 < field.size() && is_octal(field[i + 1]) && is_octal(field[i + 2]) && is_octal(field[i + 3])) {
      text += static_cast<char>((field[i + 1] - '0') * 64 + (field[i + 2] - '0') * 8 + (field[i + 3] - '0'));
      i += 3;
    } else {
      text += field[i];
    }
  }
  return text;
}

std::string path_of(std::string_view field, const Variables& variables) {
  return with_variables(without_escapes(field), variables);
}

/// A path as --container-mounts takes it.
std::string escaped(std::string_view path) {
  std::string text;
  for (const char c : path) {
    if (std::string_view(",: \t\"'\\").find(c) != std::string_view::npos) text += '\\';
    text += c;
  }
  return text;
}

bool has(const std::vector<std::string_view>& options, std::string_view wanted) {
  return std::find(options.begin(), options.end(), wanted) != options.end();
}

/// Trees of the host that are in every container, and the host's names.
bool is_standard(const std::string& source, const std::string& target) {
  if (source != target) return false;
  for (const char* tree : {"/proc", "/sys", "/dev"}) {
    if (target == tree || target.starts_with(tree + std::string("/"))) return true;
  }
  return target == "/etc/hosts" || target == "/etc/hostname" || target == "/etc/resolv.conf";
}

/// Of a file system that is not a tree of the host: is it there anyway?
bool is_standard_type(std::string_view type, const std::string& target) {
  if (type == "tmpfs") return target == "/tmp" || target == "/dev/shm";
  return (type == "proc" && target == "/proc") || (type == "sysfs" && target == "/sys") || target.starts_with("/dev/");
}

/// Options that say what is so in any case, or are for enroot alone.
bool says_nothing(std::string_view option) {
  constexpr std::array<std::string_view, 4> kNothing{"suid", "dev", "rbind", "defaults"};
  return std::find(kNothing.begin(), kNothing.end(), option) != kNothing.end() || option.starts_with("uid=") ||
         option.starts_with("gid=") || option.starts_with("nr_inodes=") || option.starts_with("huge=");
}

std::string joined(const std::vector<std::string_view>& options) {
  std::string text;
  for (const std::string_view option : options) {
    if (says_nothing(option)) continue;
    text += text.empty() ? ":" : "+";
    text += option;
  }
  return text;
}

/// Nothing: it is there anyway.
std::optional<EnrootMount> mount_of(std::string_view line, const Variables& variables) {
  const auto fields = fields_of(line);
  EnrootMount mount{.line = 0, .text = std::string(line), .problem = {}};
  const std::string source = path_of(fields[0], variables);
  const bool one_word = source == "tmpfs" || source == "umount";
  if (fields.size() == 1 && one_word) {
    mount.problem = "no target";
    return mount;
  }
  const std::string target = fields.size() > 1 ? path_of(fields[1], variables) : source;
  const std::string_view type = fields.size() > 2 ? fields[2] : source == "tmpfs" ? "tmpfs" : "none";
  const auto options = options_of(fields.size() > 3 ? fields[3] : "");
  if (source.empty() || !target.starts_with('/')) {
    mount.problem = "the target is not an absolute path";
  } else if (has(options, "x-detach")) {
    mount.text = "umount:" + escaped(target) + (has(options, "nofail") ? ":nofail" : "");
  } else if (type != "none" && type != "bind" && is_standard_type(type, target)) {
    return std::nullopt;
  } else if (type == "tmpfs") {
    mount.text = "tmpfs:" + escaped(target) + joined(options);
  } else if (type != "none" && type != "bind") {
    mount.problem = formatted("file systems of type \"{}\" are not supported", type);
  } else if (is_standard(source, target)) {
    return std::nullopt;
  } else if (!source.starts_with('/')) {
    mount.problem = "the source is not an absolute path";
  } else {
    mount.text = escaped(source) + ":" + escaped(target) + joined(options);
  }
  return mount;
}

/// Whether a shell would make something else of it than with_variables().
bool needs_shell(std::string_view value) {
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (std::string_view("`|&;<>()\\*?[]").find(value[i]) != std::string_view::npos) return true;
    if (value[i] != '$') continue;
    const auto end = value.find('}', i);
    if (i + 1 == value.size() || value[i + 1] != '{' || end == std::string_view::npos) return true;
    if (!std::all_of(value.begin() + static_cast<std::ptrdiff_t>(i) + 2, value.begin() + static_cast<std::ptrdiff_t>(end),
                     is_name_character)) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string with_variables(std::string_view text, const Variables& variables) {
  std::string replaced;
  while (!text.empty()) {
    const auto begin = text.find("${");
    const auto end = begin == std::string_view::npos ? begin : text.find('}', begin);
    replaced += text.substr(0, end == std::string_view::npos ? end : begin);
    if (end == std::string_view::npos) break;
    const std::string_view name = text.substr(begin + 2, end - begin - 2);
    if (!name.empty() && std::all_of(name.begin(), name.end(), is_name_character)) {
      const auto found = variables.find(std::string(name));
      if (found != variables.end()) replaced += found->second;
    } else {
      replaced += text.substr(begin, end + 1 - begin);
    }
    text.remove_prefix(end + 1);
  }
  return replaced;
}

std::vector<std::string> parse_environment_file(std::string_view text) {
  std::vector<std::string> variables;
  for (std::string_view line : lines_of(text)) {
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    line = line.substr(0, line.find_last_not_of(kBlanks) + 1);
    const auto equals = line.find('=');
    if (equals == std::string_view::npos || !is_name(line.substr(0, equals)) || line.starts_with("ENROOT_")) continue;
    std::string_view value = line.substr(equals + 1);
    if (value.size() >= 2 && (value[0] == '"' || value[0] == '\'') && value.back() == value[0]) {
      value = value.substr(1, value.size() - 2);
    }
    variables.push_back(std::string(line.substr(0, equals + 1)).append(value));
  }
  return variables;
}

Variables parse_environ(std::string_view text, const Variables& variables) {
  Variables found;
  for (const std::string& variable : parse_environment_file(text)) {
    const auto equals = variable.find('=');
    found[variable.substr(0, equals)] = with_variables(std::string_view(variable).substr(equals + 1), variables);
  }
  return found;
}

EnrootConf parse_enroot_conf(std::string_view text, const Variables& variables) {
  EnrootConf conf;
  for (std::string_view line : lines_of(text)) {
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    const std::string_view name = line.substr(0, line.find_first_of(kBlanks));
    if (name.empty() || !std::all_of(name.begin(), name.end(), is_name_character)) continue;
    std::string_view value = line.substr(name.size());
    value.remove_prefix(std::min(value.find_first_not_of(kBlanks), value.size()));
    value = value.substr(0, value.find_last_not_of(kBlanks) + 1);
    if (value.size() >= 2 && (value[0] == '"' || value[0] == '\'') && value.back() == value[0]) {
      value = value.substr(1, value.size() - 2);
    }
    if (needs_shell(value)) {
      conf.needs_shell.emplace_back(name);
    } else {
      conf.values[std::string(name)] = with_variables(value, variables);
    }
  }
  return conf;
}

std::vector<EnrootMount> parse_enroot_fstab(std::string_view text, const Variables& variables) {
  std::vector<EnrootMount> mounts;
  unsigned number = 0;
  for (const std::string_view line : lines_of(text)) {
    ++number;
    const auto first = line.find_first_not_of(kBlanks);
    if (first == std::string_view::npos || line[first] == '#') continue;
    auto mount = mount_of(line, variables);
    if (!mount) continue;
    mount->line = number;
    mounts.push_back(*std::move(mount));
  }
  return mounts;
}

}  // namespace spc
