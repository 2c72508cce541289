// Discovery of a driver that consists of fake files.

#include <algorithm>

#include "hooks/gpu/gpu_hooks.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/ld_cache.hpp"
#include "hooks/nvidia_driver/driver.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/hooks/fake_driver.hpp"

using namespace spc;

namespace {

bool has_library(const NvidiaDriver& driver, const std::string& file) {
  return std::any_of(driver.libraries.begin(), driver.libraries.end(),
                     [&](const NvidiaLibrary& it) { return it.file == file; });
}

}  // namespace

TEST_CASE("fake_driver_libraries_of_its_version_are_found") {
  const FakeNode node;
  node.kernel("550.54.15");
  node.libraries(kLibraries, "550.54.15");
  node.library(std::string(kLibraries) + "/libcuda.so.535.1.2", "libcuda.so.1");
  node.library(std::string(kLibraries) + "/libnvidia-wrong.so.550.54.15", "libnvidia-wrong.so.1",
               EM_MIPS);
  const auto driver = discover_nvidia(node.host().string(), "");
  CHECK(driver.versions_agree());
  CHECK(has_library(driver, "libcuda.so.550.54.15"));
  CHECK(has_library(driver, "libnvidia-brandnew.so.550.54.15"));
  CHECK(has_library(driver, "libnvidia-egl-gbm.so.1.1.0"));
  CHECK(has_library(driver, "libvdpau_nvidia.so.550.54.15"));
  CHECK_FALSE(has_library(driver, "libcuda.so.535.1.2"));
  CHECK_FALSE(has_library(driver, "libnvidia-wrong.so.550.54.15"));
  CHECK_FALSE(has_library(driver, "libnvidia-script.so.550.54.15"));
  CHECK_FALSE(has_library(driver, "libother.so.1.0"));
}

TEST_CASE("fake_driver_version_is_read_from_proc") {
  const FakeNode node;
  node.file("/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build  "
            "(dvs-builder@U16)  Tue Jan 1\n"
            "GCC version:  gcc version 12.2.0\n");
  node.libraries("/usr/lib64", "570.86.10");
  const auto driver = discover_nvidia(node.host().string(), "");
  CHECK(driver.version == "570.86.10");
  CHECK(driver.library_directories == std::vector<std::string>{"/usr/lib64"});
}

TEST_CASE("fake_driver_libraries_of_other_version_are_reported") {
  const FakeNode node;
  node.kernel("550.54.15");
  node.libraries(kLibraries, "535.1.2");
  node.gpu(0, 0x20);
  const auto driver = discover_nvidia(node.host().string(), "");
  CHECK_FALSE(driver.versions_agree());
  CHECK(driver.library_version == "535.1.2");
  CHECK(driver.libraries.empty());

  auto context = node.context();
  const auto warned = nvidia_hook.prepare(context);
  REQUIRE(warned);
  REQUIRE(warned->warnings.size() == 1);
  CHECK(warned->warnings.front().find(
            "kernel driver is 550.54.15, but the libraries on this node are 535.1.2") !=
        std::string::npos);
  CHECK(warned->mounts.empty());
  context.gpu = true;
  CHECK(nvidia_hook.prepare(context)->refusal == warned->warnings.front());
}

TEST_CASE("fake_driver_of_gpu_operator_and_gke_is_found") {
  for (const char* directory : {"/run/nvidia/driver/usr/lib64", "/home/kubernetes/bin/nvidia/lib64",
                                "/usr/local/nvidia/lib64"}) {
    const FakeNode node;
    node.kernel("550.54.15");
    node.libraries(directory, "550.54.15");
    const auto driver = discover_nvidia(node.host().string(), "");
    CHECK(driver.library_directories == std::vector<std::string>{directory});
    CHECK(driver.versions_agree());
  }
}

TEST_CASE("fake_driver_in_debian_directories_is_found") {
  for (const std::string branch : {"current", "tesla", "tesla-535", "legacy-535xx"}) {
    const FakeNode node;
    const std::string libraries = kLibraries, current = libraries + "/nvidia/" + branch;
    node.libraries(libraries + "/nvidia/legacy-390xx", "390.1");
    node.kernel("535.183.01");
    node.libraries(current, "535.183.01");
    node.link(libraries + "/libcuda.so.1", "/etc/alternatives/glx--libcuda.so.1");
    node.link("/etc/alternatives/glx--libcuda.so.1", current + "/libcuda.so.1");
    node.library(libraries + "/libnvidia-tls.so.535.183.01", "libnvidia-tls.so.535.183.01");
    node.link(libraries + "/libnvidia-ml.so.535.183.01", current + "/libnvidia-ml.so.535.183.01");
    const auto driver = discover_nvidia(node.host().string(), "");
    CHECK(driver.library_directories == std::vector<std::string>{current});
    CHECK(has_library(driver, "libcuda.so.535.183.01"));
    CHECK(has_library(driver, "libnvidia-tls.so.535.183.01"));
    CHECK(std::count_if(driver.libraries.begin(), driver.libraries.end(),
                        [](const NvidiaLibrary& it) {
                          return it.file == "libnvidia-ml.so.535.183.01";
                        }) == 1);
  }
}

TEST_CASE("fake_driver_in_versioned_directory_is_found_by_links") {
  const FakeNode node;
  const std::string libraries = kLibraries, directory = "/usr/lib/nvidia-384";
  node.kernel("384.130");
  node.libraries(directory, "384.130");
  node.link(libraries + "/libcuda.so.1", "/etc/alternatives/x86_64-linux-gnu_libcuda.so.1");
  node.link("/etc/alternatives/x86_64-linux-gnu_libcuda.so.1", directory + "/libcuda.so.1");
  CHECK_FALSE(discover_nvidia(node.host().string(), "").versions_agree());
  LdCache cache;
  cache.add_last("libcuda.so.1", libraries + "/libcuda.so.1",
                 cache_flags_of(own_machine()).value());
  node.file("/etc/ld.so.cache", cache.serialize());
  const auto driver = discover_nvidia(node.host().string(), "");
  CHECK(driver.versions_agree());
  CHECK(driver.library_directories == std::vector<std::string>{directory});
  CHECK(has_library(driver, "libcuda.so.384.130"));
}

TEST_CASE("fake_driver_root_excludes_other_directories") {
  const FakeNode node;
  node.kernel("550.54.15");
  node.libraries(kLibraries, "550.54.15");
  CHECK_FALSE(discover_nvidia(node.host().string(), "/opt/driver").versions_agree());
}

TEST_CASE("fake_gpus_are_in_bus_order_with_parts_and_nodes") {
  const FakeNode node;
  node.gpu(0, 0x40);
  node.gpu(1, 0x20);
  node.mig(1, 2, 0, 21, 22);
  node.mig(1, 11, 1, 31, 32);
  node.file("/dev/dri/card3");
  node.file("/dev/dri/renderD131");
  for (const char* name : {"card3", "renderD131", "controlD67"}) {
    node.file(std::string("/sys/bus/pci/devices/0000:40:00.0/drm/") + name + "/dev");
  }
  NvidiaDriver driver;
  discover_nvidia_devices(node.host().string(), driver);
  REQUIRE(driver.gpus.size() == 2);
  CHECK(driver.gpus[0].minor == 1);
  CHECK(driver.gpus[0].mig_mode);
  REQUIRE(driver.gpus[0].migs.size() == 2);
  CHECK(driver.gpus[0].migs[0] ==
        NvidiaMig{2, 0, "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"});
  CHECK(driver.gpus[0].migs[1].gpu_instance == 11);
  CHECK(driver.gpus[1].uuid == "GPU-00000000-0000-0000-0000-000000000000");
  CHECK(driver.gpus[1].model == "NVIDIA H100 80GB HBM3");
  const std::string unused = "GPU-" + std::string(8, '?') + "-" + std::string(4, '?');
  node.file("/proc/driver/nvidia/gpus/0000:40:00.0/information",
            "GPU UUID: \t " + unused + "\nDevice Minor: \t 0\n");
  discover_nvidia_devices(node.host().string(), driver);
  CHECK(driver.gpus[1].uuid.empty());
  CHECK(driver.gpus[1].dri == std::vector<std::string>{"/dev/dri/card3", "/dev/dri/renderD131"});
}

TEST_CASE("fake_gpu_bus_numbers_are_hexadecimal") {
  const FakeNode node;
  const unsigned buses[] = {0x1a, 0x09, 0xe1, 0x0b, 0x10};
  for (unsigned minor = 0; minor < 5; ++minor) node.gpu(minor, buses[minor]);
  NvidiaDriver driver;
  discover_nvidia_devices(node.host().string(), driver);
  std::string order;
  for (const NvidiaGpu& gpu : driver.gpus) order += std::to_string(gpu.minor);
  CHECK(order == "13402");
}

TEST_CASE("fake_gpus_without_proc_entries_are_found_by_nodes") {
  const FakeNode node;
  for (const char* name : {"nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"})
    node.file(std::string("/dev/") + name);
  NvidiaDriver driver;
  discover_nvidia_devices(node.host().string(), driver);
  REQUIRE(driver.gpus.size() == 3);
  CHECK(driver.gpus[1].node == "/dev/nvidia2");
  CHECK(driver.gpus[2].node == "/dev/nvidia10");
}

// outcome 215 accepted: a node of AMD or Intel with NVIDIA's hook on, and the reverse
TEST_CASE("gpu_hooks_without_gpus_are_silent") {
  const FakeNode node;
  auto context = node.context();
  for (const Hook* hook : {&nvidia_hook, &amd_hook, &intel_hook, &gpu_hook})
    CHECK_FALSE(hook->when(context));
  context.gpu = true;
  const auto refused = gpu_hook.prepare(context);
  REQUIRE(refused);
  CHECK(refused->refusal.find("this step has no GPU on this node") != std::string::npos);
}
