// Selection of a container's GPUs on a node with four fake ones. Minors are in the reverse order of
// the bus.

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>

#include "hooks/gpu/gpu_hooks.hpp"
#include "hooks/step/allocation.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/hooks/fake_driver.hpp"

using namespace spc;

namespace {

using Nodes = std::vector<std::string>;

struct FourGpus : FakeNode {
  FourGpus() {
    kernel("550.54.15");
    libraries("/usr/lib64", "550.54.15");
    for (unsigned minor = 0; minor < 4; ++minor) gpu(minor, 0x50 - 0x10 * minor);
  }
  /// Returns the context of a step whose cgroup allows these minors.
  [[nodiscard]] HookContext of_step(const std::set<unsigned>& minors) const {
    auto found = context();
    for (unsigned minor = 0; minor < 4; ++minor) {
      if (!minors.contains(minor))
        found.granted_devices->erase("/dev/nvidia" + std::to_string(minor));
    }
    return found;
  }
};

Edits gpu_edits(const HookContext& context) {
  auto edits = nvidia_hook.prepare(context);
  REQUIRE(edits);
  REQUIRE(nvidia_hook.create(context, *edits));
  return *std::move(edits);
}

Nodes gpus_in(const Edits& edits) {
  Nodes nodes;
  for (const DeviceEdit& device : edits.devices) {
    if (device.path.starts_with("/dev/nvidia") &&
        std::isdigit(static_cast<unsigned char>(device.path.back())) != 0)
      nodes.push_back(device.path);
  }
  return nodes;
}

std::size_t mounts_in(const Edits& edits) {
  return static_cast<std::size_t>(
      std::count_if(edits.mounts.begin(), edits.mounts.end(),
                    [](const MountEdit& mount) { return !mount.target.empty(); }));
}

Edits with_visible(HookContext context, const std::string& value) {
  context.job["NVIDIA_VISIBLE_DEVICES"] = value;
  return gpu_edits(context);
}

}  // namespace

TEST_CASE("fake_gpus_without_image_variables_follow_the_cgroup") {
  const FourGpus node;
  const auto edits = gpu_edits(node.of_step({1, 3}));
  CHECK(gpus_in(edits) == Nodes{"/dev/nvidia3", "/dev/nvidia1"});
  CHECK(edits.denied_devices.empty());
  CHECK(mounts_in(edits) > 0);
}

TEST_CASE("fake_gpu_numbers_follow_bus_order") {
  const FourGpus node;
  const auto edits = with_visible(node.of_step({0, 1, 3}), "1");
  CHECK(gpus_in(edits) == Nodes{"/dev/nvidia1"});
  CHECK(edits.denied_devices == Nodes{"/dev/nvidia3", "/dev/nvidia0"});
}

TEST_CASE("fake_gpu_is_selected_by_uuid") {
  const FourGpus node;
  CHECK(gpus_in(with_visible(node.of_step({0, 1}), "GPU-00000000-0000-0000-0000-000000000001")) ==
        Nodes{"/dev/nvidia1"});
}

TEST_CASE("fake_gpu_uuids_unknown_before_first_use_are_refused") {
  FourGpus node;
  const std::string uuid = "GPU-00000000-0000-0000-0000-000000000001";
  CHECK(with_visible(node.of_step({0}), uuid)
            .refusal.find("(hint: leave it at \"all\": Slurm selects") != std::string::npos);
  node.file("/proc/driver/nvidia/gpus/0000:40:00.0/information",
            "GPU UUID: \t GPU-" + std::string(8, '?') + "-" + std::string(4, '?') +
                "\nDevice Minor: \t 1\n");
  const std::string refusal = with_visible(node.of_step({0, 1}), uuid).refusal;
  CHECK(
      refusal.find(
          "requests " + uuid +
          ", which this step does not have; available: 0 (/dev/nvidia1), 1 (/dev/nvidia0, GPU-") !=
      std::string::npos);
  CHECK(
      refusal.find(
          "(hint: UUIDs are unknown before the first use: run nvidia-persistenced on the node)") !=
      std::string::npos);
}

TEST_CASE("fake_gpu_numbers_do_not_select_mig_parts") {
  const FakeNode node;
  node.kernel("550.54.15");
  node.libraries("/usr/lib64", "550.54.15");
  node.gpu(0, 0x20);
  node.gpu(1, 0x30);
  auto context = node.context();
  context.job = {{"SLURM_STEP_GPUS", "1"}, {"CUDA_VISIBLE_DEVICES", "1"}};
  CHECK(gpus_in(gpu_edits(context)) == Nodes{"/dev/nvidia1"});
  CHECK(nvidia_hook.task(context)->environment.set.at("CUDA_VISIBLE_DEVICES") == "0");
  node.mig(0, 1, 0, 12, 13);
  node.mig(0, 2, 0, 21, 22);
  context.granted_devices = node.context().granted_devices;
  CHECK(gpus_in(gpu_edits(context)).front() == "/dev/nvidia0");
  CHECK(gpus_in(gpu_edits(context)).back() == "/dev/nvidia1");
  CHECK(gpu_edits(context).denied_devices.empty());
  CHECK(nvidia_hook.task(context)->environment.set.empty());
}

// outcome 213 contained: MIG; GPUs by number, UUID, garbage; more than the cgroup allows
TEST_CASE("fake_gpus_outside_cgroup_are_refused_with_both_lists") {
  const FourGpus node;
  const auto some = with_visible(node.of_step({0, 1}), "0,2");
  CHECK(gpus_in(some) == Nodes{"/dev/nvidia1"});
  REQUIRE(some.warnings.size() == 1);
  CHECK(some.warnings.front() ==
        "NVIDIA_VISIBLE_DEVICES=0,2 requests 2, which this step does not have; available: "
        "0 (/dev/nvidia1, GPU-00000000-0000-0000-0000-000000000001), 1 (/dev/nvidia0, "
        "GPU-00000000-0000-0000-0000-000000000000)");
  for (const char* garbage :
       {"7", "GPU-00000000-0000-0000-0000-000000000002", "banana", "-1", "0:0", "MIG-GPU-x/0/0",
        "MIG-5d0f3b1c-0000-0000-0000-000000000000", "1x", ":"}) {
    const auto none = with_visible(node.of_step({0, 1}), garbage);
    CHECK(none.refusal.find(std::string("NVIDIA_VISIBLE_DEVICES=") + garbage + " requests") == 0);
    CHECK(gpus_in(none).empty());
    CHECK(mounts_in(none) == 0);
  }
}

TEST_CASE("fake_gpu_messages_of_long_variables_are_cut") {
  const FourGpus node;
  auto context = node.of_step({0});
  context.image["NVIDIA_VISIBLE_DEVICES"] = std::string(100000, 'x');
  context.image["NVIDIA_DRIVER_CAPABILITIES"] = std::string(100000, 'y');
  CHECK(gpu_edits(context).refusal.size() < 1000);
  context.image["NVIDIA_VISIBLE_DEVICES"] = "0";
  context.image["NVIDIA_REQUIRE_CUDA"] = "cuda>=99" + std::string(100000, '9');
  const auto edits = gpu_edits(context);
  CHECK(edits.refusal.size() < 1000);
  REQUIRE(edits.warnings.size() == 1);
  CHECK(edits.warnings.front().size() < 1000);
}

TEST_CASE("fake_gpus_void_omits_driver_none_omits_gpus") {
  const FourGpus node;
  for (const char* nothing : {"", "void"}) {
    const auto edits = with_visible(node.of_step({0, 1}), nothing);
    CHECK(mounts_in(edits) == 0);
    CHECK(edits.devices.empty());
    CHECK(edits.libraries.empty());
    CHECK(edits.denied_devices.size() == 2);
  }
  auto context = node.of_step({0, 1});
  context.job["SLURM_STEP_GPUS"] = "0,1";
  CHECK(with_visible(context, "void").warnings ==
        Nodes{"Slurm allocated the GPUs 0,1, but the job has NVIDIA_VISIBLE_DEVICES=void: none is "
              "injected (hint: unset it)"});
  context.image["NVIDIA_VISIBLE_DEVICES"] = "void";
  CHECK(gpu_edits(context).warnings.empty());
  const auto none = with_visible(node.of_step({0, 1}), "none");
  CHECK(gpus_in(none).empty());
  CHECK(mounts_in(none) > 0);
  CHECK(none.denied_devices.size() == 2);
}

TEST_CASE("fake_gpus_job_variable_and_option_beat_image_variable") {
  const FourGpus node;
  auto context = node.of_step({0, 1});
  context.image["NVIDIA_VISIBLE_DEVICES"] = "void";
  CHECK(mounts_in(gpu_edits(context)) == 0);
  context.gpu = true;
  CHECK(gpus_in(gpu_edits(context)).size() == 2);
  context.gpu.reset();
  context.job["NVIDIA_VISIBLE_DEVICES"] = "all";
  CHECK(gpus_in(gpu_edits(context)).size() == 2);
}

TEST_CASE("fake_gpus_beyond_allocation_are_masked") {
  const FourGpus node;
  auto context = node.of_step({0, 1, 2, 3});
  context.settings.emplace("gpu_numbers", "pci");
  context.job["SLURM_GPUS_ON_NODE"] = "2";
  context.job["SLURM_STEP_GPUS"] = "1,2";  // in the order of the bus: minors 2 and 1
  const auto edits = gpu_edits(context);
  CHECK(gpus_in(edits) == Nodes{"/dev/nvidia2", "/dev/nvidia1"});
  CHECK(edits.denied_devices == Nodes{"/dev/nvidia3", "/dev/nvidia0"});

  context.job["CUDA_VISIBLE_DEVICES"] = "2";
  CHECK(nvidia_hook.task(context)->environment.set.at("CUDA_VISIBLE_DEVICES") == "1");

  context.settings.emplace("gpu_devices", "accessible");
  CHECK(gpus_in(gpu_edits(context)).size() == 4);
  CHECK(nvidia_hook.task(context)->environment.set.empty());
}

TEST_CASE("fake_gpu_minors_out_of_bus_order_leave_numbers_in_doubt") {
  const FourGpus node;
  auto context = node.of_step({0, 1, 2, 3});
  context.job = {{"SLURM_STEP_GPUS", "0,1"}, {"CUDA_VISIBLE_DEVICES", "1"}};
  const auto doubtful = gpu_edits(context);
  CHECK(gpus_in(doubtful).size() == 4);
  REQUIRE(doubtful.warnings.size() == 1);
  CHECK(doubtful.warnings.front().find(
            "Slurm allocated the GPUs 0,1, but device files are not in PCI order") == 0);
  CHECK(nvidia_hook.task(context)->environment.set.empty());

  context.settings.emplace("gpu_numbers", "file");
  const auto by_file = gpu_edits(context);
  CHECK(gpus_in(by_file) == Nodes{"/dev/nvidia1", "/dev/nvidia0"});
  CHECK(by_file.warnings.empty());
  CHECK(nvidia_hook.task(context)->environment.set.at("CUDA_VISIBLE_DEVICES") == "0");
}

TEST_CASE("fake_gpu_uuids_from_slurm_are_unambiguous") {
  const FourGpus node;
  auto context = node.of_step({0, 1, 2, 3});
  const std::string uuid = "GPU-00000000-0000-0000-0000-00000000000";
  context.job = {{"SLURM_STEP_GPUS", "0,1"}, {"CUDA_VISIBLE_DEVICES", uuid + "0," + uuid + "2"}};
  const auto edits = gpu_edits(context);
  CHECK(gpus_in(edits) == Nodes{"/dev/nvidia2", "/dev/nvidia0"});
  CHECK(edits.warnings.empty());
  CHECK(nvidia_hook.task(context)->environment.set.empty());
  context.job["CUDA_VISIBLE_DEVICES"] = uuid + "0";  // of one task
  CHECK(gpus_in(gpu_edits(context)).size() == 4);
}

TEST_CASE("fake_gpus_constrained_by_slurm_are_not_renumbered_again") {
  const FourGpus node;
  auto context = node.of_step({0, 1});
  context.job["SLURM_STEP_GPUS"] = "2,3";
  context.job["CUDA_VISIBLE_DEVICES"] = "0,1";
  CHECK(gpus_in(gpu_edits(context)) == Nodes{"/dev/nvidia1", "/dev/nvidia0"});
  CHECK(nvidia_hook.task(context)->environment.set.empty());
}

TEST_CASE("fake_gpus_bound_per_task_do_not_limit_the_step") {
  const FourGpus node;
  auto context = node.of_step({0, 1});
  context.job = {
      {"SLURM_STEP_GPUS", "0"}, {"SLURM_GPUS_ON_NODE", "2"}, {"CUDA_VISIBLE_DEVICES", "0"}};
  CHECK(gpus_in(gpu_edits(context)).size() == 2);
  CHECK(nvidia_hook.task(context)->environment.set.empty());
}

// outcome 213 contained: MIG; GPUs by number, UUID, garbage; more than the cgroup allows
TEST_CASE("fake_gpu_lists_that_are_not_understood_mask_none") {
  const FourGpus node;
  for (const char* list : {"0,9", "a", "-1", "0,1,2,3"}) {
    auto context = node.of_step({0, 1, 2, 3});
    context.job["SLURM_JOB_GPUS"] = list;
    CHECK(gpus_in(gpu_edits(context)).size() == 4);
  }
}

TEST_CASE("fake_gpu_capabilities_select_libraries_and_programs") {
  const FourGpus node;
  node.file("/usr/bin/nvidia-smi");
  node.file("/usr/bin/nvidia-cuda-mps-control");
  const auto targets = [&](const char* words) {
    auto context = node.of_step({0});
    context.job["NVIDIA_DRIVER_CAPABILITIES"] = words;
    std::string names;
    for (const MountEdit& mount : gpu_edits(context).mounts) {
      if (!mount.target.empty()) names += mount.target.substr(mount.target.rfind('/') + 1) + " ";
    }
    return names;
  };
  const std::string v = ".so.550.54.15 ";
  CHECK(targets("utility") == "libnvidia-brandnew" + v + "libnvidia-ml" + v + "nvidia-smi ");
  CHECK(targets("compute") == "libcuda" + v + "libnvidia-brandnew" + v +
                                  "libnvidia-ptxjitcompiler" + v + "nvidia-cuda-mps-control ");
  CHECK(targets("") == "libcuda" + v + "libnvidia-brandnew" + v + "libnvidia-ml" + v +
                           "libnvidia-ptxjitcompiler" + v + "nvidia-smi nvidia-cuda-mps-control ");
  CHECK(targets("video").find("libvdpau_nvidia") != std::string::npos);
}

TEST_CASE("fake_gpu_mps_with_own_namespaces_warns") {
  const FourGpus node;
  auto context = node.of_step({0});
  const auto warned = [&] {
    const Edits edits = gpu_edits(context);
    return std::any_of(edits.warnings.begin(), edits.warnings.end(), [](const auto& text) {
      return text.starts_with(
          "the node's MPS daemon may refuse programs in IPC or PID namespaces of their own, with "
          "CUDA error 805");
    });
  };
  context.own_ipc = true;
  CHECK_FALSE(warned());  // there is no daemon
  node.file("/tmp/nvidia-mps/control");
  CHECK_FALSE(warned());  // a regular file does not count: the daemon's is a socket
  const std::string path = node.host() / "tmp/nvidia-mps/control";
  std::filesystem::remove(path);
  const UniqueFd daemon(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.copy(address.sun_path, sizeof address.sun_path - 1) == path.size());
  REQUIRE(::bind(daemon.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  CHECK(warned());
  context.own_ipc = false;
  CHECK_FALSE(warned());
  context.own_pid = true;
  CHECK(warned());
  context.job["CUDA_MPS_PIPE_DIRECTORY"] = "/tmp/another";
  CHECK_FALSE(warned());
}

TEST_CASE("fake_gpu_unknown_capability_is_reported") {
  const FourGpus node;
  auto context = node.of_step({0});
  context.job["NVIDIA_DRIVER_CAPABILITIES"] = "utility,magic";
  CHECK(gpu_edits(context).warnings ==
        Nodes{"NVIDIA_DRIVER_CAPABILITIES: unknown capability \"magic\""});
}

TEST_CASE("fake_amd_and_intel_variables_are_renumbered_when_masked") {
  const FakeNode node;
  node.render(128, 0, "0x1002", "0000:11:00.0");
  node.render(129, 1, "0x1002", "0000:c1:00.0");
  node.render(130, 2, "0x8086", "0000:02:00.0");
  node.render(131, 3, "0x8086", "0000:03:00.0");
  auto context = node.context();
  context.job = {
      {"SLURM_STEP_GPUS", "1"}, {"ROCR_VISIBLE_DEVICES", "1"}, {"ZE_AFFINITY_MASK", "1"}};
  CHECK(amd_hook.task(context)->environment.set.empty());
  CHECK(intel_hook.task(context)->environment.set ==
        std::map<std::string, std::string>{{"ZE_AFFINITY_MASK", "0"}});
  context.settings.emplace("prefer_cdi", "true");
  CHECK(intel_hook.task(context)->environment.set.empty());
}

TEST_CASE("fake_amd_gpus_are_left_out_by_variable_not_by_mask") {
  const FakeNode node;
  node.render(128, 0, "0x1002", "0000:11:00.0");
  node.render(129, 1, "0x1002", "0000:c1:00.0");
  node.link("/sys/class/drm/renderD130/device", "../../../devices/platform/amdgpu_xcp_0");
  node.file("/dev/dri/renderD130");
  const auto rocr = [&](const std::map<std::string, std::string>& job) -> std::string {
    auto context = node.context();
    context.job = job;
    const auto edits = amd_hook.task(context);
    REQUIRE(edits);
    const auto& set = edits->environment.set;
    return set.contains("ROCR_VISIBLE_DEVICES") ? set.at("ROCR_VISIBLE_DEVICES")
           : edits->warnings.empty()            ? ""
                                                : "warning";
  };
  CHECK(rocr({}).empty());
  CHECK(rocr({{"SLURM_STEP_GPUS", "1"}}) == "1");
  CHECK(rocr({{"SLURM_STEP_GPUS", "1"}, {"ROCR_VISIBLE_DEVICES", "1"}}).empty());
  CHECK(rocr({{"AMD_VISIBLE_DEVICES", "2,0"}}) == "0,2");
  CHECK(rocr({{"AMD_VISIBLE_DEVICES", "0"}, {"SLURM_STEP_GPUS", "1,2"}}) == "1");
  CHECK(rocr({{"AMD_VISIBLE_DEVICES", "0,1"}, {"ROCR_VISIBLE_DEVICES", "1,2"}}) == "1");
  CHECK(rocr({{"AMD_VISIBLE_DEVICES", "0"}, {"ROCR_VISIBLE_DEVICES", "GPU-5d"}}) == "warning");
  CHECK(rocr({{"AMD_VISIBLE_DEVICES", "none"}}) == "-1");
  // ROCm numbers GPUs in the order of KFD.
  for (const auto& [place, minor] : {std::pair{"1", "129"}, {"2", "128"}, {"3", "130"}})
    node.file(std::string("/sys/class/kfd/kfd/topology/nodes/") + place + "/properties",
              std::string("drm_render_minor ") + minor + "\n");
  CHECK(rocr({{"AMD_VISIBLE_DEVICES", "0,1"}}) == "0,1");
  const auto context = node.context();
  CHECK(dri_gpus(context, "0x1002").front().render_node == "/dev/dri/renderD129");
  CHECK(amd_hook.prepare(context)->denied_devices.empty());
}

TEST_CASE("fake_gpus_of_slurm_that_cannot_be_opened_are_reported") {
  const FakeNode node;
  node.kernel("550.54.15");
  node.gpu(0, 0x20);
  auto context = node.context();
  context.granted_devices->clear();
  CHECK_FALSE(nvidia_hook.when(context));
  context.job = {{"SLURM_JOB_GPUS", "0"},
                 {"SLURM_STEP_ID", "3"}};  // of the job, in a step without GPUs
  CHECK_FALSE(nvidia_hook.when(context));
  context.job = {{"SLURM_STEP_GPUS", "0"}};
  REQUIRE(nvidia_hook.when(context));
  std::filesystem::remove(node.host() / "dev/nvidia0");
  const auto warnings = nvidia_hook.prepare(context)->warnings;
  REQUIRE(warnings.size() == 1);
  const std::string why =
      "Slurm allocated the GPUs 0, but none can be opened: /dev/nvidia0: no such file or directory "
      "(hint: ";
  CHECK(warnings.front().find(why) == 0);
  std::filesystem::remove_all(node.host() / "proc/driver");
  CHECK(nvidia_hook.prepare(context)->warnings.empty());  // GPUs of an unknown vendor
  node.file("/sys/bus/pci/devices/0000:20:00.0/vendor", "0x10de\n");
  node.file("/sys/bus/pci/devices/0000:20:00.0/class", "0x030200\n");
  CHECK(nvidia_hook.prepare(context)->warnings.size() == 1);
}

TEST_CASE("gpu_numbers_of_node_are_renumbered_to_visible_devices") {
  const std::vector<std::size_t> by_bus{0, 1, 2, 3}, against_it{3, 2, 1, 0};
  CHECK(renumbered("2", "1,2", by_bus) == "1");
  CHECK(renumbered("3,1", "1,3", by_bus) == "1,0");
  CHECK(renumbered("3,1", "1,3", against_it) == "0,1");
  CHECK(renumbered("0", "1,2", by_bus) == std::nullopt);
  CHECK(renumbered("9", "1,2", by_bus) == std::nullopt);
  CHECK(renumbered("GPU-5d", "1,2", by_bus) == std::nullopt);
  CHECK(renumbered("", "1,2", by_bus) == std::nullopt);
}
