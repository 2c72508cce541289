#include "hooks/cdi/write.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/format.hpp"

namespace spc {
namespace {

void add_texts(Json& object, const char* key, const std::vector<std::string>& texts) {
  if (!texts.empty()) object[key] = texts;
}

Json tree_of(const CdiEdits& edits) {
  Json tree = Json::object();
  add_texts(tree, "env", edits.env);
  for (const CdiDeviceNode& node : edits.device_nodes) {
    Json item{{"path", node.path}};
    if (!node.host_path.empty()) item["hostPath"] = node.host_path;
    tree["deviceNodes"].push_back(std::move(item));
  }
  for (const CdiMount& mount : edits.mounts) {
    Json item{{"hostPath", mount.host_path}, {"containerPath", mount.container_path}};
    add_texts(item, "options", mount.options);
    if (!mount.type.empty()) item["type"] = mount.type;
    tree["mounts"].push_back(std::move(item));
  }
  for (const CdiHook& hook : edits.hooks) {
    Json item{{"hookName", hook.stage}, {"path", hook.path}};
    add_texts(item, "args", hook.args);
    add_texts(item, "env", hook.env);
    if (hook.timeout) item["timeout"] = *hook.timeout;
    tree["hooks"].push_back(std::move(item));
  }
  for (const std::uint64_t gid : edits.additional_gids) tree["additionalGids"].push_back(gid);
  return tree;
}

Json tree_of(const CdiSpec& spec) {
  Json tree{{"cdiVersion", spec.version}, {"kind", spec.kind}, {"devices", Json::array()}};
  for (const CdiDevice& device : spec.devices) {
    tree["devices"].push_back(
        Json{{"name", device.name}, {"containerEdits", tree_of(device.edits)}});
  }
  if (auto edits = tree_of(spec.edits); !edits.empty()) tree["containerEdits"] = std::move(edits);
  return tree;
}

/// Whether no reader of YAML takes it for anything but this text.
bool is_plain(const std::string& text) {
  constexpr std::array<std::string_view, 10> kWords{"true", "false", "yes", "no", "on",
                                                    "off",  "null",  "y",   "n",  "nan"};
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto fits = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') ||
           std::string_view("/_.=@+-").find(c) != std::string_view::npos;
  };
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [&](char c) { return is_letter(c) ? static_cast<char>(c | 0x20) : c; });
  return !text.empty() && (is_letter(text[0]) || text[0] == '/') &&
         std::all_of(text.begin(), text.end(), fits) &&
         std::find(kWords.begin(), kWords.end(), lower) == kWords.end();
}

/// JSON's texts are YAML's in quotes, but for characters that YAML does not let stand there: all
/// but ASCII is escaped.
std::string with_escapes(const std::string& json) {
  std::string text;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const auto first = static_cast<unsigned char>(json[i]);
    if (first < 0x7f) {
      text += json[i];
      continue;
    }
    const std::size_t more = first < 0x80   ? 0
                             : first < 0xe0 ? 1
                             : first < 0xf0 ? 2
                                            : 3;  // it is UTF-8
    unsigned code = more == 0 ? first : first & (0x3fU >> more);
    for (std::size_t byte = 0; byte < more; ++byte)
      code = code << 6 | (static_cast<unsigned char>(json[++i]) & 0x3fU);
    std::array<char, 11> escape{};
    std::snprintf(escape.data(), escape.size(), code > 0xffff ? "\\U%08x" : "\\u%04x", code);
    text += escape.data();
  }
  return text;
}

std::string scalar(const Json& value) {
  return value.is_text() && is_plain(value.as_text()) ? value.as_text() : with_escapes(value.str());
}

/// `begin` stands before the first line, and is as wide as `indent`.
void write(std::string& out, const Json& value, std::string begin, const std::string& indent) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, member] : value.members()) {
      out += begin + key + ":";
      begin = indent;
      if (member.empty()) {
        out += formatted(" {}\n", scalar(member));
        continue;
      }
      out += "\n";
      const std::string deeper = indent + (member.is_array() ? "" : "  ");
      write(out, member, deeper, deeper);
    }
  } else if (value.is_array() && !value.empty()) {
    for (const Json& item : value.elements()) {
      write(out, item, begin + "- ", indent + "  ");
      begin = indent;
    }
  } else {
    out += begin + scalar(value) + "\n";
  }
}

}  // namespace

std::string cdi_to_json(const CdiSpec& spec) {
  return tree_of(spec).str(2, ' ', Json::Order::kept) + "\n";
}

std::string cdi_to_yaml(const CdiSpec& spec) {
  std::string out = "---\n";
  write(out, tree_of(spec), "", "");
  return out;
}

}  // namespace spc
