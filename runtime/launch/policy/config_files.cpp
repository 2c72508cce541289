#include "launch/policy/config_files.hpp"

#include <algorithm>

#include "base/directory.hpp"
#include "base/file.hpp"
#include "base/trusted_file.hpp"

namespace spc {
namespace {

constexpr char kWhatItIs[] = "configuration";
constexpr std::size_t kMostOfAFile = 1 << 20;

Result<void> add_file(std::vector<ConfigFile>& files, const std::string& path, uid_t owner) {
  const auto file = open_trusted_file(path, kWhatItIs, owner);
  if (!file && file.error().kind() == ErrorKind::not_found) return {};
  if (!file) return file.error();
  auto text =
      SPC_TRY_DURING(kWhatItIs + (" " + in_quotes(path)), read_file(file->get(), kMostOfAFile));
  files.push_back({path, std::move(text)});
  return {};
}

/// Sorted as names are in the C locale. Editors' and packages' leftovers do not end with .toml.
Result<std::vector<std::string>> drop_ins(const std::string& path, uid_t owner) {
  auto directory = open_trusted_directory(path, kWhatItIs, owner);
  std::vector<std::string> names;
  if (!directory && directory.error().kind() == ErrorKind::not_found) return names;
  if (!directory) return directory.error();
  DirectoryReader entries(*std::move(directory));
  while (entries.next()) {
    if (entries.name().ends_with(".toml") && !entries.name().starts_with('.'))
      names.push_back(path + "/" + entries.c_name());
  }
  if (entries.error() != 0) return Error::from_errno(entries.error(), "read " + in_quotes(path));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Result<std::vector<ConfigFile>> read_config_files(const std::string& path, uid_t owner) {
  std::vector<ConfigFile> files;
  SPC_TRY(add_file(files, path, owner));
  constexpr std::string_view kEnd = ".toml";
  if (!path.ends_with(kEnd)) return files;
  for (const std::string& file :
       SPC_TRY(drop_ins(path.substr(0, path.size() - kEnd.size()) + ".d", owner))) {
    SPC_TRY(add_file(files, file, owner));
  }
  return files;
}

}  // namespace spc
