#include "hooks/cdi/spec.hpp"

#include <yaml.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <new>
#include <set>
#include <string>

#include "base/format.hpp"
#include "base/text.hpp"
#include "hooks/cdi/names.hpp"

namespace spc {

// --- document ---

Result<CdiDocument> parse_cdi_document(std::string_view text) {
  if (text.size() > kCdiLimits.bytes) return Error(ErrorKind::invalid, "is larger than 1 MiB");
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return Error(ErrorKind::corrupt, "is empty");
  CdiDocument document;
  document.from_yaml = text[first] != '{';
  document.tree =
      SPC_TRY(document.from_yaml ? parse_cdi_yaml(text) : Json::parse(text, kCdiLimits));
  return document;
}

// --- spec ---

namespace {

constexpr std::array<std::string_view, 8> kVersions{"0.3.0", "0.4.0", "0.5.0", "0.6.0",
                                                    "0.7.0", "0.8.0", "1.0.0", "1.1.0"};

/// Indices into kVersions.
enum Since : std::size_t { v03, v04, v05, v06, v07, v08, v10, v11 };

Error wrong(const std::string& where, const std::string& why) {
  return Error(ErrorKind::corrupt, formatted("{}: {}", where, why));
}

/// Reads a document, and determines the lowest version that has all members found.
class SpecReader {
 public:
  explicit SpecReader(bool from_yaml) : from_yaml_(from_yaml) {}

  Result<CdiSpec> spec(const Json& tree) {
    SPC_TRY(members(tree, "the file",
                    {"cdiVersion", "kind", "annotations", "devices", "containerEdits"}));
    CdiSpec spec;
    spec.version = SPC_TRY(text(tree, "cdiVersion", "the file"));
    if (spec.version.starts_with('v')) spec.version.erase(0, 1);
    const auto version = std::find(kVersions.begin(), kVersions.end(), spec.version);
    if (version == kVersions.end()) {
      return wrong("cdiVersion", spec.version.empty() ? "is missing"
                                                      : in_quotes(spec.version) +
                                                            " is not known (0.3.0 to 1.1.0 are)");
    }
    spec.kind = SPC_TRY(text(tree, "kind", "the file"));
    if (!is_cdi_kind(spec.kind))
      return wrong("kind", in_quotes(spec.kind) + " is not VENDOR/CLASS");
    if (spec.kind.find('.', spec.kind.find('/')) != std::string::npos)
      needs(v06, "a dot in the class");
    SPC_TRY(annotations(tree, "the file"));
    spec.edits = SPC_TRY(edits_of(tree, "containerEdits"));
    for (const Json& device : *SPC_TRY(list(tree, "devices", "the file")))
      spec.devices.push_back(SPC_TRY(device_of(device)));
    std::set<std::string_view> names;
    for (const CdiDevice& device : spec.devices) {
      if (!names.insert(device.name).second)
        return wrong("devices", in_quotes(device.name) + " is duplicate");
    }
    if (static_cast<std::size_t>(version - kVersions.begin()) < needed_) {
      return wrong("cdiVersion", formatted("{} does not have {}: {} does", spec.version,
                                           needed_for_, kVersions[needed_]));
    }
    return spec;
  }

 private:
  void needs(std::size_t version, const std::string& what) {
    if (version <= needed_) return;
    needed_ = version;
    needed_for_ = what;
  }

  static Result<void> members(const Json& object, const std::string& where,
                              std::initializer_list<std::string_view> known) {
    if (!object.is_object()) return wrong(where, "is not a map");
    for (const auto& [key, value] : object.members()) {
      if (std::find(known.begin(), known.end(), key) == known.end())
        return wrong(where, "unknown member " + in_quotes(key));
    }
    return {};
  }

  [[nodiscard]] Result<std::string> as_text(const Json& value, const std::string& what) const {
    const bool is_number =
        !value.is_text() && !value.is_null() && !value.is_array() && !value.is_object();
    if (is_number && from_yaml_) return value.str();
    if (!value.is_text()) return wrong(what, "is not a string");
    const std::string& text = value.as_text();
    if (text.find('\0') != std::string::npos) return wrong(what, "contains a NUL character");
    return text;
  }

  /// Returns the text; empty if it is missing.
  [[nodiscard]] Result<std::string> text(const Json& object, const char* key,
                                         const std::string& where) const {
    const Json* member = object.find(key);
    return member == nullptr ? std::string() : as_text(*member, formatted("{}: {}", where, key));
  }

  /// Returns the list; empty if it is missing.
  static Result<const Json::Array*> list(const Json& object, const char* key,
                                         const std::string& where) {
    static const Json::Array kNone;
    const Json* member = object.find(key);
    if (member == nullptr) return &kNone;
    if (!member->is_array()) return wrong(formatted("{}: {}", where, key), "is not a list");
    return &member->elements();
  }

  [[nodiscard]] Result<std::vector<std::string>> texts(const Json& object, const char* key,
                                                       const std::string& where) const {
    std::vector<std::string> values;
    for (const Json& item : *SPC_TRY(list(object, key, where)))
      values.push_back(SPC_TRY(as_text(item, formatted("{}: {}", where, key))));
    return values;
  }

  static Result<std::optional<std::uint64_t>> number(const Json& object, const char* key,
                                                     const std::string& where) {
    const Json* member = object.find(key);
    if (member == nullptr) return std::optional<std::uint64_t>();
    if (!member->is_number())
      return wrong(formatted("{}: {}", where, key), "is not a non-negative number");
    return std::optional(member->as_number());
  }

  Result<void> annotations(const Json& object, const std::string& where) {
    const Json* annotations = object.find("annotations");
    if (annotations == nullptr) return {};
    if (!annotations->is_object()) return wrong(where + ": annotations", "is not a map");
    if (!annotations->empty()) needs(v06, "annotations");
    for (const auto& [key, value] : annotations->members())
      SPC_TRY(as_text(value, formatted("{}: annotation {}", where, in_quotes(key))));
    return {};
  }

  Result<CdiDevice> device_of(const Json& tree) {
    SPC_TRY(members(tree, "a device", {"name", "annotations", "containerEdits"}));
    CdiDevice device;
    device.name = SPC_TRY(text(tree, "name", "a device"));
    const std::string where = "device " + in_quotes(device.name);
    if (!is_cdi_device_name(device.name)) return wrong(where, "this is not a device name");
    if (device.name[0] >= '0' && device.name[0] <= '9') needs(v05, "names that begin with a digit");
    SPC_TRY(annotations(tree, where));
    device.edits = SPC_TRY(edits_of(tree, where + ": containerEdits"));
    if (device.edits == CdiEdits()) return wrong(where, "has no containerEdits");
    return device;
  }

  Result<CdiEdits> edits_of(const Json& owner, const std::string& where) {
    CdiEdits edits;
    const Json* found = owner.find("containerEdits");
    if (found == nullptr) return edits;
    const Json& tree = *found;
    SPC_TRY(members(
        tree, where,
        {"env", "deviceNodes", "netDevices", "mounts", "hooks", "additionalGids", "intelRdt"}));
    edits.env = SPC_TRY(texts(tree, "env", where));
    SPC_TRY(check_variables(edits.env, where));
    for (const Json& node : *SPC_TRY(list(tree, "deviceNodes", where))) {
      edits.device_nodes.push_back(SPC_TRY(node_of(node, where + ": device node")));
    }
    for (const Json& mount : *SPC_TRY(list(tree, "mounts", where))) {
      edits.mounts.push_back(SPC_TRY(mount_of(mount, where + ": mount")));
    }
    for (const Json& hook : *SPC_TRY(list(tree, "hooks", where))) {
      edits.hooks.push_back(SPC_TRY(hook_of(hook, where + ": hook")));
    }
    edits.additional_gids = SPC_TRY(groups_of(tree, where));
    edits.net_devices = SPC_TRY(interfaces_of(tree, where));
    if (const Json* rdt = tree.find("intelRdt")) {
      if (!rdt->is_object()) return wrong(where + ": intelRdt", "is not a map");
      needs(v07, "intelRdt");
      edits.intel_rdt = true;
    }
    return edits;
  }

  Result<std::vector<std::uint64_t>> groups_of(const Json& tree, const std::string& where) {
    std::vector<std::uint64_t> groups;
    for (const Json& gid : *SPC_TRY(list(tree, "additionalGids", where))) {
      needs(v07, "additionalGids");
      if (!gid.is_number()) return wrong(where + ": additionalGids", "is not a list of numbers");
      if (gid.as_number() != 0) groups.push_back(gid.as_number());
    }
    return groups;
  }

  Result<std::vector<std::string>> interfaces_of(const Json& tree, const std::string& where) {
    std::vector<std::string> interfaces;
    for (const Json& interface : *SPC_TRY(list(tree, "netDevices", where))) {
      needs(v11, "netDevices");
      SPC_TRY(members(interface, where + ": net device", {"hostInterfaceName", "name"}));
      interfaces.push_back(SPC_TRY(text(interface, "hostInterfaceName", where + ": net device")));
      if (interfaces.back().empty())
        return wrong(where + ": net device", "has no hostInterfaceName");
    }
    return interfaces;
  }

  static Result<void> check_variables(const std::vector<std::string>& variables,
                                      const std::string& where) {
    for (const std::string& variable : variables) {
      const auto equals = variable.find('=');
      if (equals == 0 || equals == std::string::npos)
        return wrong(where + ": env", in_quotes(variable) + " is not NAME=VALUE");
    }
    return {};
  }

  Result<CdiDeviceNode> node_of(const Json& tree, const std::string& kind) {
    SPC_TRY(members(
        tree, kind,
        {"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"}));
    CdiDeviceNode node;
    node.path = SPC_TRY(text(tree, "path", kind));
    const std::string where = formatted("{} {}", kind, in_quotes(node.path));
    node.host_path = SPC_TRY(text(tree, "hostPath", where));
    if (!node.host_path.empty()) needs(v05, "hostPath of device nodes");
    if (!node.path.starts_with('/')) return wrong(where, "the path is not absolute");
    if (!node.host_path.empty() && !node.host_path.starts_with('/'))
      return wrong(where, "hostPath is not absolute");
    const std::string type = SPC_TRY(text(tree, "type", where));
    if (!type.empty() && type != "b" && type != "c" && type != "u" && type != "p") {
      return wrong(where, formatted("type {} is not known", in_quotes(type)));
    }
    // Check these only: the node that appears in the container has numbers, mode and owner of the
    // host's node.
    for (const char* key : {"major", "minor", "fileMode", "uid", "gid"})
      SPC_TRY(number(tree, key, where));
    const std::string permissions = SPC_TRY(text(tree, "permissions", where));
    if (permissions != "none" && permissions.find_first_not_of("rwm") != std::string::npos) {
      return wrong(where,
                   formatted("permissions {} are not of r, w and m", in_quotes(permissions)));
    }
    return node;
  }

  Result<CdiMount> mount_of(const Json& tree, const std::string& kind) {
    SPC_TRY(members(tree, kind, {"hostPath", "containerPath", "options", "type"}));
    CdiMount mount;
    mount.container_path = SPC_TRY(text(tree, "containerPath", kind));
    const std::string where = formatted("{} {}", kind, in_quotes(mount.container_path));
    mount.host_path = SPC_TRY(text(tree, "hostPath", where));
    mount.options = SPC_TRY(texts(tree, "options", where));
    mount.type = SPC_TRY(text(tree, "type", where));
    if (!mount.type.empty()) needs(v04, "type of mounts");
    if (!mount.container_path.starts_with('/'))
      return wrong(where, "containerPath is not absolute");
    if (mount.host_path.empty()) return wrong(where, "hostPath is missing");
    return mount;
  }

  Result<CdiHook> hook_of(const Json& tree, const std::string& kind) {
    SPC_TRY(members(tree, kind, {"hookName", "path", "args", "env", "timeout"}));
    CdiHook hook;
    hook.path = SPC_TRY(text(tree, "path", kind));
    const std::string where = formatted("{} {}", kind, in_quotes(hook.path));
    hook.stage = SPC_TRY(text(tree, "hookName", where));
    hook.args = SPC_TRY(texts(tree, "args", where));
    hook.env = SPC_TRY(texts(tree, "env", where));
    hook.timeout = SPC_TRY(number(tree, "timeout", where));
    constexpr std::array<std::string_view, 6> kStages{
        "prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"};
    if (std::find(kStages.begin(), kStages.end(), hook.stage) == kStages.end()) {
      return wrong(where, formatted("hookName {} is not known", in_quotes(hook.stage)));
    }
    if (!hook.path.starts_with('/')) return wrong(where, "the path is not absolute");
    SPC_TRY(check_variables(hook.env, where));
    return hook;
  }

  bool from_yaml_;
  std::size_t needed_ = v03;
  std::string needed_for_;
};

/// Appends `more` to `all` and replaces elements with the same key.
template <typename T, typename Key>
void replace(std::vector<T>& all, const std::vector<T>& more, Key T::*key) {
  for (const T& one : more) {
    std::erase_if(all, [&](const T& old) { return old.*key == one.*key; });
    all.push_back(one);
  }
}

template <typename T>
void add(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

void CdiEdits::append(const CdiEdits& more) {
  add(env, more.env);
  replace(device_nodes, more.device_nodes, &CdiDeviceNode::path);
  replace(mounts, more.mounts, &CdiMount::container_path);
  add(hooks, more.hooks);
  add(additional_gids, more.additional_gids);
  add(net_devices, more.net_devices);
  intel_rdt = intel_rdt || more.intel_rdt;
}

Result<CdiSpec> read_cdi_spec(const CdiDocument& document) {
  return SpecReader(document.from_yaml).spec(document.tree);
}

Result<CdiSpec> parse_cdi_spec(std::string_view text) {
  const auto document = SPC_TRY(parse_cdi_document(text));
  return read_cdi_spec(document);
}

// --- yaml ---

namespace {

std::string_view text_of(const yaml_event_t& event) {
  return {reinterpret_cast<const char*>(event.data.scalar.value), event.data.scalar.length};
}

/// Converts whole numbers and null like Go's reader of these files (including 0x, 0o and a leading
/// 0). Keeps all other values as text.
Json plain_value(std::string_view text) {
  if (text.empty() || text == "null" || text == "~" || text == "Null" || text == "NULL") return {};
  const bool negative = text.starts_with('-');
  std::string_view digits = text.substr(negative || text.starts_with('+') ? 1 : 0);
  int base = 10;
  if (digits.starts_with("0x") || digits.starts_with("0o")) {
    base = digits[1] == 'x' ? 16 : 8;
    digits.remove_prefix(2);
  } else if (digits.size() > 1 && digits[0] == '0') {
    base = 8;
  }
  std::int64_t number = 0;
  const bool is_number = !digits.starts_with('-') && read_number(digits, number, base);
  return is_number ? Json(negative ? -number : number) : Json(text);
}

struct Event : yaml_event_t {
  Event() : yaml_event_t{} {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { yaml_event_delete(this); }

  [[nodiscard]] bool is_over_lines() const { return start_mark.line != end_mark.line; }
};

/// Builds the tree from libyaml's events, and counts its values.
class YamlReader {
 public:
  explicit YamlReader(std::string_view text) {
    if (yaml_parser_initialize(&parser_) == 0) throw std::bad_alloc();
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()),
                                 text.size());
  }
  YamlReader(const YamlReader&) = delete;
  YamlReader& operator=(const YamlReader&) = delete;
  ~YamlReader() { yaml_parser_delete(&parser_); }

  Result<Json> document() {
    Event event;
    SPC_TRY(next(event));  // the stream start
    Event begin;
    SPC_TRY(next(begin));
    if (begin.type == YAML_STREAM_END_EVENT) return Error(ErrorKind::corrupt, "is empty");
    const auto& start = begin.data.document_start;
    if (start.version_directive != nullptr ||
        start.tag_directives.start != start.tag_directives.end) {
      return unsupported(begin, "a directive");
    }
    Event root;
    SPC_TRY(next(root));
    Json tree = SPC_TRY(value(root, 1));
    Event end;
    SPC_TRY(next(end));
    Event after;
    SPC_TRY(next(after));
    if (after.type != YAML_STREAM_END_EVENT) return unsupported(after, "more than one document");
    return tree;
  }

 private:
  static Error at(const yaml_mark_t& mark, const std::string& why) {
    return Error(ErrorKind::corrupt, formatted("line {}: {}", mark.line + 1, why));
  }
  static Error unsupported(const Event& event, const std::string& what) {
    return at(event.start_mark, "unsupported YAML: " + what);
  }

  Result<void> next(Event& event) {
    if (yaml_parser_parse(&parser_, &event) != 0) return {};
    std::string why = parser_.problem != nullptr ? parser_.problem : "no memory";
    if (parser_.context != nullptr) why += formatted(" ({})", parser_.context);
    if (parser_.error == YAML_READER_ERROR) {
      return Error(ErrorKind::corrupt, formatted("byte {}: {}", parser_.problem_offset, why));
    }
    return at(parser_.problem_mark, why);
  }

  Result<Json> value(const Event& event, std::size_t depth) {
    if (++values_ > kCdiLimits.values) {
      return at(event.start_mark, formatted("more than {} values", kCdiLimits.values));
    }
    switch (event.type) {
      case YAML_SCALAR_EVENT: return scalar(event);
      case YAML_SEQUENCE_START_EVENT: return sequence(event, depth);
      case YAML_MAPPING_START_EVENT: return map(event, depth);
      default: return unsupported(event, "an alias");
    }
  }

  static Result<void> check_properties(const Event& event, const yaml_char_t* anchor,
                                       const yaml_char_t* tag) {
    if (anchor != nullptr) return unsupported(event, "an anchor");
    return tag != nullptr ? Result<void>(unsupported(event, "a tag")) : Result<void>();
  }

  static Result<Json> scalar(const Event& event) {
    const auto& scalar = event.data.scalar;
    SPC_TRY(check_properties(event, scalar.anchor, scalar.tag));
    const bool is_block =
        scalar.style == YAML_LITERAL_SCALAR_STYLE || scalar.style == YAML_FOLDED_SCALAR_STYLE;
    if (is_block || event.is_over_lines()) return unsupported(event, "a multi-line string");
    return scalar.style == YAML_PLAIN_SCALAR_STYLE ? plain_value(text_of(event))
                                                   : Json(text_of(event));
  }

  static Result<void> check_depth(const Event& event, std::size_t depth) {
    if (depth <= kCdiLimits.depth) return {};
    return at(event.start_mark, formatted("is nested more than {} levels deep", kCdiLimits.depth));
  }

  Result<Json> sequence(const Event& begin, std::size_t depth) {
    const auto& start = begin.data.sequence_start;
    SPC_TRY(check_properties(begin, start.anchor, start.tag));
    SPC_TRY(check_depth(begin, depth));
    Json::Array items;
    for (;;) {
      Event event;
      SPC_TRY(next(event));
      if (event.type == YAML_SEQUENCE_END_EVENT) return Json::array(std::move(items));
      if (start.style == YAML_FLOW_SEQUENCE_STYLE) return unsupported(begin, "a flow collection");
      items.push_back(SPC_TRY(value(event, depth + 1)));
    }
  }

  Result<Json> map(const Event& begin, std::size_t depth) {
    const auto& start = begin.data.mapping_start;
    SPC_TRY(check_properties(begin, start.anchor, start.tag));
    SPC_TRY(check_depth(begin, depth));
    std::set<std::string> keys;
    Json::Object members;
    for (;;) {
      Event event;
      SPC_TRY(next(event));
      if (event.type == YAML_MAPPING_END_EVENT) return Json::object(std::move(members));
      if (start.style == YAML_FLOW_MAPPING_STYLE) return unsupported(begin, "a flow collection");
      if (event.type == YAML_ALIAS_EVENT) return unsupported(event, "an alias");
      if (event.type != YAML_SCALAR_EVENT) return unsupported(event, "a key that is not a string");
      SPC_TRY(scalar(event));
      std::string key(text_of(event));
      if (!keys.insert(key).second)
        return at(event.start_mark, formatted("key {} is given twice", in_quotes(key)));
      Event member;
      SPC_TRY(next(member));
      Json given = SPC_TRY(value(member, depth + 1));
      members.push_back({std::move(key), std::move(given)});
    }
  }

  yaml_parser_t parser_{};
  std::size_t values_ = 0;
};

}  // namespace

Result<Json> parse_cdi_yaml(std::string_view text) { return YamlReader(text).document(); }

}  // namespace spc
