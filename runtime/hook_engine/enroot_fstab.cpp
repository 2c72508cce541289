#include "hook_engine/enroot_fstab.hpp"

#include <algorithm>
#include <charconv>

#include "base/text.hpp"

namespace spc {
namespace {

constexpr std::string_view kBlanks = " \t\r";

/// Whether a field is a list of options and no path.
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

/// All six fields, the missing ones guessed.
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
    const bool is_for_programs = option.starts_with("x-");  // mount(8): nothing for the kernel
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
