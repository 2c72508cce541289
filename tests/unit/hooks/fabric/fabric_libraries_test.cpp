// fabric_libraries and fallback_libraries for an image, as its loader would select them. The
// libraries are fake: they have dependencies and symbols, but no code.

#include "hooks/fabric/fabric.hpp"
#include "unit/hooks/fabric/fabric_node.hpp"

namespace {

const std::string kOfFabric = "/usr/lib/spank-container/fabric/";

/// A node with Slingshot and an image with NCCL, its plugin and glibc 2.31, in a step of two nodes.
struct LibraryNode : FabricNode {
  LibraryNode() {
    of_two_nodes();
    write("/sys/class/cxi/cxi0/properties");
    write("/dev/cxi0");
    context.image["NCCL_VERSION"] = "2";
    write_image("/lib64/ld-linux-x86-64.so.2", MadeElf{.soname = "ld-linux-x86-64.so.2"}.bytes());
    put_in_image({.soname = "libc.so.6",
                  .version_definitions = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.31"}});
    write_image("/usr/lib/libnccl-net.so");
  }
  void put_in_image(const MadeElf& library) const {
    write_image("/usr/lib/" + library.soname, library.bytes());
  }
  void offer(const char* list, const MadeElf& library) {
    write("/opt/site/" + library.soname, library.bytes());
    context.settings.emplace(list, "/opt/site/" + library.soname);
  }
  /// Adds the other libraries of Slingshot.
  void offer_cxi() {
    offer("fabric_libraries", {.soname = "libcxi.so.1", .needed = {"libc.so.6"}});
  }
};

std::vector<std::string> given(const Edits& edits) {
  std::vector<std::string> sonames;
  for (const LibraryEdit& library : edits.libraries) sonames.push_back(library.soname);
  return sonames;
}

std::vector<std::string> mounted(const Edits& edits) {
  std::vector<std::string> targets;
  for (const MountEdit& mount : edits.mounts) {
    if (!mount.target.empty()) targets.push_back(mount.target);
  }
  return targets;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("fabric_library_needing_newer_libc_is_skipped") {
  LibraryNode node;
  node.offer_cxi();
  node.offer("fabric_libraries", {.soname = "libfabric.so.1",
                                  .needed = {"libc.so.6"},
                                  .version_needs = {{"libc.so.6", {"GLIBC_2.17", "GLIBC_2.38"}}}});
  const auto edits = node.start(fabric_hook);
  CHECK(given(edits) == Names{"libcxi.so.1"});
  CHECK(mounted(edits) == Names{kOfFabric + "libcxi.so.1"});
  CHECK(has(edits.warnings,
            "fabric_libraries: the node's libfabric.so.1 needs GLIBC_2.38, but the image's C "
            "library goes up to 2.31: it is left out (hint: use "
            "an image of a newer distribution)"));
  CHECK(has(edits.warnings,
            "the fabric is not used: the image has no libfabric.so.1 with libcxi.so.1"));
  node.context.settings.emplace("fabric", "require");
  CHECK(has(node.start(fabric_hook).refusal, "GLIBC_2.38"));
  node.context.settings.erase("fabric");
  node.context.job["SLURM_STEP_NUM_TASKS"] = "1";  // a single task has no peers: explained only
  CHECK(node.start(fabric_hook).warnings.empty());
  CHECK(has(node.start(fabric_hook).notes, "GLIBC_2.38"));
}

TEST_CASE("fabric_library_with_missing_dependency_is_skipped") {
  LibraryNode node;
  node.offer("fabric_libraries",
             {.soname = "libfabric.so.1", .needed = {"libcxi.so.1", "libc.so.6"}});
  node.offer("fabric_libraries",
             {.soname = "libcxi.so.1", .needed = {"libnl-3.so.200", "libc.so.6"}});
  const auto edits = node.start(fabric_hook);
  CHECK(given(edits).empty());
  CHECK(mounted(edits).empty());
  CHECK(has(edits.warnings,
            "the node's libcxi.so.1 needs libnl-3.so.200, which neither the image nor "
            "fabric_libraries has: it and 1 more are left out (hint: "
            "the site can add it to fallback_libraries)"));
  CHECK(has(edits.notes,
            "the node's libfabric.so.1 needs libcxi.so.1, which is left out: it is left out"));
}

TEST_CASE("fabric_fallback_library_is_given_only_when_needed") {
  LibraryNode node;
  node.offer("fabric_libraries", {.soname = "libfabric.so.1",
                                  .needed = {"libcxi.so.1", "libjson-c.so.5", "libc.so.6"}});
  node.offer("fabric_libraries",
             {.soname = "libcxi.so.1", .needed = {"libnl-3.so.200", "libc.so.6"}});
  for (const char* name : {"libnl-3.so.200", "libjson-c.so.5", "libcurl.so.4"})
    node.offer("fallback_libraries", {.soname = name, .needed = {"libc.so.6"}});
  node.put_in_image({.soname = "libjson-c.so.5"});
  node.context.image["LD_LIBRARY_PATH"] = "/opt/hpcx/lib";
  const auto edits = node.start(fabric_hook);
  CHECK(but_for_limits(edits.warnings).empty());
  CHECK(given(edits) == Names{"libfabric.so.1", "libcxi.so.1", "libnl-3.so.200"});
  CHECK(edits.libraries.front().before);
  CHECK_FALSE(edits.libraries.back().before);
  // Not in a directory where LD_LIBRARY_PATH would give it precedence in all programs.
  CHECK(mounted(edits) == Names{kOfFabric + "libfabric.so.1", kOfFabric + "libcxi.so.1",
                                kOfFabric + "fallback/libnl-3.so.200"});
  CHECK(edits.environment.prepend.at("LD_LIBRARY_PATH") + "/" == kOfFabric);
}

TEST_CASE("fabric_libfabric_too_old_for_image_mpi_is_skipped") {
  LibraryNode node;
  node.offer_cxi();
  node.offer("fabric_libraries", {.soname = "libfabric.so.1",
                                  .needed = {"libc.so.6"},
                                  .version_definitions = {"FABRIC_1.0", "FABRIC_1.6"}});
  node.put_in_image({.soname = "libfabric.so.1",
                     .version_definitions = {"FABRIC_1.0", "FABRIC_1.6", "FABRIC_1.7"}});
  node.put_in_image({.soname = "libmpi.so.12",
                     .needed = {"libfabric.so.1"},
                     .version_needs = {{"libfabric.so.1", {"FABRIC_1.6"}}}});
  const auto harmless =
      // The image's MPI does not need the newer one, but another program might.
      node.start(fabric_hook);
  CHECK(has(given(harmless), "libfabric.so.1"));
  CHECK(has(harmless.warnings,
            "the node's libfabric.so.1 is older than the image's: programs that need its "
            "FABRIC_1.7 will not start"));

  node.put_in_image({.soname = "libmpi.so.12",
                     .needed = {"libfabric.so.1"},
                     .version_needs = {{"libfabric.so.1", {"FABRIC_1.7"}}}});
  const auto harmful = node.start(fabric_hook);
  CHECK(given(harmful) == Names{"libcxi.so.1"});
  CHECK(has(harmful.warnings,
            "the node's libfabric.so.1 lacks FABRIC_1.7, which the image's libmpi.so.12 needs: it "
            "is left out"));
}

TEST_CASE("fabric_ucx_libraries_are_given_together_or_not") {
  LibraryNode node;
  const MadeElf ucp{.soname = "libucp.so.0",
                    .needed = {"libucs.so.0", "libc.so.6"},
                    .functions = {"ucp_init", "ucp_tag_send"}};
  const MadeElf ucs{.soname = "libucs.so.0", .needed = {"libc.so.6"}, .functions = {"ucs_init"}};
  node.offer("fabric_libraries", ucp);
  node.put_in_image(ucs);
  CHECK(given(node.start(fabric_hook)).empty());
  CHECK(has(node.start(fabric_hook).warnings,
            "the node's libucp.so.0 needs libucs.so.0 of its own release, which fabric_libraries "
            "does not name: it is left out"));
  node.offer("fabric_libraries", ucs);
  CHECK(given(node.start(fabric_hook)) == Names{"libucp.so.0", "libucs.so.0"});
  node.put_in_image({.soname = "libucp.so.0", .functions = {"ucp_init", "ucp_inner"}});
  CHECK(given(node.start(fabric_hook)) == Names{"libucp.so.0", "libucs.so.0"});  // none is older
  node.put_in_image(
      {.soname = "libucp.so.0", .functions = {"ucp_init", "ucp_tag_send", "ucp_tag_send_nbx"}});
  CHECK(given(node.start(fabric_hook)).empty());
  CHECK(has(node.start(fabric_hook).warnings,
            "the node's libucp.so.0 is older than the image's: it lacks 1 of its functions: it and "
            "1 more are left out"));
  CHECK(has(node.start(fabric_hook).notes,
            "the node's libucs.so.0 goes with libucp.so.0, which is left out"));
}

TEST_CASE("fabric_provider_needs_matching_private_libibverbs") {
  FabricNode node;
  node.of_two_nodes();
  node.two_adapters();
  node.image_with_verbs();
  node.context.image["NCCL_VERSION"] = "2";
  const MadeElf provider{.soname = "libmlx5.so.1",
                         .needed = {"libibverbs.so.1"},
                         .version_needs = {{"libibverbs.so.1", {"IBVERBS_PRIVATE_59"}}}};
  node.write("/opt/site/libmlx5-rdmav59.so", provider.bytes());
  node.context.settings.emplace("fabric_libraries", "/opt/site/libmlx5-rdmav59.so");
  node.write_image("/usr/lib/libibverbs.so.1",
                   MadeElf{.soname = "libibverbs.so.1",
                           .version_definitions = {"IBVERBS_1.1", "IBVERBS_PRIVATE_34"}}
                       .bytes());
  auto edits = node.start(fabric_hook);
  CHECK(given(edits).empty());
  CHECK(edits.files.empty());
  CHECK(has(edits.warnings,
            "the node's libmlx5.so.1 needs IBVERBS_PRIVATE_59 of libibverbs.so.1, which the "
            "image's lacks: it is left out"));
  node.write("/opt/site/libibverbs.so.1",
             MadeElf{.soname = "libibverbs.so.1",
                     .version_definitions = {"IBVERBS_1.1", "IBVERBS_PRIVATE_59"}}
                 .bytes());
  node.context.settings.emplace("fabric_libraries", "/opt/site/libibverbs.so.1");
  edits = node.start(fabric_hook);
  CHECK(given(edits) == Names{"libmlx5-rdmav59.so", "libmlx5.so.1", "libibverbs.so.1"});
  CHECK(edits.files.size() == 1);
}

TEST_CASE("fabric_libibverbs_that_breaks_image_providers_is_skipped") {
  FabricNode node;
  node.of_two_nodes();
  node.two_adapters();
  const auto put = [&](const MadeElf& library) {
    node.write_image("/usr/lib/" + library.soname, library.bytes());
  };
  node.write("/opt/site/libibverbs.so.1",
             MadeElf{.soname = "libibverbs.so.1",
                     .version_definitions = {"IBVERBS_1.1", "IBVERBS_PRIVATE_59"}}
                 .bytes());
  node.context.settings.emplace("fabric_libraries", "/opt/site/libibverbs.so.1");
  put({.soname = "libibverbs.so.1", .version_definitions = {"IBVERBS_1.1", "IBVERBS_PRIVATE_44"}});
  put({.soname = "libefa.so.1",
       .needed = {"libibverbs.so.1"},
       .version_needs = {{"libibverbs.so.1", {"IBVERBS_PRIVATE_44"}}}});
  CHECK(given(node.start(fabric_hook)) == Names{"libibverbs.so.1"});  // it is the only one at start
  CHECK_FALSE(has(node.start(fabric_hook).notes, "is older"));
  put({.soname = "libmpich.so.12", .needed = {"libfabric.so.1"}});
  put({.soname = "libfabric.so.1", .needed = {"libefa.so.1"}});  // as in Debian
  CHECK(given(node.start(fabric_hook)).empty());
  CHECK(has(node.start(fabric_hook).notes,
            "the node's libibverbs.so.1 lacks IBVERBS_PRIVATE_44, which the image's libefa.so.1 "
            "needs: it is left out"));
}

TEST_CASE("fabric_image_without_glibc_keeps_its_libraries") {
  LibraryNode node;
  fs::remove(node.image / "lib64/ld-linux-x86-64.so.2");
  fs::remove(node.image / "usr/lib/libc.so.6");
  node.write_image("/lib/ld-musl-x86_64.so.1", MadeElf{.soname = "libc.musl-x86_64.so.1"}.bytes());
  node.offer_cxi();
  const auto edits = node.start(fabric_hook);
  CHECK(given(edits).empty());
  CHECK(
      has(edits.warnings,
          "the node's libcxi.so.1 needs glibc, but the image's C library is musl: it is left out"));
}

TEST_CASE("fabric_provider_config_without_library_is_ignored") {
  FabricNode node;
  node.image_with_verbs();
  const Edits none;
  CHECK(LibrariesInside(node.context, none).have_provider("mlx5"));  // their directory is unknown
  node.write_image("/usr/lib/libibverbs/libefa-rdmav34.so");
  CHECK_FALSE(LibrariesInside(node.context, none).have_provider("mlx5"));
  node.write_image("/usr/lib/libibverbs/libmlx5-rdmav34.so");
  CHECK(LibrariesInside(node.context, none).have_provider("mlx5"));
}

TEST_CASE("fabric_devices_setting_limits_fake_adapters") {
  FabricNode node;
  node.of_two_nodes();
  node.two_adapters();
  node.context.settings.emplace("fabric_devices", "mlx5_[1-9]");
  auto edits = node.start(fabric_hook);
  CHECK(edits.denied_devices == Names{"/dev/infiniband/umad0", "/dev/infiniband/uverbs0"});
  node.context.job["FABRIC_VISIBLE_DEVICES"] = "mlx5_0";  // a job cannot remove it
  edits = node.start(fabric_hook);
  CHECK(edits.denied_devices.size() == 5);
  node.context.job.erase("FABRIC_VISIBLE_DEVICES");
  node.context.settings.erase("fabric_devices");
  node.context.settings.emplace("fabric_devices", "0000:3d:*");
  CHECK(node.start(fabric_hook).denied_devices.size() == 2);
  node.context.settings.erase("fabric_devices");
  node.context.settings.emplace("fabric_devices", "hfi1_*");
  CHECK(has(node.start(fabric_hook).notes,
            "TCP: fabric_devices of the site names none of the node's adapters"));
}

TEST_CASE("fabric_fake_intel_mpi_uses_node_libfabric") {
  LibraryNode node;
  node.offer_cxi();
  node.context.image["FI_PROVIDER_PATH"] = "/opt/intel/oneapi/mpi/latest/libfabric/lib/prov";
  node.context.image["I_MPI_ROOT"] = "/opt/intel/oneapi/mpi/latest";
  const auto told = [&] { return node.start(fabric_hook).environment; };
  CHECK(told() == Edits::Environment());
  node.offer("fabric_libraries", {.soname = "libfabric.so.1", .needed = {"libc.so.6"}});
  CHECK(told().defaults.at("I_MPI_OFI_LIBRARY_INTERNAL") == "0");
  CHECK(told().unset == std::set<std::string>{"FI_PROVIDER_PATH"});
  node.context.job["FI_PROVIDER_PATH"] = "/opt/mine";
  CHECK(told().unset.empty());
  node.context.image.erase("I_MPI_ROOT");
  CHECK(told() == Edits::Environment());
}

TEST_CASE("nccl_conf_plugin_lists_are_parsed_as_in_nccl") {
  FabricNode node;
  node.write("/etc/nccl.conf",
             "NCCL_NET_PLUGIN=/opt/a/libnccl-net.so,ofi,/opt/b/libnccl-net.so\nNCCL_RMA_PLUGIN=/"
             "opt/rma.so\nNCCL_ALGO = Ring\n");
  for (const char* path : {"/opt/a/libnccl-net.so", "/opt/b/libnccl-net.so", "/opt/rma.so"})
    node.write(path);
  const auto edits = node.start(nccl_hook);
  CHECK(mounted(edits) ==
        Names{"/etc/nccl.conf", "/opt/a/libnccl-net.so", "/opt/b/libnccl-net.so", "/opt/rma.so"});
  CHECK(has(edits.notes,
            "NCCL_ALGO has blanks around its =, so NCCL ignores it (hint: NAME=VALUE in "
            "/etc/nccl.conf)"));
}

TEST_CASE("nccl_topology_of_job_comes_from_node_if_image_lacks_it") {
  FabricNode node;
  node.context.job["NCCL_TOPO_FILE"] = "/opt/microsoft/ndv5-topo.xml";
  CHECK(node.start(nccl_hook) == Edits());
  node.write("/opt/microsoft/ndv5-topo.xml");
  CHECK(mounted(node.start(nccl_hook)) == Names{"/opt/microsoft/ndv5-topo.xml"});
  node.write_image("/opt/microsoft/ndv5-topo.xml");
  CHECK(mounted(node.start(nccl_hook)).empty());
}

TEST_CASE("nccl_plugins_of_fake_node_are_checked_against_image") {
  LibraryNode node;
  node.write(
      "/etc/nccl.conf",
      "NCCL_NET_PLUGIN=/opt/site/libnccl-net-site.so\nNCCL_TUNER_PLUGIN=/opt/site/libtuner.so\n");
  node.write("/opt/site/libtuner.so", "no library");
  const auto put = [&](const MadeElf& plugin) {
    node.write("/opt/site/libnccl-net-site.so", plugin.bytes());
  };
  const std::string begins =
      "NCCL goes on without \"/opt/site/libnccl-net-site.so\", which /etc/nccl.conf names: the "
      "node's libnccl-net-site.so needs ";
  put({.soname = "libnccl-net-site.so", .needed = {"libcudart.so.12", "libc.so.6"}});
  auto edits = node.start(nccl_hook);
  CHECK(edits.warnings ==
        Names{begins + "libcudart.so.12, which neither the image nor fabric_libraries has (hint: "
                       "the site can add it to fabric_libraries)"});
  CHECK(mounted(edits).size() == 3);
  put({.soname = "libnccl-net-site.so",
       .needed = {"libc.so.6"},
       .version_needs = {{"libc.so.6", {"GLIBC_2.38"}}}});
  CHECK(has(node.start(nccl_hook).warnings,
            begins + "GLIBC_2.38, but the image's C library goes up to 2.31 (hint: use an image of "
                     "a newer distribution)"));
  put({.soname = "libnccl-net-site.so", .needed = {"libfabric.so.1", "libc.so.6"}});
  CHECK(node.start(nccl_hook).warnings.size() == 1);
  node.offer("fabric_libraries",
             {.soname = "libfabric.so.1", .needed = {"libc.so.6"}});  // provided by 99-fabric
  CHECK(node.start(nccl_hook).warnings.empty());
  CHECK_FALSE(has(node.start(nccl_hook).notes, "NCCL goes on without"));
  put({.soname = "libnccl-net-site.so", .needed = {"libnl-3.so.200"}});
  node.offer("fallback_libraries", {.soname = "libnl-3.so.200",
                                    // For the libraries of fabric_libraries.
                                    .needed = {"libc.so.6"}});
  CHECK(node.start(nccl_hook).warnings.size() == 1);
  put({.soname = "libnccl-net-site.so", .needed = {"libcudart.so.12"}});
  node.context.job["SLURM_STEP_NUM_TASKS"] = "1";  // a single task has no peers: explained only
  CHECK(node.start(nccl_hook).warnings.empty());
  CHECK(has(node.start(nccl_hook).notes, begins));
}

TEST_CASE("fabric_libraries_with_equal_soname_are_refused") {
  LibraryNode node;
  node.offer_cxi();
  fs::create_symlink("libcxi.so.1", node.root / "opt/site/libcxi.so");
  node.context.settings.emplace("fabric_libraries", "/opt/site/libcxi.so");
  CHECK(node.start(fabric_hook).refusal.empty());
  node.write("/usr/lib64/libcxi.so.1",
             MadeElf{.soname = "libcxi.so.1", .needed = {"libc.so.6"}}.bytes());
  node.context.settings.emplace(
      "fallback_libraries",
      "/usr/lib64/libcxi.so.1");  // for images without it, and nodes without the other path
  CHECK(node.start(fabric_hook).refusal.empty());
  node.context.settings.emplace("fabric_libraries", "/usr/lib64/libcxi.so.1");
  CHECK(node.start(fabric_hook).refusal ==
        "fabric_libraries: \"/opt/site/libcxi.so.1\" and \"/usr/lib64/libcxi.so.1\" are both "
        "libcxi.so.1, and a program loads one only"
        " (hint: name one of them)");
}
