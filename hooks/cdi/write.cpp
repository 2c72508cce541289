#include "hooks/cdi/write.hpp"

#include <algorithm>
#include <array>

namespace spc {
namespace {

using Json = nlohmann::ordered_json;

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
  if (!edits.additional_gids.empty()) tree["additionalGids"] = edits.additional_gids;
  return tree;
}

Json tree_of(const CdiSpec& spec) {
  Json tree{{"cdiVersion", spec.version}, {"kind", spec.kind}, {"devices", Json::array()}};
  for (const CdiDevice& device : spec.devices) {
    tree["devices"].push_back({{"name", device.name}, {"containerEdits", tree_of(device.edits)}});
  }
  if (auto edits = tree_of(spec.edits); !edits.empty()) tree["containerEdits"] = std::move(edits);
  return tree;
}

/// Whether no reader of YAML takes it for anything but this text.
bool is_plain(const std::string& text) {
  constexpr std::array<std::string_view, 10> kWords{"true", "false", "yes", "no", "on", "off", "null", "y", "n", "nan"};
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto fits = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || std::string_view("/_.=@+-").find(c) != std::string_view::npos;
  };
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [&](char c) { return is_letter(c) ? static_cast<char>(c | 0x20) : c; });
  return !text.empty() && (is_letter(text[0]) || text[0] == '/') && std::all_of(text.begin(), text.end(), fits) &&
         std::find(kWords.begin(), kWords.end(), lower) == kWords.end();
}

std::string scalar(const Json& value) {
  if (value.is_string() && is_plain(value.get_ref<const std::string&>())) return value.get<std::string>();
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);  // JSON's texts are YAML's in quotes
}

/// `begin` stands before the first line, and is as wide as `indent`.
void write(std::string& out, const Json& value, std::string begin, const std::string& indent) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, member] : value.items()) {
      out += begin + key + ":";
      begin = indent;
      const bool nested = (member.is_object() || member.is_array()) && !member.empty();
      if (!nested) {
        out += " " + scalar(member) + "\n";
        continue;
      }
      out += "\n";
      const std::string deeper = indent + (member.is_array() ? "" : "  ");
      write(out, member, deeper, deeper);
    }
  } else if (value.is_array() && !value.empty()) {
    for (const Json& item : value) {
      write(out, item, begin + "- ", indent + "  ");
      begin = indent;
    }
  } else {
    out += begin + scalar(value) + "\n";
  }
}

}  // namespace

std::string cdi_to_json(const CdiSpec& spec) { return tree_of(spec).dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string cdi_to_yaml(const CdiSpec& spec) {
  std::string out = "---\n";
  write(out, tree_of(spec), "", "");
  return out;
}

}  // namespace spc
