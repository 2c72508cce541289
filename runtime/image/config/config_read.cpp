#include <algorithm>

#include "base/directory.hpp"
#include "base/file.hpp"
#include "base/trusted_file.hpp"
#include "image/config/config.hpp"

namespace spc {
namespace {

constexpr char kWhat[] = "configuration";
constexpr std::size_t kMostBytes = 1 << 20;

/// A file that is not there says nothing.
Result<void> add_file(Config& config, const std::string& path, uid_t owner) {
  const auto file = open_trusted_file(path, kWhat, owner);
  if (!file && file.error().kind() == ErrorKind::not_found) return {};
  if (!file) return file.error();
  const std::string text = SPC_TRY_DURING(kWhat + (" " + in_quotes(path)), read_file(file->get(), kMostBytes));
  return add_config(config, text, path);
}

/// Sorted as names are in the C locale. Editors' and packages' leftovers do not end with .toml.
Result<std::vector<std::string>> drop_ins(const std::string& path, uid_t owner) {
  auto directory = open_trusted_directory(path, kWhat, owner);
  std::vector<std::string> names;
  if (!directory && directory.error().kind() == ErrorKind::not_found) return names;
  if (!directory) return directory.error();
  DirectoryReader files(*std::move(directory));
  while (files.next()) {
    if (files.name().ends_with(".toml") && !files.name().starts_with('.')) names.push_back(path + "/" + files.c_name());
  }
  if (files.error() != 0) return Error::from_errno(files.error(), "read " + in_quotes(path));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Result<Config> read_config(const std::string& path, uid_t owner) {
  Config config;
  SPC_TRY(add_file(config, path, owner));
  constexpr std::string_view kEnd = ".toml";
  if (!path.ends_with(kEnd)) return config;
  for (const std::string& file : SPC_TRY(drop_ins(path.substr(0, path.size() - kEnd.size()) + ".d", owner))) {
    SPC_TRY(add_file(config, file, owner));
  }
  return config;
}

}  // namespace spc
