#include "launch/site/enroot_text.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "base/format.hpp"
#include "hook_engine/enroot_fstab.hpp"

namespace spc {
namespace {

constexpr std::string_view kBlanks = " \t\r";

bool is_name_character(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_name(std::string_view text) {
  return !text.empty() && (text[0] < '0' || text[0] > '9') &&
         std::all_of(text.begin(), text.end(), is_name_character);
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    lines.push_back(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(lines.back().size() + 1, text.size()));
  }
  return lines;
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
  return (type == "proc" && target == "/proc") || (type == "sysfs" && target == "/sys") ||
         target.starts_with("/dev/");
}

/// Options that say what is so in any case, or are for enroot alone.
bool says_nothing(std::string_view option) {
  constexpr std::array<std::string_view, 5> kNothing{"suid", "dev", "rbind", "defaults",
                                                     "x-create=auto"};
  return std::find(kNothing.begin(), kNothing.end(), option) != kNothing.end() ||
         option.starts_with("uid=") || option.starts_with("gid=") ||
         option.starts_with("nr_inodes=") || option.starts_with("huge=");
}

std::string as_flags(const std::vector<std::string>& options) {
  std::string text;
  for (const std::string& option : options) {
    if (!says_nothing(option)) text.append(text.empty() ? ":" : "+").append(option);
  }
  return text;
}

/// Nothing: it is there anyway.
std::optional<EnrootMount> mount_of(std::string_view text, const Variables& variables) {
  EnrootMount mount{.line = 0, .text = std::string(text), .problem = {}};
  const auto line =
      parse_fstab_line(text, [&](std::string field) { return with_variables(field, variables); });
  if (!line) {
    mount.problem = "not an fstab entry";
    return mount;
  }
  const bool is_tree = line->type == "none" || line->type == "bind";
  if (line->source.empty() || !line->target.starts_with('/')) {
    mount.problem = "the target is not an absolute path";
  } else if (line->detach) {
    mount.text = "umount:" + escaped(line->target) + (line->no_fail ? ":nofail" : "");
  } else if (is_tree ? is_standard(line->source, line->target)
                     : is_standard_type(line->type, line->target)) {
    return std::nullopt;
  } else if (line->type == "tmpfs") {
    mount.text = "tmpfs:" + escaped(line->target) + as_flags(line->options);
  } else if (!is_tree) {
    mount.problem = formatted("file systems of type \"{}\" are not supported", line->type);
  } else if (!line->source.starts_with('/')) {
    mount.problem = "the source is not an absolute path";
  } else {
    mount.text = escaped(line->source) + ":" + escaped(line->target) + as_flags(line->options);
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
    if (!std::all_of(value.begin() + static_cast<std::ptrdiff_t>(i) + 2,
                     value.begin() + static_cast<std::ptrdiff_t>(end), is_name_character)) {
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
    if (equals == std::string_view::npos || !is_name(line.substr(0, equals)) ||
        line.starts_with("ENROOT_"))
      continue;
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
    found[variable.substr(0, equals)] =
        with_variables(std::string_view(variable).substr(equals + 1), variables);
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
  for (const auto& [number, line] : fstab_lines(text)) {
    auto mount = mount_of(line, variables);
    if (!mount) continue;
    mount->line = number;
    mounts.push_back(*std::move(mount));
  }
  return mounts;
}

}  // namespace spc
