#include "settings.hpp"

#include <algorithm>
#include <string_view>

namespace spank_container {
namespace {

struct Key {
  std::string_view name;
  std::string_view values;  ///< allowed ones, between bars; "": any
  bool has_effect = true;   ///< false: of pyxis, and without meaning here
};
constexpr std::string_view kBool = "|1|true|yes|y|0|false|no|n|";
constexpr Key kKeys[] = {
    {"messages", "|own|pyxis|"},
    {"container_scope", "|global|job|"},
    {"entrypoint", "|no|node|task|"},
    {"batch", "|script|steps|"},
    {"slurm", kBool},
    {"remap_root", kBool},
    {"importer", ""},
    {"execute_entrypoint", kBool},
    {"sbatch_support", kBool},
    {"runtime_path", "", false},
    {"use_enroot_load", kBool, false},
    {"use_squashfuse", kBool, false},
};

std::string_view value_in(std::string_view word) {
  return word.substr(std::min(word.find('=') + 1, word.size()));
}

/// nullptr: there is no such key, or the value is not allowed.
const Key* key_of(std::string_view word) {
  const std::string_view name = word.substr(0, word.find('='));
  for (const Key& key : kKeys) {
    const std::string allowed = "|" + std::string(value_in(word)) + "|";
    if (key.name != name || name.size() == word.size()) continue;
    const bool is_one_of_them = word.find('|') == std::string_view::npos &&
                                key.values.find(allowed) != std::string_view::npos;
    return key.values.empty() || is_one_of_them ? &key : nullptr;
  }
  return nullptr;
}

bool is_true(std::string_view value) {
  return value == "1" || value.starts_with('t') || value.starts_with('y');
}

}  // namespace

Settings read_settings(std::span<const std::string> words) {
  Settings settings;
  for (const std::string& word : words) {
    const Key* key = key_of(word);
    const bool is_on = is_true(value_in(word));
    if (key == nullptr) {
      settings.refused = "plugstack.conf: unknown argument \"" + word +
                         "\" (hint: the administrator must remove it)";
      return settings;
    }
    if (key->name == "sbatch_support") {
      settings.in_allocator = is_on;
    } else if (key->name == "execute_entrypoint") {
      settings.site.push_back(is_on ? "entrypoint=node" : "entrypoint=no");
    } else if (key->values == kBool && key->has_effect) {
      settings.site.push_back(std::string(key->name) + (is_on ? "=true" : "=false"));
    } else if (key->has_effect) {
      settings.site.push_back(word);
    }
  }
  return settings;
}

}  // namespace spank_container
