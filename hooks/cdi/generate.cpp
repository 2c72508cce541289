#include "hooks/cdi/generate.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>

#include "base/format.hpp"

namespace spc {

// --- write ---

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

/// Returns whether every YAML reader reads the unquoted text as this text.
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

/// Escapes all characters but ASCII. A JSON string is also a quoted YAML string, except for
/// characters that YAML does not allow there.
std::string with_escapes(const std::string& json) {
  std::string text;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const auto first = static_cast<unsigned char>(json[i]);
    if (first < 0x7f) {
      text += json[i];
      continue;
    }
    // The text is UTF-8.
    const std::size_t more = first < 0x80 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
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

/// `begin` precedes the first line, and is as wide as `indent`.
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

// --- generate ---

namespace {

constexpr char kHook[] = "/usr/bin/nvidia-cdi-hook";

CdiHook hook(std::string verb, std::vector<std::string> arguments) {
  CdiHook made{.stage = "createContainer",
               .path = kHook,
               .args = {"nvidia-cdi-hook", std::move(verb)},
               .env = {},
               .timeout = {}};
  made.args.insert(made.args.end(), arguments.begin(), arguments.end());
  return made;
}

/// Returns the path under which programs expect the file. A driver in a directory of its own has
/// the layout of the node's root.
std::string inside(const std::string& path, const std::string& driver_root) {
  std::string root = driver_root;
  while (root.ends_with('/')) root.pop_back();
  if (root.empty() || !path.starts_with(root + "/")) return path;
  const std::string rest = path.substr(root.size());
  return rest.starts_with("/usr/") || rest.starts_with("/lib") ? rest : path;
}

CdiMount mount(const std::string& source, const std::string& target, bool socket = false) {
  CdiMount made{.host_path = source,
                .container_path = target,
                .options = {"nosuid", "nodev", "rbind", "rprivate"},
                .type = {}};
  if (socket) {
    made.options.emplace_back("noexec");
  } else {
    made.options.insert(made.options.begin(), "ro");
  }
  return made;
}

void add_node(CdiEdits& edits, const std::string& path) {
  edits.device_nodes.push_back({.path = path, .host_path = {}});
}

CdiEdits edits_of(const NvidiaGpu& gpu) {
  CdiEdits edits;
  add_node(edits, gpu.node);
  for (const std::string& node : gpu.dri) add_node(edits, node);
  return edits;
}

CdiEdits edits_of(const NvidiaGpu& gpu, const NvidiaMig& part) {
  CdiEdits edits;
  for (const std::string* node : {&gpu.node, &part.gpu_instance_node, &part.compute_instance_node})
    add_node(edits, *node);
  return edits;
}

/// Returns arguments for links that programs open and that are no sonames: pkg/nvcdi of
/// nvidia-container-toolkit.
std::vector<std::string> links_of(const NvidiaLibrary& library, const std::string& directory) {
  const std::string stem = library.file.substr(0, library.file.find(".so"));
  const auto link = [&](const std::string& target, const std::string& name) {
    return std::vector<std::string>{"--link", target + "::" + directory + "/" + name};
  };
  if (stem == "libcuda") return link("libcuda.so.1", "libcuda.so");
  if (stem == "libnvidia-opticalflow")
    return link("libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so");
  if (stem == "libGLX_nvidia") return link(library.file, "libGLX_indirect.so.0");
  if (stem == "libnvidia-vulkan-producer")
    return link(library.file, "libnvidia-vulkan-producer.so");
  // libvdpau opens it by this name.
  if (library.folder == "vdpau") return link(library.file, stem + ".so.1");
  if (stem == "libnvidia-allocator")
    return link("../libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so");
  return {};
}

void add_libraries(CdiEdits& edits, const NvidiaDriver& driver, const std::string& driver_root) {
  std::vector<std::string> links;
  std::vector<std::string> folders;
  for (const NvidiaLibrary& library : driver.libraries) {
    if (library.is_32_bit) continue;  // as in nvidia-ctk's files
    const std::string target = inside(library.path, driver_root);
    const std::string directory = target.substr(0, target.rfind('/'));
    edits.mounts.push_back(mount(library.path, target));
    for (std::string& word : links_of(library, directory)) links.push_back(std::move(word));
    if (!library.soname.empty() &&
        std::find(folders.begin(), folders.end(), directory) == folders.end())
      folders.push_back(directory);
  }
  if (!links.empty()) edits.hooks.push_back(hook("create-symlinks", links));
  edits.hooks.push_back(hook("enable-cuda-compat", {"--host-driver-version=" + driver.version}));
  if (folders.empty()) return;
  std::vector<std::string> words;
  for (const std::string& folder : folders) words.insert(words.end(), {"--folder", folder});
  edits.hooks.push_back(hook("update-ldcache", words));
}

}  // namespace

CdiSpec nvidia_cdi_spec(const NvidiaDriver& driver, const std::string& driver_root) {
  CdiSpec spec{.version = "0.5.0", .kind = "nvidia.com/gpu", .devices = {}, .edits = {}};
  // Another runtime's hook must not inject the GPUs a second time.
  spec.edits.env.emplace_back("NVIDIA_VISIBLE_DEVICES=void");
  for (const NvidiaFile& node : driver.control_nodes) add_node(spec.edits, node.path);
  add_libraries(spec.edits, driver, driver_root);
  for (const auto* files : {&driver.binaries, &driver.firmware, &driver.config_files}) {
    for (const NvidiaFile& file : *files)
      spec.edits.mounts.push_back(mount(file.path, file.target));
  }
  for (const NvidiaFile& socket : driver.sockets)
    spec.edits.mounts.push_back(mount(socket.path, socket.target, true));
  spec.edits.hooks.push_back(hook("disable-device-node-modification", {}));

  CdiEdits all;
  for (std::size_t i = 0; i < driver.gpus.size(); ++i) {
    const NvidiaGpu& gpu = driver.gpus[i];
    const std::string number = std::to_string(i);
    for (std::size_t part = 0; part < gpu.migs.size(); ++part) {
      spec.devices.push_back({number + ":" + std::to_string(part), edits_of(gpu, gpu.migs[part])});
      all.append(spec.devices.back().edits);
    }
    if (!gpu.migs.empty()) continue;  // only the partitions can compute
    spec.devices.push_back({number, edits_of(gpu)});
    if (!gpu.uuid.empty()) spec.devices.push_back({gpu.uuid, edits_of(gpu)});
    all.append(spec.devices.back().edits);
  }
  if (!spec.devices.empty()) spec.devices.push_back({"all", std::move(all)});
  return spec;
}

}  // namespace spc
