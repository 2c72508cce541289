#include <unistd.h>

#include "cdi_files.hpp"
#include "hooks/cdi/cdi.hpp"
#include "unit/has.hpp"
#include "unit/hooks/elf_maker.hpp"

using namespace spc;

namespace {

constexpr char kVendorLibraries[] = "/usr/lib/x86_64-linux-gnu/";

HookContext context_on(const FakeHost& host, std::vector<std::string> devices) {
  HookContext context;
  context.host_root = host.root();
  context.devices = std::move(devices);
  context.gid = ::getegid();
  return context;
}

/// Installs everything that vendors/fake-nvidia.yaml names, with two GPUs.
void install_nvidia(const FakeHost& host) {
  host.write("/run/cdi/nvidia.yaml", cdi_text("vendors/fake-nvidia.yaml"));
  for (const char* node : {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm",
                           "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/dri/card1",
                           "/dev/dri/card2", "/dev/dri/renderD128", "/dev/dri/renderD129"}) {
    host.touch(node);
  }
  for (const char* file : {"/run/nvidia-persistenced/socket", "/usr/bin/nvidia-smi",
                           "/lib/firmware/nvidia/575.57.08/gsp_ga10x.bin"})
    host.touch(file);
  host.write(std::string(kVendorLibraries) + "libcuda.so.575.57.08",
             elf_library("libcuda.so.1", kOwnMachine));
  host.write(std::string(kVendorLibraries) + "libnvidia-ml.so.575.57.08",
             elf_library("libnvidia-ml.so.1", kOwnMachine));
}

Edits prepared(const HookContext& context) {
  REQUIRE(cdi_hook.when(context));
  auto edits = cdi_hook.prepare(context);
  INFO((edits ? "" : edits.error().message()));
  REQUIRE(edits);
  return *std::move(edits);
}

std::string refusal_of(const HookContext& context) {
  const auto edits = cdi_hook.prepare(context);
  return edits ? "accepted" : edits.error().message();
}

/// Returns the refusal of a file with these edits for its only device, v.com/c=x.
std::string refusal_of_edits(const std::string& edits, const std::vector<std::string>& files = {}) {
  const FakeHost host;
  host.write("/etc/cdi/v.json",
             R"({"cdiVersion":"1.1.0","kind":"v.com/c","devices":[{"name":"x","containerEdits":)" +
                 edits + "}]}");
  for (const auto& file : files) host.touch(file);
  return refusal_of(context_on(host, {"v.com/c=x"}));
}

std::vector<std::string> paths(const std::vector<DeviceEdit>& devices) {
  std::vector<std::string> list;
  for (const DeviceEdit& device : devices)
    list.push_back(device.path + (device.source.empty() ? "" : "<" + device.source));
  return list;
}

}  // namespace

TEST_CASE("cdi_hook_fake_gpu_gets_edits_of_nvidia_ctk_file") {
  const FakeHost host;
  install_nvidia(host);
  auto context = context_on(host, {"nvidia.com/gpu=0"});
  const Edits edits = prepared(context);
  CHECK(edits.environment.set ==
        std::map<std::string, std::string>{{"NVIDIA_CTK_LIBCUDA_DIR", "/usr/lib/x86_64-linux-gnu"},
                                           {"NVIDIA_VISIBLE_DEVICES", "void"}});
  CHECK(paths(edits.devices) == std::vector<std::string>{"/dev/nvidia-modeset", "/dev/nvidia-uvm",
                                                         "/dev/nvidia-uvm-tools", "/dev/nvidiactl",
                                                         "/dev/nvidia0", "/dev/dri/card1",
                                                         "/dev/dri/renderD128"});
  REQUIRE(edits.mounts.size() == 5);
  CHECK(edits.mounts[0] == MountEdit{.source = "/run/nvidia-persistenced/socket",
                                     .target = "/run/nvidia-persistenced/socket",
                                     .read_only = false,
                                     .no_exec = true});
  CHECK(edits.mounts[1] ==
        MountEdit{.source = "/usr/bin/nvidia-smi", .target = "/usr/bin/nvidia-smi"});
  CHECK(edits.libraries ==
        std::vector<LibraryEdit>{
            {"libcuda.so.1", std::string(kVendorLibraries) + "libcuda.so.575.57.08", true},
            {"libnvidia-ml.so.1", std::string(kVendorLibraries) + "libnvidia-ml.so.575.57.08",
             true}});
  // Links in /dev are left to the host.
  CHECK(edits.symlinks ==
        std::vector<SymlinkEdit>{{std::string(kVendorLibraries) + "gbm/nvidia-drm_gbm.so",
                                  "../libnvidia-allocator.so.1"},
                                 {std::string(kVendorLibraries) + "libcuda.so", "libcuda.so.1"}});
  CHECK(edits.remembered.at(kCdiDriverVersion) == "575.57.08");
  CHECK(edits.warnings.empty());
  CHECK(has(edits.notes, "nvidia.com/gpu=0 as /run/cdi/nvidia.yaml describes it"));
}

TEST_CASE("cdi_hook_prefer_cdi_gives_each_allowed_fake_gpu_once") {
  const FakeHost host;
  install_nvidia(host);
  auto context = context_on(host, {});
  CHECK_FALSE(cdi_hook.when(context));
  CHECK_FALSE(cdi_serves_gpus(context));
  context.settings.emplace("prefer_cdi", "true");
  CHECK(cdi_serves_gpus(context));
  CHECK(paths(prepared(context).devices).size() == 10);
  context.granted_devices = std::set<std::string>{"/dev/nvidiactl", "/dev/nvidia1"};
  const auto nodes = paths(prepared(context).devices);
  CHECK(std::find(nodes.begin(), nodes.end(), "/dev/nvidia1") != nodes.end());
  CHECK(std::find(nodes.begin(), nodes.end(), "/dev/nvidia0") == nodes.end());
  CHECK(cdi_serves_gpus(context));
  context.granted_devices->erase("/dev/nvidia1");
  CHECK_FALSE(cdi_serves_gpus(context));
  CHECK(prepared(context) == Edits());
  context.granted_devices.reset();
  context.gpu = false;
  CHECK_FALSE(cdi_serves_gpus(context));
  CHECK_FALSE(cdi_hook.when(context));
  context.gpu.reset();
  context.settings.emplace("gpu", "off");
  CHECK_FALSE(cdi_serves_gpus(context));
  context.devices = {"nvidia.com/gpu=all"};  // requests by name are always served,
                                             // and only by this hook
  CHECK(cdi_serves_gpus(context));
  CHECK(paths(prepared(context).devices).size() == 10);
  context.settings.emplace("hooks_off", "60-cdi");
  CHECK_FALSE(cdi_serves_gpus(context));
}

TEST_CASE("cdi_hook_prefer_cdi_without_file_yields_to_native_hook") {
  const FakeHost host;
  host.write("/etc/cdi/nvidia.yaml", "nonsense: [\n");
  host.touch("/dev/nvidia0");
  auto context = context_on(host, {});
  context.settings.emplace("prefer_cdi", "true");
  CHECK_FALSE(cdi_serves_gpus(context));
  CHECK(has(prepared(context).notes, "/etc/cdi/nvidia.yaml"));
  host.touch("/dev/nvidiactl");  // now it matters
  CHECK(has(prepared(context).warnings, "/etc/cdi/nvidia.yaml"));
}

TEST_CASE("cdi_hook_fake_mig_parts_are_matched_by_nodes") {
  const FakeHost host;
  host.write("/etc/cdi/nvidia.yaml", cdi_text("vendors/fake-nvidia-mig.yaml"));
  for (const char* node : {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap21",
                           "/dev/nvidia-caps/nvidia-cap22", "/dev/nvidia-caps/nvidia-cap30",
                           "/dev/nvidia-caps/nvidia-cap31"}) {
    host.touch(node);
  }
  auto context = context_on(host, {});
  context.settings.emplace("prefer_cdi", "true");
  CHECK(paths(prepared(context).devices).size() == 6);
  context.granted_devices =
      std::set<std::string>{"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap30",
                            "/dev/nvidia-caps/nvidia-cap31"};
  const auto edits = prepared(context);
  CHECK(paths(edits.devices) == std::vector<std::string>{"/dev/nvidiactl", "/dev/nvidia0",
                                                         "/dev/nvidia-caps/nvidia-cap30",
                                                         "/dev/nvidia-caps/nvidia-cap31"});
  CHECK(edits.libraries.empty());
  // Slurm's numbers are those of parts: nothing is taken away by them.
  context.granted_devices->insert(
      {"/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"});
  context.job["SLURM_STEP_GPUS"] = "0";
  const auto both = prepared(context);
  CHECK(paths(both.devices).size() == 6);
  CHECK(both.denied_devices.empty());
}

TEST_CASE("cdi_hook_fake_amd_intel_efa_and_slingshot_are_given") {
  const FakeHost host;
  for (const char* name : {"fake-amd.json", "fake-intel.yaml", "fake-efa.json", "fake-cxi.yaml"}) {
    host.write(std::string("/etc/cdi/") + name, cdi_text(std::string("vendors/") + name));
  }
  for (const char* node : {"/dev/kfd", "/dev/dri/card0", "/dev/dri/card1", "/dev/dri/renderD128",
                           "/dev/infiniband/uverbs0", "/dev/cxi0"})
    host.touch(node);
  host.write("/opt/amazon/efa/lib/libfabric.so.1.29.0", elf_library("libfabric.so.1", kOwnMachine));
  host.write("/opt/amazon/efa/lib/notes.txt", "no library");
  host.write("/opt/amazon/efa/lib/libbad.so", "nor this");
  host.write("/opt/cray/libfabric/lib64/libfabric.so.1",
             elf_library("libfabric.so.1", kOwnMachine));
  CHECK(paths(prepared(context_on(host, {"amd.com/gpu=0"})).devices) ==
        std::vector<std::string>{"/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD128"});
  const auto intel = prepared(context_on(host, {"intel.com/gpu=0000:03:00.0-0x56c0"}));
  CHECK(intel.devices.size() == 2);
  CHECK(intel.mounts.empty());  // in /dev it is there already
  const auto efa = prepared(context_on(host, {"amazon.com/efa=all"}));
  CHECK(efa.libraries == std::vector<LibraryEdit>{
                             {"libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1.29.0", true}});
  CHECK(efa.mounts ==
        std::vector<MountEdit>{{.source = "/opt/amazon/efa", .target = "/opt/amazon/efa"}});
  const auto cxi = prepared(context_on(host, {"hpe.com/cxi=all"}));
  CHECK(cxi.environment.set.at("FI_CXI_DEFAULT_CQ_SIZE") == "131072");
  CHECK(cxi.libraries == std::vector<LibraryEdit>{
                             {"libfabric.so.1", "/opt/cray/libfabric/lib64/libfabric.so.1", true}});
}

TEST_CASE("cdi_hook_device_outside_allocation_is_reported") {
  const FakeHost host;
  install_nvidia(host);
  auto context = context_on(host, {"nvidia.com/gpu=1", "nvidia.com/gpu=all"});
  context.granted_devices = std::set<std::string>{"/dev/nvidiactl", "/dev/nvidia0"};
  CHECK(prepared(context).warnings ==
        std::vector<std::string>{
            "device \"nvidia.com/gpu=1\": this step cannot open \"/dev/nvidia1\" "
            "(hint: request the device from Slurm, too: --gres or --gpus)"});
}

TEST_CASE("cdi_hook_edits_beyond_a_device_are_refused") {
  CHECK(refusal_of_edits(R"({"mounts":[{"hostPath":"/","containerPath":"/host"}]})")
            .find("of \"/\", which is not a single file or directory of the node (hint: the CDI "
                  "file /etc/cdi/v.json requests it)") != std::string::npos);
  CHECK(refusal_of_edits(R"({"mounts":[{"hostPath":"/usr/../","containerPath":"/host"}]})")
            .find("which is not a single file or directory") != std::string::npos);
  CHECK(refusal_of_edits(R"({"mounts":[{"hostPath":"/etc","containerPath":"/"}]})")
            .find("is the image's root") != std::string::npos);
  CHECK(refusal_of_edits(R"({"mounts":[{"hostPath":"/etc","containerPath":"/a/../."}]})")
            .find("is the image's root") != std::string::npos);
  CHECK(refusal_of_edits(R"({"mounts":[{"hostPath":"proc","containerPath":"/p","type":"proc"}]})")
            .find("file systems of type \"proc\" are not supported") != std::string::npos);
  CHECK(refusal_of_edits(R"({"mounts":[{"hostPath":"etc","containerPath":"/p"}]})")
            .find("not a single file or directory") != std::string::npos);
  CHECK(refusal_of_edits(R"({"deviceNodes":[{"path":"/opt/node"}]})").find("is outside /dev") !=
        std::string::npos);
  CHECK(refusal_of_edits(R"({"deviceNodes":[{"path":"/dev/../etc/shadow"}]})")
            .find("is outside /dev") != std::string::npos);
  CHECK(
      refusal_of_edits(
          R"({"hooks":[{"hookName":"createContainer","path":"/bin/sh","args":["sh","-c",)"
          R"("rm -rf /"]}]})") ==
      "hook \"/bin/sh\": a shell is not run for a device (hint: the CDI file /etc/cdi/v.json "
      "requests it)");
  CHECK(refusal_of_edits(R"({"hooks":[{"hookName":"startContainer","path":"/usr/bin/x"}]})")
            .find("programs are not run for a device in stage startContainer") !=
        std::string::npos);
  CHECK(
      refusal_of_edits(
          R"({"hooks":[{"hookName":"createContainer","path":"/usr/bin/nvidia-cdi-hook",)"
          R"("args":["nvidia-cdi-hook","create-symlinks","--link","a"]}]})")
          .find("is not TARGET::LINK") != std::string::npos);
  CHECK(refusal_of_edits(R"({"deviceNodes":[{"path":"/dev/new","hostPath":"/dev/old"}]})",
                         {"/dev/old"})
            .find("device node \"/dev/new\": containers have the node's /dev, in which nothing can "
                  "be created") != std::string::npos);
  CHECK(refusal_of_edits(R"({"mounts":[{"hostPath":"/etc","containerPath":"/sys/x"}]})")
            .find("the node's /sys, in which nothing can be created") != std::string::npos);
  CHECK(refusal_of_edits(R"({"netDevices":[{"hostInterfaceName":"eth1","name":"eth0"}]})")
            .find("network interface \"eth1\": interfaces are not moved") != std::string::npos);
}

TEST_CASE("cdi_hook_vendor_program_is_left_to_the_engine") {
  const FakeHost host;
  host.write(
      "/etc/cdi/v.json",
      R"({"cdiVersion":"0.5.0","kind":"v.com/c","devices":[{"name":"x",)"
      R"("containerEdits":{"hooks":[{"hookName":"prestart",)"
      R"("path":"/usr/bin/vendor-hook","args":["vendor-hook","a"],"env":["A=b"],)"
      R"("timeout":5}]}}]})");
  const Edits edits = prepared(context_on(host, {"v.com/c=x"}));
  CHECK(edits.programs ==
        std::vector<ProgramEdit>{{"/usr/bin/vendor-hook", {"vendor-hook", "a"}, {"A=b"}, 5}});
}

TEST_CASE("cdi_hook_unknown_hooks_and_absent_sockets_are_skipped") {
  const FakeHost host;
  host.write(
      "/etc/cdi/v.json",
      R"({"cdiVersion":"0.5.0","kind":"v.com/c","devices":[{"name":"x",)"
      R"("containerEdits":{"env":["A=b"],"mounts":[)"
      R"({"hostPath":"/run/nvidia-persistenced/socket",)"
      R"("containerPath":"/run/nvidia-persistenced/socket"},)"
      R"({"hostPath":"/tmp/nvidia-mps","containerPath":"/tmp/nvidia-mps"}],"hooks":[)"
      R"({"hookName":"createContainer","path":"/usr/bin/nvidia-cdi-hook",)"
      R"("args":["nvidia-cdi-hook","noop"]},)"
      R"({"hookName":"createContainer","path":"/usr/bin/nvidia-cdi-hook",)"
      R"("args":["nvidia-cdi-hook","brand-new","--x"]},)"
      R"({"hookName":"createContainer","path":"/usr/bin/nvidia-cdi-hook","args":)"
      R"(["nvidia-cdi-hook","create-symlinks","--brand-new","--link","a.so.1::/opt/a.so",)"
      R"("--other=x"]}]}}]})");
  const Edits edits = prepared(context_on(host, {"v.com/c=x"}));
  CHECK(edits.mounts.empty());
  CHECK(edits.environment.set.at("A") == "b");
  CHECK(edits.symlinks ==
        std::vector<SymlinkEdit>{{"/opt/a.so", "a.so.1"}});  // with unknown flags
  CHECK(edits.warnings ==
        std::vector<std::string>{
            "hook \"/usr/bin/nvidia-cdi-hook\": \"brand-new\" is unknown and left out"});
  CHECK(has(edits.notes, "mount source \"/tmp/nvidia-mps\": no such file or directory: left out"));
  CHECK(refusal_of_edits(
            R"({"mounts":[{"hostPath":"/run/nvidia/driver/usr/lib/x","containerPath":"/x"}]})")
            .find("mount source") == 0);
}

TEST_CASE("cdi_hook_missing_file_of_node_is_refused_with_hint") {
  const std::string advice =
      "(hint: the CDI file /etc/cdi/v.json names it; recreate it if the driver has changed)";
  CHECK(
      refusal_of_edits(
          R"({"mounts":[{"hostPath":"/usr/lib/libgone.so",)"
          R"("containerPath":"/usr/lib/libgone.so"}]})") ==
      "mount source \"/usr/lib/libgone.so\": no such file or directory " + advice);
  CHECK(refusal_of_edits(R"({"deviceNodes":[{"path":"/dev/gone"}]})") ==
        "device node \"/dev/gone\": no such file or directory " + advice);
}

TEST_CASE("cdi_hook_mount_node_and_file_options_are_applied") {
  const FakeHost host;
  host.write("/etc/cdi/v.yaml",
             "cdiVersion: 0.7.0\nkind: v.com/c\ndevices:\n- name: x\n  containerEdits:\n    "
             "intelRdt:\n      closID: a\n    "
             "additionalGids:\n"
             "    - 4711\n    - 0\n    deviceNodes:\n    - path: /dev/other\n      hostPath: "
             "/dev/real\n    - path: "
             "/dev/nvidia3\n    mounts:\n"
             "    - hostPath: tmpfs\n      containerPath: /run/x//y/\n      type: tmpfs\n      "
             "options:\n      - size=64k\n      "
             "- mode=755\n      - noexec\n"
             "    - hostPath: /srv/./data\n      containerPath: /data\n      options:\n      - "
             "bind\n      - idmap\n      - ro\n "
             "   hooks:\n"
             "    - hookName: createContainer\n      path: /usr/bin/nvidia-ctk\n      args:\n      "
             "- nvidia-ctk\n      - hook\n  "
             "    - update-application-profile\n");
  for (const char* path : {"/dev/real", "/dev/other", "/dev/nvidia3", "/srv/data/file"})
    host.touch(path);
  const Edits edits = prepared(context_on(host, {"v.com/c=x"}));
  CHECK(paths(edits.devices) == std::vector<std::string>{"/dev/other</dev/real", "/dev/nvidia3"});
  REQUIRE(edits.mounts.size() == 2);
  CHECK(edits.mounts[0] == MountEdit{.source = "/srv/data", .target = "/data"});
  CHECK(
      edits.mounts[1] ==
      MountEdit{
          .source = "", .target = "/run/x/y", .read_only = false, .no_exec = true, .size = 65536});
  CHECK(has(edits.notes, "mount \"/data\": option \"idmap\" is ignored"));
  CHECK(has(edits.notes, "intelRdt is ignored"));
  REQUIRE(edits.warnings.size() == 1);
  CHECK(edits.warnings[0].find("the group 4711, which the user is not a member of") !=
        std::string::npos);
  REQUIRE(edits.files.size() == 1);
  CHECK(edits.files[0].content ==
        "{\"profiles\":[{\"name\":\"_container_\",\"settings\":[\"EGLVisibleDGPUDevices\",0x8]}],"
        "\"rules\":[{\"pattern\":[],\"profile\":\"_container_\"}]}\n");
}

TEST_CASE("cdi_hook_skipped_file_is_reported_when_used") {
  const FakeHost host;
  host.write("/etc/cdi/bad.json", "{}");
  host.write(
      "/etc/cdi/v.json",
      R"({"cdiVersion":"0.5.0","kind":"v.com/c","devices":[{"name":"x",)"
      R"("containerEdits":{"env":["A=b=c"]}}]})");
  const Edits edits = prepared(context_on(host, {"v.com/c=x"}));
  CHECK(edits.environment.set.at("A") == "b=c");
  CHECK(edits.warnings ==
        std::vector<std::string>{"CDI file \"/etc/cdi/bad.json\": cdiVersion: is missing"});
  CHECK(refusal_of(context_on(host, {"v.com/c=y"}))
            .find("not in any CDI file of this node; CDI file \"/etc/cdi/bad.json\"") !=
        std::string::npos);
  CHECK(refusal_of(context_on(host, {"no name"})).find("is not a device name") !=
        std::string::npos);
}
