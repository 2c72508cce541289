// Edits of the GPU hooks for whole nodes, compared with files in gpu/. With SPC_WRITE_GOLDEN set,
// the files are rewritten.

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "hooks/gpu/gpu_hooks.hpp"
#include "hooks/hook_json.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/hooks/fake_driver.hpp"

using namespace spc;

namespace {

constexpr char kVersion[] = "550.54.15";

/// Runs prepare and create as the engine does.
std::string edits_of(const Hook& hook, const HookContext& context) {
  REQUIRE(hook.when(context));
  auto edits = hook.prepare(context);
  REQUIRE(edits);
  REQUIRE(hook.create(context, *edits));
  std::erase_if(edits->mounts, [](const MountEdit& mount) { return mount.target.empty(); });
  auto json = edits_to_json(*edits);
  REQUIRE(json);
  return *std::move(json) + "\n";
}

void compare(const std::string& name, const std::string& edits) {
  const std::string text = as_on_x86(edits);
  const std::string path = std::string(SPC_GOLDEN_DIR) + "/" + name + ".json";
  if (std::getenv("SPC_WRITE_GOLDEN") != nullptr) std::ofstream(path) << text;
  std::ostringstream golden;
  golden << std::ifstream(path).rdbuf();
  CHECK(text == golden.str());
}

void bare_metal(const FakeNode& node) {
  node.kernel(kVersion);
  node.libraries(kLibraries, kVersion);
  for (unsigned minor = 0; minor < 8; ++minor)
    node.gpu(minor, 0x20 + 8 * (7 - minor));  // minors in the reverse order of the bus
  for (const char* name : {"nvidia-smi", "nvidia-cuda-mps-control"})
    node.file(std::string("/usr/bin/") + name);
  node.file(std::string("/lib/firmware/nvidia/") + kVersion + "/gsp_ga10x.bin");
  node.file("/etc/OpenCL/vendors/nvidia.icd");
  node.file("/run/nvidia-persistenced/socket");
  node.file("/dev/nvidia-nvswitchctl");
  node.file("/dev/gdrdrv");
  node.file("/dev/nvidia-fs0");
  node.file("/dev/nvidia-caps-imex-channels/channel0");
}

}  // namespace

TEST_CASE("fake_driver_golden_bare_metal_eight_gpus") {
  const FakeNode node;
  bare_metal(node);
  node.image_file("/etc/debian_version", "12\n");
  compare("fake-bare-metal", edits_of(nvidia_hook, node.context()));
}

TEST_CASE("fake_driver_golden_all_capabilities_and_32_bit", kOwnMachine == EM_X86_64 ? "" : "[.]") {
  const FakeNode node;
  bare_metal(node);
  node.libraries("/usr/lib/i386-linux-gnu", kVersion, EM_386);
  auto context = node.context();
  context.image["NVIDIA_DRIVER_CAPABILITIES"] = "all,compat32";
  compare("fake-32-bit", edits_of(nvidia_hook, context));
}

TEST_CASE("fake_driver_golden_one_mig_part") {
  const FakeNode node;
  node.kernel(kVersion);
  node.libraries(kLibraries, kVersion);
  node.gpu(0, 0x20);
  node.gpu(1, 0x40);
  node.mig(0, 1, 0, 12, 13);
  node.mig(0, 2, 0, 21, 22);
  auto context = node.context();
  context.job["NVIDIA_VISIBLE_DEVICES"] = "0:1";
  compare("fake-mig", edits_of(nvidia_hook, context));
}

TEST_CASE("fake_driver_golden_driver_root") {
  const FakeNode node;
  node.kernel(kVersion);
  node.libraries("/opt/driver/lib64", kVersion);
  node.file("/opt/driver/bin/nvidia-smi");
  node.libraries(kLibraries, "535.1.2");
  node.gpu(0, 0x20);
  auto context = node.context();
  context.settings.emplace("driver_root", "/opt/driver");
  compare("fake-driver-root", edits_of(nvidia_hook, context));
}

// outcome 215 accepted: a node of AMD or Intel with NVIDIA's hook on, and the reverse
TEST_CASE("fake_amd_golden_node") {
  const FakeNode node;
  node.file("/dev/kfd");
  node.render(128, 0, "0x1002", "0000:c1:00.0");
  node.render(129, 1, "0x1002", "0000:11:00.0");
  node.render(130, 2, "0x8086", "0000:01:00.0");
  auto context = node.context();
  context.job["AMD_VISIBLE_DEVICES"] = "1";
  CHECK_FALSE(nvidia_hook.when(context));
  compare("fake-amd", edits_of(amd_hook, context));
}

// outcome 215 accepted: a node of AMD or Intel with NVIDIA's hook on, and the reverse
TEST_CASE("fake_intel_golden_node") {
  const FakeNode node;
  node.render(128, 0, "0x8086", "0000:01:00.0");
  node.render(129, 1, "0x8086", "0000:02:00.0");
  auto context = node.context();
  context.job["SLURM_STEP_GPUS"] = "1";
  CHECK(*nvidia_hook.prepare(context) == Edits());
  compare("fake-intel", edits_of(intel_hook, context));
}
