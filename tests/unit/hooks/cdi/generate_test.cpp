#include <set>

#include "cdi_files.hpp"
#include "hooks/cdi/cdi.hpp"
#include "hooks/cdi/generate.hpp"
#include "hooks/gpu/gpu_hooks.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/hooks/fake_driver.hpp"

using namespace spc;

namespace {

NvidiaLibrary driver_library(const std::string& directory, const std::string& file,
                             const std::string& soname) {
  return {.path = directory + "/" + file,
          .file = file,
          .soname = soname,
          .folder = {},
          .uses = for_compute};
}

/// Returns a driver with two GPUs, the second with MIG instances.
NvidiaDriver fake_driver(const std::string& root = "") {
  NvidiaDriver driver;
  driver.version = driver.library_version = "575.57.08";
  const std::string lib = root + "/usr/lib/x86_64-linux-gnu";
  driver.libraries = {driver_library(lib, "libcuda.so.575.57.08", "libcuda.so.1"),
                      driver_library(lib, "libnvidia-ml.so.575.57.08", "libnvidia-ml.so.1"),
                      driver_library(lib + "/vdpau", "libvdpau_nvidia.so.575.57.08", "")};
  driver.libraries.back().folder = "vdpau";
  driver.libraries.push_back(
      driver_library(root + "/usr/lib/i386-linux-gnu", "libcuda.so.575.57.08", "libcuda.so.1"));
  driver.libraries.back().is_32_bit = true;
  driver.binaries = {{root + "/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi", for_utility}};
  driver.sockets = {
      {"/run/nvidia-persistenced/socket", "/run/nvidia-persistenced/socket", for_utility}};
  driver.control_nodes = {{"/dev/nvidiactl", "/dev/nvidiactl", for_any},
                          {"/dev/nvidia-uvm", "/dev/nvidia-uvm", for_compute}};
  driver.gpus.resize(2);
  driver.gpus[0] = {.minor = 1,
                    .node = "/dev/nvidia1",
                    .pci_address = "0000:06:00.0",
                    .uuid = "GPU-5c7ae7f8",
                    .model = "",
                    .dri = {"/dev/dri/card1", "/dev/dri/renderD128"},
                    .mig_mode = false,
                    .migs = {}};
  driver.gpus[1] = {
      .minor = 0,
      .node = "/dev/nvidia0",
      .pci_address = "0000:07:00.0",
      .uuid = "GPU-11111111",
      .model = "",
      .dri = {},
      .mig_mode = true,
      .migs = {{1, 0, "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"},
               {2, 0, "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"}}};
  return driver;
}

/// Returns the container's edits as comparable lines.
std::set<std::string> edits_as_lines(const Hook& hook, const HookContext& context) {
  auto edits = hook.prepare(context);
  INFO((edits ? "" : edits.error().message()));
  REQUIRE(edits);
  REQUIRE(hook.create(context, *edits));
  std::set<std::string> lines;
  for (const MountEdit& mount : edits->mounts) {
    if (!mount.target.empty())
      lines.insert("mount " + mount.source + " at " + mount.target +
                   (mount.read_only ? " ro" : "") + (mount.no_exec ? " noexec" : ""));
  }
  for (const DeviceEdit& device : edits->devices) lines.insert("device " + device.path);
  for (const LibraryEdit& library : edits->libraries)
    lines.insert("library " + library.soname + " is " + library.path);
  for (const SymlinkEdit& link : edits->symlinks)
    lines.insert("link " + link.path + " to " + link.target);
  for (const LibraryDirectoryEdit& directory : edits->library_directories)
    lines.insert("directory " + directory.path);
  for (const std::string& node : edits->denied_devices) lines.insert("denied " + node);
  return lines;
}

void must_be_same(const CdiSpec& a, const CdiSpec& b) {
  CHECK(a.version == b.version);
  CHECK(a.kind == b.kind);
  CHECK(a.edits == b.edits);
  REQUIRE(a.devices.size() == b.devices.size());
  for (std::size_t i = 0; i < a.devices.size(); ++i) {
    CHECK(a.devices[i].name == b.devices[i].name);
    CHECK(a.devices[i].edits == b.devices[i].edits);
  }
}

}  // namespace

TEST_CASE("cdi_generated_spec_survives_json_and_yaml") {
  std::vector<std::string> files{"accepted/octal-mode.yaml", "accepted/comments.yaml",
                                 "accepted/zero-gid.json", "accepted/keys-in-quotes.yaml"};
  for (const auto& entry : std::filesystem::directory_iterator(SPC_CDI_FILES "/vendors"))
    files.push_back("vendors/" + entry.path().filename().string());
  for (const std::string& name : files) {
    INFO(name);
    const auto spec = parse_cdi_spec(cdi_text(name));
    REQUIRE(spec);
    for (const std::string& text : {cdi_to_json(*spec), cdi_to_yaml(*spec)}) {
      INFO(text);
      const auto again = parse_cdi_spec(text);
      INFO((again ? "" : again.error().message()));
      REQUIRE(again);
      must_be_same(*spec, *again);
    }
  }
}

TEST_CASE("cdi_generated_yaml_quotes_ambiguous_texts") {
  CdiSpec spec{.version = "0.6.0", .kind = "v.com/c", .devices = {}, .edits = {}};
  for (const char* text : {"=x",
                           " ",
                           "a: b",
                           "a #b",
                           "- a",
                           "true",
                           "NO",
                           "~",
                           "1",
                           "0x1",
                           "1.5",
                           "\"",
                           "'",
                           "\\",
                           "\t",
                           "\x1b",
                           "\xc3\xa4",
                           "&a",
                           "*a",
                           "[a]",
                           "{}",
                           "!a",
                           "|",
                           "%",
                           "@",
                           "--link",
                           "a:",
                           "",
                           "\x7f",
                           "\xf0\x9f\x98\x80",
                           "\xc2\x85",
                           "\xe2\x80\xa8",
                           "\xef\xbb\xbf",
                           "\xef\xbf\xbe"}) {
    spec.edits.env.push_back("A=" + std::string(text));
    spec.devices.push_back({"d" + std::to_string(spec.devices.size()), {}});
    spec.devices.back().edits.hooks.push_back({.stage = "prestart",
                                               .path = "/x",
                                               .args = {text, std::string(text) + "y"},
                                               .env = {},
                                               .timeout = 5});
  }
  const auto again = parse_cdi_spec(cdi_to_yaml(spec));
  INFO((again ? "" : again.error().message() + cdi_to_yaml(spec)));
  REQUIRE(again);
  must_be_same(spec, *again);
}

TEST_CASE("cdi_generated_file_covers_fake_gpus_and_mig_parts") {
  const CdiSpec spec = nvidia_cdi_spec(fake_driver(), "");
  const auto again = parse_cdi_spec(cdi_to_yaml(spec));
  REQUIRE(again);
  must_be_same(spec, *again);
  std::vector<std::string> names;
  for (const CdiDevice& device : spec.devices) names.push_back(device.name);
  CHECK(names == std::vector<std::string>{"0", "GPU-5c7ae7f8", "1:0", "1:1", "all"});
  CHECK(spec.devices.back().edits.device_nodes.size() == 8);
  CHECK(cdi_to_yaml(spec) == cdi_text("generated.txt"));
}

TEST_CASE("cdi_generated_paths_drop_fake_driver_root") {
  const CdiSpec spec = nvidia_cdi_spec(fake_driver("/opt/driver"), "/opt/driver/");
  CHECK(spec.edits.mounts[0].host_path ==
        "/opt/driver/usr/lib/x86_64-linux-gnu/libcuda.so.575.57.08");
  CHECK(spec.edits.mounts[0].container_path == "/usr/lib/x86_64-linux-gnu/libcuda.so.575.57.08");
  CHECK(nvidia_cdi_spec(fake_driver("/opt/driver"), "")
            .edits.mounts[0]
            .container_path.starts_with("/opt/driver/usr/lib"));
}

TEST_CASE("cdi_generated_file_without_gpus_has_no_devices") {
  const CdiSpec spec = nvidia_cdi_spec({}, "");
  CHECK(spec.devices.empty());
  CHECK(parse_cdi_spec(cdi_to_json(spec)));
}

TEST_CASE("cdi_generated_file_equals_native_hook_on_fake_node") {
  const FakeNode node;
  node.kernel("575.57.08");
  node.libraries(kLibraries, "575.57.08");
  node.gpu(1, 0x06);
  node.gpu(0, 0x07);
  for (const char* file :
       {"/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-control",
        "/lib/firmware/nvidia/575.57.08/gsp_ga10x.bin", "/run/nvidia-persistenced/socket",
        "/etc/vulkan/icd.d/nvidia_icd.json", "/etc/OpenCL/vendors/nvidia.icd"}) {
    node.file(file);
  }
  node.image_file("/etc/debian_version", "12.5\n");
  node.image_file("/usr/local/cuda/compat/libcuda.so.590.1.2", "of a later major version");
  auto context = node.context();
  context.job["NVIDIA_VISIBLE_DEVICES"] = "all";
  context.job["NVIDIA_DRIVER_CAPABILITIES"] = "all";
  const auto native = edits_as_lines(nvidia_hook, context);
  CHECK(native.size() > 25);

  const NvidiaDriver driver = discover_nvidia(context.host_root, "");
  node.file("/etc/cdi/nvidia.yaml", cdi_to_yaml(nvidia_cdi_spec(driver, "")));
  context.settings.emplace("prefer_cdi", "true");
  CHECK(edits_as_lines(cdi_hook, context) == native);
  CHECK(edits_as_lines(nvidia_hook, context).empty());

  // The driver's libcuda is used if the site or a GPU requires it.
  auto without_compat = native;
  CHECK(without_compat.erase("directory /usr/local/cuda/compat") == 1);
  context.settings.emplace("cuda_compat", "false");
  CHECK(edits_as_lines(cdi_hook, context) == without_compat);
  context.settings.erase("cuda_compat");
  const std::string information = "/proc/driver/nvidia/gpus/0000:07:00.0/information";
  node.file(information, "Model: \t NVIDIA GeForce RTX 4090\nDevice Minor: \t 0\n");
  CHECK(edits_as_lines(cdi_hook, context) == without_compat);
  auto edits = cdi_hook.prepare(context);
  REQUIRE(cdi_hook.create(context, *edits));
  CHECK(edits->notes.back() ==
        "libcuda 590.1.2 of the image is not used: NVIDIA GeForce RTX 4090 does not support it");
  context.granted_devices->erase("/dev/nvidia0");  // it belongs to another job
  CHECK(edits_as_lines(cdi_hook, context).contains("directory /usr/local/cuda/compat"));
  context.granted_devices->insert("/dev/nvidia0");
  node.file(information, "Model: \t NVIDIA H100\nDevice Minor: \t 0\n");

  // Devices are not constrained, and Slurm assigned the second GPU.
  context.job["SLURM_STEP_GPUS"] = "1";
  CHECK(edits_as_lines(cdi_hook, context) ==
        // Without ConstrainDevices it is ambiguous: minors are in the reverse order of the bus.
        native);
  context.settings.emplace("gpu_numbers", "pci");
  const auto one = edits_as_lines(cdi_hook, context);
  CHECK(one.contains("device /dev/nvidia0"));
  CHECK(one.contains("denied /dev/nvidia1"));
  context.settings.erase("prefer_cdi");
  CHECK(edits_as_lines(nvidia_hook, context) == one);
}
