#include "hooks/libraries/libraries.hpp"
#include "hooks/loader/ld_cache.hpp"
#include "hooks/mpi/mpi_hooks.hpp"
#include "unit/has.hpp"
#include "unit/hooks/elf_maker.hpp"
#include "unit/hooks/image_root.hpp"

namespace spc {
namespace {

const std::string kHostMpi = "/opt/mpi/lib/libmpi.so.12.1.1";
const std::string kInside = "/usr/lib/spank-container/mpi/";
using Versions = std::vector<std::string>;

const MadeElf kMpi{.soname = "libmpi.so.12",
                   .needed = {"libc.so.6"},
                   .version_needs = {{"libc.so.6", {"GLIBC_2.17"}}}};

/// A node that provides an MPI, and an image with a C library and MPI.
struct Scene {
  ImageRoot node, image;
  std::vector<std::pair<std::string, std::string>> cache;  ///< soname and path
  HookContext context;

  Scene() {
    image.put("/lib64/ld-linux-x86-64.so.2", MadeElf{.soname = "ld-linux-x86-64.so.2"}.bytes());
    put_library("/lib/libc.so.6",
                {.soname = "libc.so.6",
                 .version_definitions = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.31"}});
    node.put(kHostMpi, kMpi.bytes());
    node.link("/opt/mpi/lib/libmpi.so.12", "libmpi.so.12.1.1");
    context = image.context();
    context.host_root = node.path("");
    context.mpi = "host";
    set("mpi_libraries", "/opt/mpi/lib/libmpi.so.12");
  }
  void set(const std::string& key, const std::string& value) {
    context.settings.emplace(key, value);
  }
  /// Adds a library to the image, with links from its soname, and to its loader's cache.
  void put_library(const std::string& path, const MadeElf& library) {
    image.put(path, library.bytes());
    const auto slash = path.rfind('/') + 1;
    if (path.substr(slash) != library.soname)
      image.link(path.substr(0, slash) + library.soname, path.substr(slash));
    cache.emplace_back(library.soname, path.substr(0, slash) + library.soname);
  }
  Edits run() {
    LdCache made;
    for (const auto& [soname, path] : cache) made.add_last(soname, path, kX86);
    image.put("/etc/ld.so.cache", made.serialize());
    REQUIRE(mpi_abi_hook.when(context));
    auto edits = mpi_abi_hook.prepare(context);
    REQUIRE(edits);
    if (edits->refusal.empty()) REQUIRE(mpi_abi_hook.create(context, *edits));
    return *std::move(edits);
  }
};

TEST_CASE("mpi_host_libraries_with_equal_soname_are_refused") {
  Scene scene;
  scene.put_library("/usr/lib/libmpi.so.12.0.5", {.soname = "libmpi.so.12"});
  const auto put = [&](const char* path) {
    scene.node.put(path, MadeElf{.soname = "libfabric.so.1", .needed = {"libc.so.6"}}.bytes());
  };
  put("/opt/cray/lib64/libfabric.so.1.22");
  put("/usr/lib64/libfabric.so.1.18");
  scene.set("mpi_dependencies", "/opt/cray/lib64/libfabric.so.1.22");
  scene.set("fabric_libraries", "/opt/cray/lib64/libfabric.so.1.22");
  CHECK(scene.run().refusal.empty());
  const std::string clash =
      "\"/opt/cray/lib64/libfabric.so.1.22\" and \"/usr/lib64/libfabric.so.1.18\" are both "
      "libfabric.so.1, and a program loads one only (hint: "
      "name one of them)";
  scene.set("fabric_libraries", "/usr/lib64/libfabric.so.1.18");
  CHECK(scene.run().refusal == clash);
  scene.set("fabric", "off");
  CHECK(scene.run().refusal.empty());
  scene.set("mpi_dependencies", "/usr/lib64/libfabric.so.1.18");
  CHECK(scene.run().refusal == clash);
}

TEST_CASE("mpi_library_version_is_read_from_file_name") {
  CHECK(library_version("libmpi.so.12.1.8") == std::vector<unsigned>{12, 1, 8});
  CHECK(library_version("libmpi.so").empty());
  CHECK(library_version("libmpi.so.40.beta") == std::vector<unsigned>{40});
  CHECK(library_version("libmpi.so.99999999999").empty());
  CHECK(linker_name("libmpi.so.12") == "libmpi.so");
  CHECK(linker_name("libmpi_cray.so.12.0") == "libmpi_cray.so");
}

TEST_CASE("mpi_abi_compatibility_levels") {
  using enum AbiLevel;
  using enum AbiFit;
  CHECK(abi_fit({12, 1, 1}, {12, 1, 1}, strict) == fits);
  CHECK(abi_fit({12, 1, 2}, {12, 1, 1}, strict) == no);
  CHECK(abi_fit({12, 1, 2}, {12, 1, 1}, full) == fits);
  CHECK(abi_fit({12, 2, 0}, {12, 1, 1}, full) == fits);
  CHECK(abi_fit({12, 0, 9}, {12, 1, 1}, full) == no);
  CHECK(abi_fit({12, 0, 9}, {12, 1, 1}, major) == older);
  CHECK(abi_fit({12, 2, 0}, {12, 1, 1}, major) == fits);
  CHECK(abi_fit({40, 30, 2}, {12, 1, 1}, major) == no);
  CHECK(abi_fit({12}, {12, 1, 1}, full) == fits);
  CHECK(abi_fit({12}, {12, 1, 1}, strict) == no);
}

TEST_CASE("mpi_host_library_survives_serialization") {
  const HostLibrary library{
      .source = "/opt/a b/libx.so.1",
      .soname = "libx.so.1",
      .machine = 62,
      .dependency = true,
      .searches = true,
      .needed = {"liby.so.1", "libc.so.6"},
      .version_needs = {{"libc.so.6", {"GLIBC_2.17", "GLIBC_2.2.5"}}, {"liby.so.1", {"Y_1"}}},
      .version_definitions = {"X_1", "X_2"}};
  const HostLibrary again = HostLibrary::parse(library.serialize());
  CHECK(again.serialize() == library.serialize());
  CHECK(again.version_needs == library.version_needs);
  CHECK(again.dependency);
  CHECK(again.searches);
  CHECK(again.file_name() == "libx.so.1");
}

TEST_CASE("mpi_of_node_replaces_mpi_of_image") {
  Scene scene;
  scene.put_library("/usr/lib/libmpi.so.12.0.5", {.soname = "libmpi.so.12"});
  scene.put_library("/usr/lib/libmpi.so.40.30.2", {.soname = "libmpi.so.40"});
  scene.set("mpi_mounts", "/var/spool/switch");
  scene.set("mpi_mounts", "/etc/switch:/opt/switch:ro+nofail");
  const Edits edits = scene.run();
  CHECK(edits.refusal.empty());
  CHECK(edits.warnings.empty());
  REQUIRE(edits.mounts.size() == 3);
  CHECK(edits.mounts[0] == MountEdit{.source = kHostMpi, .target = kInside + "libmpi.so.12.1.1"});
  CHECK(edits.mounts[1] == MountEdit{.source = "/var/spool/switch",
                                     .target = "/var/spool/switch",
                                     .read_only = false});
  CHECK(edits.mounts[2] ==
        MountEdit{.source = "/etc/switch", .target = "/opt/switch", .optional = true});
  CHECK(edits.libraries ==
        std::vector<LibraryEdit>{{"libmpi.so.12", kInside + "libmpi.so.12.1.1", true, EM_X86_64}});
  CHECK(edits.notes ==
        Versions{"programs for libmpi.so.40 keep the image's /usr/lib/libmpi.so.40",
                 "the node's " + kHostMpi +
                     " replaces the image's /usr/lib/libmpi.so.12 (libmpi.so.12.0.5)"});
  CHECK(edits.environment == Edits::Environment());
}

TEST_CASE("mpi_of_node_precedes_image_library_path") {
  Scene scene;
  scene.image.put("/opt/image/libmpi.so.12", MadeElf{.soname = "libmpi.so.12"}.bytes());
  scene.context.image["LD_LIBRARY_PATH"] = "/opt/image:/nowhere";
  const Edits edits = scene.run();
  CHECK(edits.refusal.empty());
  CHECK(edits.environment.prepend.at("LD_LIBRARY_PATH") == "/usr/lib/spank-container/mpi");
  CHECK(has(edits.notes.at(0), "/opt/image/libmpi.so.12"));
}

TEST_CASE("mpi_of_image_without_cache_is_found_in_usual_directories") {
  Scene scene;
  scene.put_library("/usr/lib64/libmpi.so.40.30.2", {.soname = "libmpi.so.40"});
  auto edits = mpi_abi_hook.prepare(scene.context);
  REQUIRE(edits);
  REQUIRE(mpi_abi_hook.create(scene.context, *edits));
  CHECK(has(edits->refusal, "the image's libmpi.so.40"));
}

TEST_CASE("mpich_is_found_under_debian_names") {
  Scene scene;
  scene.put_library("/usr/lib/libmpich.so.12.1.0", {.soname = "libmpich.so.12"});
  scene.put_library("/usr/lib/libmpi.so.40.30.2", {.soname = "libmpi.so.40"});
  const Edits edits = scene.run();
  CHECK(edits.refusal.empty());
  CHECK(edits.libraries ==
        std::vector<LibraryEdit>{{"libmpich.so.12", kInside + "libmpi.so.12.1.1", true, EM_X86_64},
                                 {"libmpi.so.12", kInside + "libmpi.so.12.1.1", true, EM_X86_64}});

  Scene newer;
  newer.put_library("/usr/lib/libmpich.so.12.2.2", {.soname = "libmpich.so.12"});
  CHECK(has(newer.run().refusal, "does not match the image's libmpich.so.12.2.2"));
}

TEST_CASE("mpi_of_other_abi_is_refused_with_translators") {
  Scene scene;
  scene.put_library("/usr/lib/libmpi.so.40.30.2", {.soname = "libmpi.so.40"});
  const std::string refusal = scene.run().refusal;
  CHECK(has(refusal,
            "the node's libmpi.so.12 cannot replace the image's libmpi.so.40: different ABIs"));
  CHECK(has(refusal, "Wi4MPI and mpixlate"));
}

TEST_CASE("mpi_of_node_older_than_image_is_refused_or_warned") {
  Scene refused;
  refused.put_library("/usr/lib/libmpi.so.12.2.0", {.soname = "libmpi.so.12"});
  CHECK(has(refused.run().refusal,
            "the node's libmpi.so.12.1.1 does not match the image's libmpi.so.12.2.0 as required "
            "by mpi_abi = full"));

  Scene strict;
  strict.set("mpi_abi", "strict");
  strict.put_library("/usr/lib/libmpi.so.12.1.0", {.soname = "libmpi.so.12"});
  CHECK(has(strict.run().refusal, "as required by mpi_abi = strict"));

  Scene allowed;
  allowed.set("mpi_abi", "major");
  allowed.put_library("/usr/lib/libmpi.so.12.2.0", {.soname = "libmpi.so.12"});
  const Edits edits = allowed.run();
  CHECK(edits.refusal.empty());
  REQUIRE(edits.warnings.size() == 1);
  CHECK(has(edits.warnings[0],
            "the node's libmpi.so.12.1.1 is older than the image's libmpi.so.12.2.0"));
}

TEST_CASE("mpi_of_node_needing_newer_libc_is_refused") {
  Scene scene;
  MadeElf newer = kMpi;
  newer.version_needs = {{"libc.so.6", {"GLIBC_2.17", "GLIBC_2.34", "GLIBC_2.9"}}};
  scene.node.put(kHostMpi, newer.bytes());
  const Edits edits = scene.run();
  CHECK(has(edits.refusal,
            "the node's libmpi.so.12 needs GLIBC_2.34, but the image's C library goes up to 2.31"));
  CHECK(edits.libraries.empty());

  Scene musl;
  for (const char* path : {"/lib64/ld-linux-x86-64.so.2", "/lib/libc.so.6"})
    std::filesystem::remove(musl.image.path(path));
  musl.cache.clear();
  musl.image.put("/lib/ld-musl-x86_64.so.1", MadeElf{.soname = "libc.musl-x86_64.so.1"}.bytes());
  CHECK(has(musl.run().refusal, "needs glibc, but the image's C library is musl"));
}

TEST_CASE("mpi_dependencies_come_from_node_or_image") {
  MadeElf mpi = kMpi;
  mpi.needed = {"libfabric.so.1", "libc.so.6"};
  mpi.version_needs["libfabric.so.1"] = {"FABRIC_1.6"};
  const MadeElf fabric{.soname = "libfabric.so.1",
                       .version_definitions = {"FABRIC_1.0", "FABRIC_1.6"}};

  Scene missing;
  missing.node.put(kHostMpi, mpi.bytes());
  CHECK(has(missing.run().refusal,
            "needs libfabric.so.1, which neither the image nor mpi_dependencies has"));

  Scene of_image;
  of_image.node.put(kHostMpi, mpi.bytes());
  of_image.put_library("/usr/lib/libfabric.so.1.18", fabric);
  CHECK(of_image.run().refusal.empty());

  Scene old;
  old.node.put(kHostMpi, mpi.bytes());
  old.put_library("/usr/lib/libfabric.so.1.1",
                  {.soname = "libfabric.so.1", .version_definitions = {"FABRIC_1.0"}});
  CHECK(has(old.run().refusal, "needs FABRIC_1.6 of libfabric.so.1, which the image's lacks"));

  Scene of_node;
  of_node.node.put(kHostMpi, mpi.bytes());
  of_node.node.put("/usr/lib/libfabric.so.1.18", fabric.bytes());
  of_node.set("mpi_dependencies", "/usr/lib/libfabric.so.1.18");
  of_node.put_library(
      "/usr/lib/libfabric.so.1.20",
      {.soname = "libfabric.so.1", .version_definitions = {"FABRIC_1.0", "FABRIC_1.7"}});
  const Edits edits = of_node.run();
  CHECK(edits.refusal.empty());
  CHECK(edits.libraries.size() == 2);
  REQUIRE(edits.warnings.size() == 1);
  CHECK(has(
      edits.warnings[0],
      "the node's libfabric.so.1 is older than the image's: programs that need its FABRIC_1.7"));
}

TEST_CASE("mpi_of_restarted_container_is_compared_with_image") {
  Scene scene;
  scene.put_library("/usr/lib/libmpi.so.40.30.2", {.soname = "libmpi.so.40"});
  scene.cache.emplace_back("libmpi.so.12", kInside + "libmpi.so.12");
  CHECK(has(scene.run().refusal, "the image's libmpi.so.40"));
}

TEST_CASE("mpi_is_added_to_image_without_mpi") {
  Scene scene;
  const Edits edits = scene.run();
  CHECK(edits.refusal.empty());
  CHECK(edits.notes == Versions{"the image has no libmpi.so, the node's libmpi.so.12 is added"});

  Scene other;
  other.image.put("/lib/ld-linux-aarch64.so.1",
                  MadeElf{.soname = "ld-linux-aarch64.so.1", .machine = EM_AARCH64}.bytes());
  std::filesystem::remove(other.image.path("/lib64/ld-linux-x86-64.so.2"));
  CHECK(has(other.run().refusal, "the node's libmpi.so.12 is for x86-64, but the image is not"));
}

TEST_CASE("mpi_requested_by_site_leaves_image_without_mpi_alone") {
  Scene scene;
  scene.context.mpi.clear();
  scene.set("mpi", "host");
  scene.set("mpi_mounts", "/var/spool/switch");
  const Edits edits = scene.run();
  CHECK(edits.refusal.empty());
  CHECK(edits.libraries.empty());
  REQUIRE(edits.mounts.size() == 2);
  CHECK((edits.mounts[0].target.empty() && edits.mounts[1].target.empty()));
  CHECK(edits.notes ==
        Versions{"the image has no MPI; the node's is added only with --container-mpi=host"});

  Scene other;
  other.context.mpi.clear();
  other.set("mpi", "host");
  other.put_library("/usr/lib/libmpi.so.40.30.2", {.soname = "libmpi.so.40"});
  CHECK(has(other.run().refusal, "different ABIs"));
}

TEST_CASE("mpi_settings_with_errors_are_refused") {
  Scene missing;
  missing.set("mpi_dependencies", "/no/such.so");
  const auto error = mpi_abi_hook.prepare(missing.context);
  REQUIRE(!error);
  CHECK(error.error().message() ==
        "mpi_dependencies: find library \"/no/such.so\" of the node: no such file or directory "
        "(hint: check the lists of "
        "libraries in config.toml)");

  Scene text;
  text.node.put(kHostMpi, "INPUT(libmpi.so.12)");
  CHECK(!mpi_abi_hook.prepare(text.context));

  Scene nothing;
  nothing.context.settings.clear();
  CHECK(has(nothing.run().refusal, "an administrator can set mpi_libraries"));
}

TEST_CASE("mpi_exported_functions_are_read_from_either_hash_table") {
  for (const bool gnu : {true, false}) {
    const MadeElf made{.soname = "libmpi.so.12",
                       .functions = {"MPI_Init", "PMPI_Init", "MPI_Send_c"},
                       .gnu_hash = gnu};
    CHECK(exported_functions(made.file().get(), "MPI_") ==
          std::set<std::string>{"MPI_Init", "MPI_Send_c"});
  }
  CHECK(exported_functions(MadeElf{.soname = "libmpi.so.12"}.file().get(), "MPI_").empty());
}

TEST_CASE("mpi_of_node_lacking_functions_lists_them") {
  Scene scene;
  scene.node.put(kHostMpi, MadeElf{.soname = "libmpi.so.12",
                                   .needed = {"libc.so.6"},
                                   .functions = {"MPI_Init", "MPI_Send"}}
                               .bytes());
  scene.put_library("/usr/lib/libmpi.so.12.5.0",
                    {.soname = "libmpi.so.12",
                     .functions = {"MPI_Init", "MPI_Send", "MPI_Session_init", "MPI_Send_c",
                                   "MPI_A", "MPI_B", "MPI_C", "MPIR_x"}});
  scene.set("mpi_abi", "major");
  const Edits edits = scene.run();
  CHECK(edits.refusal.empty());
  CHECK(edits.warnings == Versions{"the node's libmpi.so.12.1.1 is older than the image's "
                                   "libmpi.so.12.5.0: programs that call MPI_A, "
                                   "MPI_B, MPI_C, MPI_Send_c or 1 more will fail"});
}

TEST_CASE("mpi_under_vendor_soname_is_refused") {
  Scene scene;
  scene.node.put("/opt/cray/libmpi_gnu_123.so.12.0.0",
                 MadeElf{.soname = "libmpi_gnu_123.so.12", .needed = {"libc.so.6"}}.bytes());
  scene.context.settings.clear();
  scene.set("mpi_libraries", "/opt/cray/libmpi_gnu_123.so.12.0.0");
  scene.put_library("/usr/lib/libmpich.so.12.1.0", {.soname = "libmpich.so.12"});
  CHECK(has(scene.run().refusal,
            "none of mpi_libraries replaces the image's libmpich.so.12: the node's "
            "libmpi_gnu_123.so.12 has another name (hint: "));
  scene.context.mpi.clear();  // even if the site requests it
  scene.set("mpi", "host");
  CHECK(has(scene.run().refusal, "on Cray in lib-abi-mpich"));
}

TEST_CASE("mpi_fallback_libraries_yield_to_the_image") {
  Scene scene;
  scene.node.put(kHostMpi, MadeElf{.soname = "libmpi.so.12",
                                   .needed = {"libjson-c.so.3", "libnl-3.so.200", "libc.so.6"}}
                               .bytes());
  for (const char* name : {"libjson-c.so.3", "libnl-3.so.200", "libcurl.so.4"}) {
    scene.node.put(std::string("/usr/lib64/") + name,
                   MadeElf{.soname = name, .needed = {"libc.so.6"}}.bytes());
    scene.set("fallback_libraries", std::string("/usr/lib64/") + name);
  }
  scene.put_library("/usr/lib/libnl-3.so.200", {.soname = "libnl-3.so.200"});
  const Edits edits = scene.run();
  CHECK(edits.refusal.empty());
  REQUIRE(edits.libraries.size() == 2);
  CHECK(edits.libraries[1] ==
        LibraryEdit{"libjson-c.so.3", kInside + "fallback/libjson-c.so.3", false, EM_X86_64});
  std::vector<std::string> targets;
  for (const MountEdit& mount : edits.mounts) targets.push_back(mount.target);
  CHECK(targets ==
        Versions{kInside + "libmpi.so.12.1.1", kInside + "fallback/libjson-c.so.3", "", ""});
}

TEST_CASE("mpi_of_node_sets_prefix_variables") {
  Scene scene;
  scene.put_library("/usr/lib/libmpi.so.12.0.5", {.soname = "libmpi.so.12"});
  scene.context.image = {{"OPAL_PREFIX", "/opt/hpcx/ompi"},
                         {"PMIX_INSTALL_PREFIX", "/opt/hpcx/ompi"},
                         {"OPAL_LIBDIR", "/opt/hpcx/lib"},
                         {"OMPI_MCA_btl", "^openib"},
                         {"OMPI_MCA_mca_base_component_path", "/opt/hpcx/ompi/lib/openmpi"},
                         {"PMIX_PREFIX", "/opt/hpcx/ompi"}};
  scene.context.job = {{"OPAL_LIBDIR", "/opt/site/lib"}};
  scene.set("mpi_env", "MPICH_GPU_SUPPORT_ENABLED=1");
  scene.set("mpi_env", "OPAL_PREFIX=/opt/site");
  const Edits edits = scene.run();
  CHECK(edits.environment.unset == std::set<std::string>{"OMPI_MCA_mca_base_component_path",
                                                         "PMIX_INSTALL_PREFIX", "PMIX_PREFIX"});
  CHECK(edits.environment.set ==
        std::map<std::string, std::string>{{"MPICH_GPU_SUPPORT_ENABLED", "1"},
                                           {"OPAL_LIBDIR", "/opt/site/lib"},
                                           {"OPAL_PREFIX", "/opt/site"}});
  scene.context.mpi.clear();  // not the directory of the image's own copy
  scene.set("mpi", "host");
  std::filesystem::remove(scene.image.path("/usr/lib/libmpi.so.12.0.5"));
  std::filesystem::remove(scene.image.path("/usr/lib/libmpi.so.12"));
  scene.cache.pop_back();
  CHECK(scene.run().environment == Edits::Environment());
}

TEST_CASE("mpi_hook_runs_only_with_host_mpi") {
  HookContext context;
  CHECK(!mpi_abi_hook.when(context));
  context.settings.emplace("mpi", "host");
  CHECK(mpi_abi_hook.when(context));
  context.mpi = "image";
  CHECK(!mpi_abi_hook.when(context));
}

}  // namespace
}  // namespace spc
