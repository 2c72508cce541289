// CDI files in JSON and YAML. Root owns them, but every step that requests a device reads them.
// outcome 220 refused: a CDI file that is malformed, huge, has a shell or mounts of /, or is not root's

#include "hooks/cdi/generate.hpp"
#include "hooks/cdi/names.hpp"
#include "lib/property.hpp"

using namespace spc;
using namespace spc::fuzz;

namespace {

bool are_same(const CdiSpec& a, const CdiSpec& b) {
  const auto same = [](const CdiDevice& one, const CdiDevice& other) {
    return one.name == other.name && one.edits == other.edits;
  };
  return a.kind == b.kind && a.edits == b.edits &&
         std::equal(a.devices.begin(), a.devices.end(), b.devices.begin(), b.devices.end(), same);
}

}  // namespace

FUZZ_TARGET(cdi) {
  const std::string_view text = text_of(data, size);
  if (const auto name = CdiName::parse(text)) {
    must(name->str() == text, "a name stands for itself");
  } else {
    must_be_readable(name.error());
  }
  auto spec = parse_cdi_spec(text);
  if (!spec) {
    must_be_readable(spec.error());
    return 0;
  }
  must(is_cdi_kind(spec->kind), "the kind is one");
  for (const CdiDevice& device : spec->devices)
    must(is_cdi_device_name(device.name), "devices have names");
  for (const CdiMount& mount : spec->edits.mounts)
    must(mount.container_path.starts_with('/'), "mounts have absolute places");
  for (const CdiDeviceNode& node : spec->edits.device_nodes)
    must(node.path.starts_with('/'), "device nodes have absolute paths");
  // Members that are not serialized.
  spec->edits.net_devices.clear();
  spec->edits.intel_rdt = false;
  for (CdiDevice& device : spec->devices) {
    device.edits.net_devices.clear();
    device.edits.intel_rdt = false;
    if (device.edits == CdiEdits()) device.edits.env.emplace_back("A=b");
  }
  for (const std::string& again : {cdi_to_json(*spec), cdi_to_yaml(*spec)}) {
    if (again.size() > kCdiLimits.bytes) continue;
    const auto read = parse_cdi_spec(again);
    must(read && are_same(*spec, *read), "what is written is read as the same");
  }
  return 0;
}
