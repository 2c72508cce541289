#include <sys/resource.h>

#include "hooks/fabric/fabric.hpp"
#include "hooks/step/allocation.hpp"
#include "unit/hooks/fabric/fabric_node.hpp"

TEST_CASE("fabric_fake_adapters_are_found_with_nodes_and_providers") {
  const FabricNode node;
  CHECK(fabric_devices(node.context).empty());
  node.add_adapter("mlx5_10", "mlx5_core", "0000:5e:00.0", 2);
  node.two_adapters();
  node.add_adapter("rocep1s0", "bnxt_en", "0000:01:00.0", -1);
  node.write("/sys/class/cxi/cxi0/properties");
  node.write("/dev/cxi0");
  const auto devices = fabric_devices(node.context);
  REQUIRE(devices.size() == 5);
  CHECK(devices[0] == FabricDevice{.kind = FabricDevice::Kind::verbs,
                                   .name = "mlx5_0",
                                   .provider = "mlx5",
                                   .link_layer = "InfiniBand",
                                   .pci_address = "0000:1b:00.0",
                                   .node = "/dev/infiniband/uverbs0",
                                   .others = {"/dev/infiniband/umad0"}});
  CHECK(devices[2].name == "mlx5_10");
  CHECK(devices[2].node == "/dev/infiniband/uverbs2");
  CHECK(devices[3].provider == "bnxt_re");
  CHECK(devices[3].node.empty());
  CHECK(devices[4].kind == FabricDevice::Kind::slingshot);
  CHECK(devices[4].node == "/dev/cxi0");
}

TEST_CASE("fabric_provider_follows_module_or_name") {
  CHECK(verbs_provider("ice", "rocep3s0") == "irdma");
  CHECK(verbs_provider("efa", "rdmap0s6") == "efa");
  CHECK(verbs_provider("hns3", "hns_0") == "hns");
  CHECK(verbs_provider("", "rxe0") == "rxe");
  CHECK(verbs_provider("", "erdma_0") == "erdma");
  CHECK(verbs_provider("", "strange").empty());
}

TEST_CASE("fabric_job_selects_fake_adapters_by_number_name_address") {
  FabricNode node;
  node.two_adapters();
  node.add_adapter("bnxt_re0", "bnxt_en", "0000:01:00.0", 2);  // first in the order of names
  const auto devices = fabric_devices(node.context);
  using Choice = std::vector<bool>;
  const auto chosen = [&](const char* variable, const char* value) {
    node.context.job = {{variable, value}};
    Choice choice;
    const auto adapters = choose_adapters(node.context, devices);
    for (const FabricAdapter& adapter : adapters.value()) choice.push_back(adapter.chosen);
    return choice;
  };
  for (const char* variable : {"MELLANOX_VISIBLE_DEVICES", "FABRIC_VISIBLE_DEVICES"}) {
    for (const char* all : {"", "all", "void"})
      CHECK(chosen(variable, all) == Choice{true, true, true});
  }
  CHECK(chosen("MELLANOX_VISIBLE_DEVICES", "none") == Choice{true, false, false});
  CHECK(chosen("FABRIC_VISIBLE_DEVICES", "none") == Choice{false, false, false});
  CHECK(chosen("MELLANOX_VISIBLE_DEVICES", "1") == Choice{true, false, true});
  CHECK(chosen("FABRIC_VISIBLE_DEVICES", "1,bnxt_re0") == Choice{true, true, false});
  CHECK(chosen("FABRIC_VISIBLE_DEVICES", "0000:3d:00.0") == Choice{false, false, true});
  node.context.job = {{"MELLANOX_VISIBLE_DEVICES", "0,7"}};
  const auto refused = choose_adapters(node.context, devices);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message().find("no adapter \"7\" on this node") != std::string::npos);
}

TEST_CASE("fabric_unselected_fake_adapters_are_denied") {
  FabricNode node;
  node.two_adapters();
  node.context.job["MELLANOX_VISIBLE_DEVICES"] = "mlx5_1";
  CHECK(node.start(fabric_hook).denied_devices ==
        std::vector<std::string>{"/dev/infiniband/umad0", "/dev/infiniband/uverbs0"});
  node.context.job["MELLANOX_VISIBLE_DEVICES"] = "none";
  const auto edits = node.start(fabric_hook);
  CHECK(edits.denied_devices.size() == 5);
  CHECK(edits.denied_devices.back() == "/dev/infiniband/rdma_cm");
  CHECK(edits.notes ==
        std::vector<std::string>{"TCP: the job selects none of the node's adapters"});
  CHECK(edits.warnings.empty());
  CHECK(edits.limits.empty());
}

TEST_CASE("fabric_ordinary_node_adds_only_a_note") {
  FabricNode node;
  node.of_two_nodes();
  node.context.image["NCCL_VERSION"] = "2";
  const auto edits = node.start(fabric_hook);
  CHECK(edits.notes == std::vector<std::string>{"TCP: the node has no fabric adapter"});
  CHECK(edits.warnings.empty());
  CHECK(edits.limits.empty());
  CHECK(edits.refusal.empty());
}

TEST_CASE("fabric_fake_adapters_lift_memlock_without_warning") {
  FabricNode node;
  node.of_two_nodes();
  node.two_adapters();
  node.image_with_verbs();
  node.context.image["NCCL_VERSION"] = "2";
  const auto edits = node.start(fabric_hook);
  CHECK(edits.limits == std::vector<LimitEdit>{{"memlock", UINT64_MAX}});
  CHECK(has(edits.notes, "mlx5_0 (InfiniBand), mlx5_1 (InfiniBand); locked memory: "));
  CHECK(but_for_limits(edits.warnings).empty());
}

TEST_CASE("fabric_image_lacking_libraries_warns_if_it_communicates") {
  FabricNode node;
  node.two_adapters();
  node.of_two_nodes();
  CHECK(node.start(fabric_hook).warnings.empty());
  node.context.image["NCCL_VERSION"] = "2";
  CHECK(has(node.start(fabric_hook).warnings,
            "the fabric is not used: the image has no libibverbs.so.1 (hint: "));
  node.image_with_verbs();
  fs::remove(node.image / "etc/libibverbs.d/mlx5.driver");
  CHECK(has(node.start(fabric_hook).warnings,
            "the image's libibverbs has no provider for mlx5 (hint: "));
  node.context.job["SLURM_STEP_NUM_TASKS"] = "1";
  CHECK(node.start(fabric_hook).warnings.empty());
}

TEST_CASE("fabric_library_in_image_cache_is_found") {
  FabricNode node;
  node.write_image("/etc/ld.so.cache", std::string("glibc-ld.so.cache1.1 libmpi.so.40") + '\0' +
                                           "/opt/libmpi.so.40" + '\0');
  const Edits none;
  CHECK(LibrariesInside(node.context, none).can_talk());
  CHECK(LibrariesInside(node.context, none).have("libmpi.so.40"));
  CHECK_FALSE(LibrariesInside(node.context, none).have("libmpi.so.4"));
}

TEST_CASE("fabric_library_in_rpath_or_library_path_is_found") {
  for (const char* directory : {"/opt/libfabric/lib", "/opt/amazon/efa/lib64",
                                "/opt/cray/libfabric/lib64", "/usr/local/lib", "/opt/mine"}) {
    FabricNode node;
    node.of_two_nodes();
    node.add_adapter("rdmap0s6", "efa", "0000:00:06.0", 0);
    node.context.settings.emplace("fabric", "require");
    CHECK(has(node.start(fabric_hook).refusal, "the image has no libfabric.so.1, which EFA needs"));
    node.context.image["LD_LIBRARY_PATH"] = "/nowhere:/opt/mine";
    node.write_image(std::string(directory) + "/libfabric.so.1");
    CHECK_FALSE(has(node.start(fabric_hook).refusal, "libfabric"));
  }
  FabricNode node;
  const Edits none;
  CHECK_FALSE(LibrariesInside(node.context, none).can_talk());
  node.write_image("/usr/lib/libpsm2.so.2");
  CHECK(LibrariesInside(node.context, none).can_talk());
}

// outcome 219 degraded: no /dev/infiniband, a small memlock limit
TEST_CASE("fabric_fake_adapter_without_usable_node_is_a_fault") {
  FabricNode node;
  node.of_two_nodes();
  node.context.image["NCCL_VERSION"] = "2";
  node.add_adapter("mlx5_0", "mlx5_core", "0000:1b:00.0", -1);
  auto edits = node.start(fabric_hook);
  CHECK(has(edits.warnings,
            "mlx5_0 has no device node in /dev/infiniband (hint: load the module ib_uverbs)"));
  CHECK(has(edits.notes, "TCP: mlx5_0 has no device node"));
  node.context.settings.emplace("fabric", "require");
  CHECK(node.start(fabric_hook)
            .refusal.starts_with("the site requires the fabric: mlx5_0 has no device node"));
}

TEST_CASE("fabric_required_by_site_refuses_multi_node_step_without") {
  FabricNode node;
  node.context.settings.emplace("fabric", "require");
  node.of_two_nodes();
  CHECK(node.start(fabric_hook).refusal ==
        "the site requires the fabric: the node has no fabric adapter");
  node.two_adapters();
  CHECK(
      node.start(fabric_hook)
          .refusal.starts_with(
              "the site requires the fabric: the fabric is not used: the image has no libibverbs"));
  node.image_with_verbs();
  const std::string refusal = node.start(fabric_hook).refusal;
  rlimit locked{};
  REQUIRE(::getrlimit(RLIMIT_MEMLOCK, &locked) == 0);
  CHECK(refusal.empty() == (locked.rlim_max >= (1U << 30)));
  node.context.job["SLURM_STEP_NUM_NODES"] = "1";
  fs::remove_all(node.root);
  CHECK(node.start(fabric_hook).refusal.empty());
}

TEST_CASE("fabric_node_libraries_are_found_by_soname_and_name") {
  FabricNode node;
  node.write("/opt/plugin/libnccl-net.so", elf_library("libnccl-net.so.0"));
  node.write("/opt/verbs/libmlx5-rdmav34.so", elf_library("libmlx5.so.1"));
  node.write("/opt/text", "no library");
  for (const char* path : {"/opt/plugin/libnccl-net.so", "/opt/verbs/libmlx5-rdmav34.so",
                           "/opt/text", "/opt/missing.so"})
    node.context.settings.emplace("fabric_libraries", path);
  const auto edits = node.start(fabric_hook);
  REQUIRE(edits.mounts.size() == 2);
  CHECK(edits.mounts[0].source == "/opt/plugin/libnccl-net.so");
  CHECK(edits.mounts[0].target == "/usr/lib/spank-container/fabric/libnccl-net.so");
  CHECK(edits.mounts[0].read_only);
  std::vector<std::string> sonames;
  for (const LibraryEdit& library : edits.libraries) sonames.push_back(library.soname);
  CHECK(sonames == std::vector<std::string>{"libnccl-net.so", "libnccl-net.so.0",
                                            "libmlx5-rdmav34.so", "libmlx5.so.1"});
  CHECK(edits.files == std::vector<FileEdit>{{"/etc/libibverbs.d/mlx5.driver", "driver mlx5\n"}});
  CHECK(has(edits.warnings, "fabric_libraries: a provider without libibverbs.so.1"));
  CHECK(has(edits.warnings, "fabric_libraries: library \"/opt/text\" of the node: "));
  CHECK(has(
      edits.warnings,
      "fabric_libraries: find library \"/opt/missing.so\" of the node: no such file or directory"));
}

TEST_CASE("fabric_fake_slingshot_needs_libfabric_and_libcxi") {
  FabricNode node;
  node.of_two_nodes();
  node.write("/sys/class/cxi/cxi0/properties");
  node.write("/dev/cxi0");
  node.context.image["NCCL_VERSION"] = "2";
  CHECK(has(node.start(fabric_hook).warnings, "the image has no libfabric.so.1 with libcxi.so.1"));
  for (const char* name : {"libfabric.so.1", "libcxi.so.1"}) {
    node.write(std::string("/opt/cray/") + name, elf_library(name));
    node.context.settings.emplace("fabric_libraries", std::string("/opt/cray/") + name);
  }
  CHECK(has(node.start(fabric_hook).warnings,
            "the fabric is not used: the image has NCCL, but not its plugin for libfabric"));
  node.write_image("/usr/lib/libnccl-net.so");
  CHECK(but_for_limits(node.start(fabric_hook).warnings).empty());
}

TEST_CASE("fabric_fake_rccl_on_slingshot_needs_a_plugin") {
  FabricNode node;
  node.of_two_nodes();
  node.write("/sys/class/cxi/cxi0/properties");
  node.write("/dev/cxi0");
  for (const char* name : {"libfabric.so.1", "libcxi.so.1", "librccl.so.1"})
    node.write_image(std::string("/usr/lib/") + name);
  CHECK(has(node.start(fabric_hook).warnings, "libnccl-net.so (for RCCL, librccl-net.so)"));
  node.write_image("/usr/lib/librccl-net.so");
  CHECK(but_for_limits(node.start(fabric_hook).warnings).empty());
}

TEST_CASE("fabric_fake_efa_is_used_by_libfabric") {
  FabricNode node;
  node.of_two_nodes();
  node.add_adapter("rdmap0s6", "efa", "0000:00:06.0", 0);
  node.image_with_verbs();
  node.write_image("/etc/libibverbs.d/efa.driver", "driver efa\n");
  node.context.image["NCCL_VERSION"] = "2";
  CHECK(has(node.start(fabric_hook).warnings,
            "the fabric is not used: the image has no libfabric.so.1, which EFA needs"));
  node.context.image["LD_LIBRARY_PATH"] = "/opt/mine/lib:/opt/plugin";
  node.write_image("/opt/mine/lib/libfabric.so.1");
  CHECK(has(node.start(fabric_hook).warnings,
            "the fabric is not used: the image has NCCL, but not its plugin for libfabric"));
  node.write_image("/opt/plugin/libnccl-net.so");
  CHECK(but_for_limits(node.start(fabric_hook).warnings).empty());
}

TEST_CASE("fabric_fake_omni_path_is_used_by_psm2_or_libfabric") {
  FabricNode node;
  node.of_two_nodes();
  node.add_adapter("hfi1_0", "hfi1", "0000:5e:00.0", 0);
  node.image_with_verbs();
  node.write_image("/usr/lib/libmpi.so.40");
  CHECK(has(node.start(fabric_hook).warnings,
            "hfi1_0 has no device node in /dev (hint: load the module hfi1)"));
  node.write("/dev/hfi1_0");
  CHECK(has(node.start(fabric_hook).warnings,
            "the image has neither libpsm2.so.2 nor libfabric.so.1"));
  node.write_image("/usr/lib/libpsm2.so.2");
  CHECK(but_for_limits(node.start(fabric_hook).warnings).empty());
  node.context.job["FABRIC_VISIBLE_DEVICES"] = "none";
  CHECK(has(node.start(fabric_hook).denied_devices, "/dev/hfi1_0"));
  CHECK(has(node.start(fabric_hook).denied_devices, "/dev/infiniband/uverbs0"));
}

TEST_CASE("fabric_node_libraries_precede_image_library_path") {
  FabricNode node;
  node.two_adapters();
  node.write("/opt/verbs/libibverbs.so.1", elf_library("libibverbs.so.1"));
  node.write("/opt/verbs/libmlx5-rdmav34.so", elf_library("libmlx5.so.1"));
  for (const char* name : {"libibverbs.so.1", "libmlx5-rdmav34.so"})
    node.context.settings.emplace("fabric_libraries", std::string("/opt/verbs/") + name);
  auto edits = node.start(fabric_hook);
  CHECK(edits.environment.prepend.empty());
  // libibverbs appends -rdmav34.so to an absolute path, and then does not search its own directory.
  CHECK(edits.files == std::vector<FileEdit>{{"/etc/libibverbs.d/mlx5.driver",
                                              "driver /usr/lib/spank-container/fabric/libmlx5\n"}});
  node.context.image["LD_LIBRARY_PATH"] = "/opt/hpcx/lib";
  edits = node.start(fabric_hook);
  CHECK(edits.environment.prepend.at("LD_LIBRARY_PATH") == "/usr/lib/spank-container/fabric");
}

// outcome 214 degraded: sockets of the driver's daemons there or not; fabric manager absent
TEST_CASE("fabric_fake_nvswitch_without_manager_warns_gpu_steps") {
  FabricNode node;
  node.write("/dev/nvidia-nvswitchctl");
  CHECK(node.start(fabric_hook).warnings.empty());
  node.context.job["SLURM_STEP_GPUS"] = "0,1";
  CHECK(node.start(fabric_hook).warnings.empty());  // it can run there without a trace
  CHECK(has(node.start(fabric_hook).notes, "nothing of a running fabric manager was found"));
  node.write("/run/nvidia-fabricmanager/nv-fabricmanager.pid");  // its socket is optional
  CHECK_FALSE(has(node.start(fabric_hook).notes, "fabric manager"));
}

TEST_CASE("fabric_first_task_checks_dev_shm") {
  FabricNode node;
  node.of_two_nodes();
  CHECK(has(fabric_hook.task(node.context)->warnings, "no /dev/shm"));
  fs::create_directories(node.image / "dev/shm");  // as large as this file system
  CHECK(fabric_hook.task(node.context)->warnings.empty());
  fs::remove(node.image / "dev/shm");
  node.context.job["SLURM_LOCALID"] = "1";
  CHECK(*fabric_hook.task(node.context) == Edits());
  node.context.job["SLURM_LOCALID"] = "0";
  node.context.job["SLURM_STEP_TASKS_PER_NODE"] = "1(x2)";
  CHECK(*fabric_hook.task(node.context) == Edits());
}

TEST_CASE("nccl_conf_of_node_is_mounted_with_its_files") {
  FabricNode node;
  CHECK(node.start(nccl_hook) == Edits());
  node.write("/etc/nccl.conf",
             "# NCCL_GRAPH_FILE=/opt/not.xml\nNCCL_TOPO_FILE = "
             "/opt/topo.xml\r\nNCCL_DEBUG=INFO\nNCCL_NET_PLUGIN=ofi\n"
             "NCCL_TUNER_CONFIG_PATH=/opt/missing.conf\nNCCL_TOPO_DUMP_FILE=/opt/"
             "dump.xml\nNCCL_GRAPH_FILE=/opt/topo.xml");
  node.write("/opt/topo.xml");
  node.write("/opt/dump.xml");
  node.write("/var/run/nvidia-topologyd/virtualTopology.xml");
  const auto edits = node.start(nccl_hook);
  std::vector<std::string> targets;
  for (const MountEdit& mount : edits.mounts) {
    CHECK(mount.source == mount.target);
    CHECK(mount.read_only);
    CHECK(mount.optional);
    targets.push_back(mount.target);
  }
  CHECK(targets ==
        std::vector<std::string>{"/var/run/nvidia-topologyd", "/etc/nccl.conf", "/opt/topo.xml"});
  CHECK(edits.environment == Edits::Environment());
  CHECK(has(edits.notes, "/opt/missing.conf, which it names, cannot be read on this node"));
  CHECK(edits.files.empty());
}

TEST_CASE("nccl_and_rccl_conf_of_image_follow_the_node") {
  FabricNode node;
  node.write_image("/etc/nccl.conf", "NCCL_DEBUG=WARN\n");
  node.write_image("/etc/rccl.conf", "");
  CHECK(node.start(nccl_hook) == Edits());
  node.write("/etc/nccl.conf", "NCCL_ALGO=Ring");
  node.write("/etc/rccl.conf",
             "NCCL_TOPO_FILE=/opt/topo.xml\nNCCL_NET_PLUGIN=/opt/librccl-net.so\n");
  node.write("/opt/topo.xml");
  node.write("/opt/librccl-net.so");
  const auto edits = node.start(nccl_hook);
  std::vector<std::string> targets;
  for (const MountEdit& mount : edits.mounts) targets.push_back(mount.target);
  CHECK(targets ==
        std::vector<std::string>{"", "/etc/rccl.conf", "/opt/topo.xml", "/opt/librccl-net.so"});
  REQUIRE(edits.files.size() == 1);
  CHECK(edits.files[0].path == "/etc/nccl.conf");
  CHECK(edits.files[0].content ==
        "NCCL_ALGO=Ring\n# Of the image. Lines above have precedence.\nNCCL_DEBUG=WARN\n");
  CHECK(has(
      edits.notes,
      "the image's /etc/nccl.conf is added to it: where both set a variable, the node's counts"));
}

TEST_CASE("sharp_variables_are_set_for_jobs_that_request_sharp") {
  FabricNode node;
  node.of_two_nodes();
  CHECK(*sharp_hook.task(node.context) == Edits());
  node.context.job["SLURM_NETWORK"] = "sharp";
  const auto edits = *sharp_hook.task(node.context);
  CHECK(edits.environment.defaults ==
        std::map<std::string, std::string>{
            {"SHARP_COLL_LOCK_ON_COMM_INIT", "1"},
            {"SHARP_COLL_NUM_COLL_GROUP_RESOURCE_ALLOC_THRESHOLD", "0"},
            {"NCCL_COLLNET_ENABLE", "1"},
            {"NCCL_SHARP_GROUP_SIZE_THRESH", "2"}});
  CHECK(edits.notes.size() == 1);
  node.context.job["MELLANOX_VISIBLE_DEVICES"] = "none";
  CHECK(*sharp_hook.task(node.context) == Edits());
}

TEST_CASE("fabric_off_disables_fabric_nccl_and_sharp_hooks") {
  HookContext context;
  for (const Hook* hook : {&fabric_hook, &nccl_hook, &sharp_hook}) CHECK(hook->when(context));
  context.settings.emplace("fabric", "off");
  for (const Hook* hook : {&fabric_hook, &nccl_hook, &sharp_hook}) CHECK_FALSE(hook->when(context));
}

TEST_CASE("step_size_is_read_from_slurm_variables") {
  HookContext context;
  CHECK_FALSE(StepSize::of(context).is_several());
  context.job = {{"SLURM_STEP_NUM_TASKS", "3"},
                 {"SLURM_STEP_NUM_NODES", "2"},
                 {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
                 {"SLURM_NODEID", "1"},
                 {"SLURM_STEP_GPUS", "0,1"}};
  const auto step = StepSize::of(context);
  CHECK(step.tasks == 3);
  CHECK(step.nodes == 2);
  CHECK(step.tasks_here == 1);
  CHECK(step.gpus == 2);
}
