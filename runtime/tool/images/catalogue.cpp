#include "tool/images/catalogue.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/directory.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "launch/policy/plain_toml.hpp"

namespace spc::tool {
namespace {

constexpr std::string_view kEnding = ".toml";
constexpr std::size_t kMaxFile = 64 << 10;

std::string directory_of_catalogue() {
  const std::string config = SPC_CONFIG_FILE;
  return config.substr(0, config.rfind('/')) + "/catalogue.d";
}

Result<CatalogueEntry> entry_in(int file, const std::string& path) {
  const auto wrong = [&](const std::string& why) {
    return Error(ErrorKind::invalid, formatted("catalogue {}: {}", in_quotes(path), why));
  };
  const std::string text =
      SPC_TRY_DURING("catalogue " + in_quotes(path), read_file(file, kMaxFile));
  const auto entries = read_plain_toml(text);
  if (!entries) return wrong("is not a file of plain TOML");
  CatalogueEntry found;
  for (const PlainEntry& entry : *entries) {
    std::string* const into = entry.key == "image"         ? &found.image
                              : entry.key == "description" ? &found.description
                                                           : nullptr;
    if (into == nullptr || !entry.table.empty() || entry.kind != PlainEntry::Kind::text) {
      return wrong(formatted("{} is no key with a text", in_quotes(entry.key)));
    }
    *into = entry.texts.front();
  }
  if (found.image.empty()) return wrong("has no image");
  return found;
}

}  // namespace

Result<std::vector<CatalogueEntry>> read_catalogue() {
  const std::string directory = directory_of_catalogue();
  std::vector<CatalogueEntry> catalogue;
  DirectoryReader files(directory);
  while (files.next()) {
    const auto file_name = files.name();
    if (file_name.starts_with('.') || !file_name.ends_with(kEnding) ||
        file_name.size() == kEnding.size())
      continue;
    const std::string path = directory + "/" + std::string(file_name);
    const UniqueFd file(
        ::openat(files.descriptor(), files.c_name(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file) return Error::from_errno(errno, "open " + in_quotes(path));
    auto entry = SPC_TRY(entry_in(file.get(), path));
    entry.name = file_name.substr(0, file_name.size() - kEnding.size());
    catalogue.push_back(std::move(entry));
  }
  if (files.error() != 0 && files.error() != ENOENT)
    return Error::from_errno(files.error(), "read " + in_quotes(directory));
  std::sort(catalogue.begin(), catalogue.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return catalogue;
}

}  // namespace spc::tool
