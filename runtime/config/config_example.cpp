// Prints the installed example while the package is built: a config.toml with every key, its
// meaning and its default, commented out.

#include <cctype>
#include <cstdio>

#include "config/config.hpp"

namespace spc {
namespace {

/// Returns the default in TOML notation.
std::string default_of(const Key& key) {
  if (key.kind() == Key::Kind::list) return "[]";
  if (key.kind() == Key::Kind::text) return "\"" + std::string(key.default_text) + "\"";
  return key.default_text;
}

std::string line_of(const Key& key) {
  std::string meaning = key.meaning;
  meaning[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(meaning[0])));
  const std::string type = key.type;
  return "\n# " + meaning + (type == "yes or no" ? "." : " (" + type + ").") + "\n#" + key.name +
         " = " + default_of(key) + "\n";
}

std::string example() {
  std::string text =
      "# spank-container configuration: /etc/spank-container/config.toml, see "
      "spank-container.conf(5).\n"
      "# Every key is here, commented out, with its default. Use the same file on every node and "
      "submit\n"
      "# host. It must be owned by root and writable by root only.\n";
  Config config;
  RegistryConfig registry;
  auto tables = config.tables();
  tables.push_back(
      {"registries.\"registry.example.org:5000\"", "# One registry.", registry.keys()});
  for (const KeyTable& table : tables) {
    if (!table.name.empty())
      text.append("\n").append(table.comment).append("\n#[").append(table.name).append("]\n");
    for (const Key& key : table.keys) text += line_of(key);
  }
  return text;
}

}  // namespace
}  // namespace spc

int main() { return std::fputs(spc::example().c_str(), stdout) < 0 ? 1 : 0; }
