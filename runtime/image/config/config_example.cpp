#include "image/config/config_example.hpp"

#include <cctype>
#include <type_traits>
#include <variant>

#include "image/config/config.hpp"

namespace spc {
namespace {

/// The default as TOML writes it. A size is a text there, whatever the program makes of it.
template <typename Owner>
std::string default_of(const KeyRow<Owner>& row) {
  const auto written = [&]<typename Value>(Value Owner::*) -> std::string {
    if (std::is_same_v<Value, std::vector<std::string>>) return "[]";
    if (std::is_integral_v<Value> && row.check == nullptr) return row.default_text;
    return "\"" + std::string(row.default_text) + "\"";
  };
  return std::visit(written, row.sink);
}

template <typename Owner>
void add(std::string& text, const KeyRow<Owner>& row) {
  std::string meaning = row.meaning;
  meaning[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(meaning[0])));
  const std::string type = row.type;
  text += "\n# " + meaning + (type == "yes or no" ? "." : " (" + type + ").") + "\n";
  text += "#" + std::string(row.name) + " = " + default_of(row) + "\n";
}

}  // namespace

std::string config_example() {
  std::string text =
      "# spank-container configuration: /etc/spank-container/config.toml, see "
      "spank-container.conf(5).\n"
      "# Every key is here, commented out, with its default. Use the same file on every node and "
      "submit\n"
      "# host. It must be owned by root and writable by root only.\n";
  for (const auto& row : kConfigKeys) add(text, row);
  for (const auto& row : kSiteKeys) add(text, row);
  text += "\n# The image store.\n#[store]\n";
  for (const auto& row : kStoreKeys) add(text, row);
  text += "\n# A store of blobs for all nodes.\n#[shared]\n";
  for (const auto& row : kSharedKeys) add(text, row);
  text += "\n# How the nodes of a step take an image from each other.\n#[peers]\n";
  for (const auto& row : kPeersKeys) add(text, row);
  text +=
      "\n# What all nodes have, for check_at_submit; as well [partitions.\"NAME\"] and "
      "[features.\"NAME\"].\n#[nodes]\n";
  for (const auto& row : kNodesKeys) add(text, row);
  text += "\n# One registry.\n#[registries.\"registry.example.org:5000\"]\n";
  for (const auto& row : kRegistryKeys) add(text, row);
  return text;
}

}  // namespace spc
