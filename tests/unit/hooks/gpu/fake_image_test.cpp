// Influence of the image: requirements, its own libcuda, and links that must not leave the image.

#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "hooks/gpu/gpu_hooks.hpp"
#include "hooks/nvidia_driver/driver.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/hooks/fake_driver.hpp"

using namespace spc;

namespace {

/// Returns a library with NVIDIA's ELF note about forward compatibility.
std::string library_with_note(const std::string& text, std::size_t align = 4,
                              std::string owner = "NVIDIA Corporation",
                              Elf64_Word type = SHT_NOTE) {
  const std::string names = std::string("\0.shstrtab\0.note.cuda.fwd_compatibility\0", 40);
  std::string note(sizeof(Elf64_Nhdr), '\0');
  owner.push_back('\0');
  Elf64_Nhdr header{static_cast<Elf64_Word>(owner.size()), static_cast<Elf64_Word>(text.size()), 1};
  owner.resize((owner.size() + align - 1) / align * align);
  std::memcpy(note.data(), &header, sizeof header);
  note += owner + text;
  Elf64_Ehdr elf{};
  std::memcpy(elf.e_ident, ELFMAG, SELFMAG);
  elf.e_ident[EI_CLASS] = ELFCLASS64;
  elf.e_shoff = sizeof elf;
  elf.e_shentsize = sizeof(Elf64_Shdr);
  elf.e_shnum = 3;
  elf.e_shstrndx = 1;
  Elf64_Shdr sections[3] = {};
  const std::size_t texts = sizeof elf + sizeof sections;
  sections[1].sh_name = 1;
  sections[1].sh_offset = texts;
  sections[1].sh_size = names.size();
  sections[2].sh_name = 11;
  sections[2].sh_type = type;
  sections[2].sh_addralign = align;
  sections[2].sh_offset = texts + names.size();
  sections[2].sh_size = note.size();
  std::string bytes(reinterpret_cast<const char*>(&elf), sizeof elf);
  bytes.append(reinterpret_cast<const char*>(sections), sizeof sections);
  return bytes + names + note;
}

constexpr char kCompat[] = "/usr/local/cuda/compat";

struct OneGpu : FakeNode {
  OneGpu() {
    kernel("535.54.03");
    libraries("/usr/lib64", "535.54.03");
    gpu(0, 0x20);
  }
  [[nodiscard]] Edits edits_with(const std::map<std::string, std::string>& image) const {
    auto given = context();
    given.image = image;
    auto edits = nvidia_hook.prepare(given);
    REQUIRE(edits);
    REQUIRE(nvidia_hook.create(given, *edits));
    return *std::move(edits);
  }
  [[nodiscard]] CudaCompat compat() const { return cuda_compat_of_image(context(), "535.54.03"); }
};

}  // namespace

TEST_CASE("fake_driver_too_old_for_image_is_refused") {
  const OneGpu node;
  const std::map<std::string, std::string> image{
      {"NVIDIA_REQUIRE_CUDA", "cuda>=12.6 brand=unknown,driver>=550,driver<551"}};
  const auto refused = node.edits_with(image).refusal;
  CHECK(refused.find("unsatisfied condition: cuda>=12.6, please update your driver to a newer "
                     "version, or use an earlier cuda container") == 0);
  CHECK(refused.find("the driver is 535.54.03, for CUDA 12.2") != std::string::npos);
  for (const char* yes : {"1", "true", "T"}) {
    auto off = image;
    off["NVIDIA_DISABLE_REQUIRE"] = yes;
    CHECK(node.edits_with(off).refusal.empty());
  }
  auto off = image;
  off["NVIDIA_DISABLE_REQUIRE"] = "0";
  CHECK_FALSE(node.edits_with(off).refusal.empty());
  CHECK(node.edits_with({{"NVIDIA_REQUIRE_CUDA", "cuda>=12.6 brand=tesla,driver>=535,driver<536"}})
            .refusal.empty());
}

TEST_CASE("fake_graphics_library_beyond_image_glibc_is_left_out") {
  const OneGpu node;
  const std::string glx = "/usr/lib64/libGLX_nvidia.so.535.54.03";
  const auto elf = [](const char* soname, const char* needed, const char* version) {
    MadeElf made;
    made.soname = soname;
    made.needed = {"libc.so.6"};
    if (*needed != '\0') made.needed.emplace_back(needed);
    made.version_needs = {{"libc.so.6", {version}}};
    made.machine = kOwnMachine;
    return made.bytes();
  };
  node.file(glx, elf("libGLX_nvidia.so.0", "libnvidia-eglcore.so.1", "GLIBC_2.2.5"));
  node.file("/usr/lib64/libnvidia-eglcore.so.535.54.03",
            elf("libnvidia-eglcore.so.1", "", "GLIBC_2.34"));
  node.file("/etc/vulkan/icd.d/nvidia_icd.json", R"({"library_path": "libGLX_nvidia.so.0"})");
  const auto is_mounted = [](const Edits& edits, const std::string& source) {
    return std::ranges::any_of(edits.mounts, [&](const MountEdit& mount) {
      return mount.source == source && !mount.target.empty();
    });
  };
  const auto made = [&](const char* last) {
    MadeElf libc;
    libc.soname = "libc.so.6";
    libc.version_definitions = {"GLIBC_2.2.5", last};
    libc.machine = kOwnMachine;
    node.image_file("/lib/" + std::string(kLibraries).substr(9) + "/libc.so.6", libc.bytes());
    node.image_file(std::string(kLibraries) + "/libc.so.6", libc.bytes());
  };
  const std::map<std::string, std::string> all{{"NVIDIA_DRIVER_CAPABILITIES", "all"}};

  made("GLIBC_2.34");
  const auto newer = node.edits_with(all);
  CHECK(is_mounted(newer, glx));
  CHECK(is_mounted(newer, "/etc/vulkan/icd.d/nvidia_icd.json"));

  made("GLIBC_2.31");
  const auto older = node.edits_with(all);
  CHECK_FALSE(is_mounted(older, glx));
  CHECK_FALSE(is_mounted(older, "/usr/lib64/libnvidia-eglcore.so.535.54.03"));
  CHECK_FALSE(is_mounted(older, "/etc/vulkan/icd.d/nvidia_icd.json"));
  CHECK(is_mounted(older, "/usr/lib64/libcuda.so.535.54.03"));
  CHECK(older.warnings.empty());
  CHECK(std::ranges::count(older.notes,
                           "the node's libnvidia-eglcore.so.1 needs GLIBC_2.34, but the image's C "
                           "library goes up to 2.31: it is left out") == 1);
  CHECK(node.edits_with({{"NVIDIA_DRIVER_CAPABILITIES", "compute,graphics"}}).warnings ==
        std::vector<std::string>{
            "the node's libnvidia-eglcore.so.1 needs GLIBC_2.34, but the image's C library goes up "
            "to 2.31: it and 1 more are left out (hint: use an image of a newer distribution)"});

  node.file("/usr/lib64/libcuda.so.535.54.03", elf("libcuda.so.1", "", "GLIBC_2.34"));
  CHECK(node.edits_with({{"NVIDIA_VISIBLE_DEVICES", "all"}}).refusal ==
        "the node's libcuda.so.1 needs GLIBC_2.34, but the image's C library goes up to 2.31, so "
        "CUDA cannot work (hint: use an image of a newer distribution)");
  const auto unasked = node.edits_with({});
  CHECK(unasked.refusal.empty());
  CHECK(unasked.warnings.size() == 1);
}

TEST_CASE("fake_driver_older_than_image_cuda_warns") {
  const OneGpu node;
  CHECK(node.edits_with({{"CUDA_VERSION", "13.0.1"}}).warnings ==
        std::vector<std::string>{
            "the image is built for CUDA 13.0.1, the node's driver 535.54.03 is for CUDA 12.2"});
  CHECK(node.edits_with({{"CUDA_VERSION", "12.6.0"}}).warnings.empty());
}

TEST_CASE("fake_compat_newer_libcuda_with_matching_note_is_used") {
  const OneGpu node;
  node.image_file(
      std::string(kCompat) + "/libcuda.so.560.1.2",
      library_with_note(
          R"({"Format": 1, "CUDA Version": "12.6", "Driver": [535, 550], "Device": []})"));
  CHECK(node.compat().directory == kCompat);
  const auto edits = node.edits_with({{"CUDA_VERSION", "13.0"}});
  CHECK(edits.library_directories == std::vector<LibraryDirectoryEdit>{{kCompat, true}});
  CHECK(edits.warnings.empty());
  // None of the image's files is mounted.
  for (const MountEdit& mount : edits.mounts)
    CHECK(mount.source.find("compat") == std::string::npos);
}

TEST_CASE("fake_compat_without_matching_note_or_newer_is_unused") {
  for (const char* note : {R"({"Driver": [550]})", R"({"Driver": []})"}) {
    const OneGpu node;
    node.image_file(std::string(kCompat) + "/libcuda.so.560.1.2", library_with_note(note));
    CHECK(node.compat().directory.empty());
    CHECK(node.compat().reason ==
          "libcuda 560.1.2 of the image does not replace the driver's 535.54.03");
  }
  const OneGpu node;
  node.image_file(std::string(kCompat) + "/libcuda.so.535.1.2",
                  library_with_note(R"({"Driver": [535]})"));
  CHECK(node.compat().directory.empty());
}

TEST_CASE("fake_compat_without_note_compares_major_versions") {
  const OneGpu newer;
  newer.image_file(std::string(kCompat) + "/libcuda.so.550.1.2", "no ELF file");
  CHECK(newer.compat().directory == kCompat);
  const OneGpu same;
  same.image_file(std::string(kCompat) + "/libcuda.so.535.99.2", library_with_note("no JSON"));
  CHECK(same.compat().directory.empty());
}

TEST_CASE("fake_compat_note_is_read_at_any_alignment") {
  for (const std::size_t align : {1U, 4U, 8U}) {
    const OneGpu node;
    node.image_file(std::string(kCompat) + "/libcuda.so.560.1.2",
                    library_with_note(R"({"Driver": [535]})", align));
    CHECK(node.compat().directory == kCompat);
  }
  for (const std::string& bytes :
       {library_with_note("no JSON"), library_with_note(R"({"Driver": [535]})", 4, "Somebody"),
        library_with_note(R"({"Driver": [535]})", 4, "NVIDIA corporation"),
        library_with_note(R"({"Driver": [535]})", 4, "NVIDIA Corporation", SHT_PROGBITS)}) {
    const OneGpu node;
    node.image_file(std::string(kCompat) + "/libcuda.so.560.1.2", bytes);
    CHECK(node.compat().directory.empty());
    CHECK(node.compat().reason ==
          std::string(kCompat) +
              "/libcuda.so.560.1.2 in the image does not say which drivers it is for: not used");
  }
}

TEST_CASE("fake_compat_in_ngc_directory_is_found") {
  const OneGpu node;
  node.image_file(std::string(kCompat) + "/lib.real/libcuda.so.560.1.2",
                  library_with_note(R"({"Driver": [535]})"));
  CHECK(node.compat().directory == std::string(kCompat) + "/lib.real");
  node.image_file(std::string(kCompat) + "/libcuda.so.535.1.2");
  CHECK(node.compat().version == "535.1.2");
}

TEST_CASE("fake_compat_on_unsupported_gpu_or_disabled_is_unused") {
  const OneGpu node;
  node.image_file(std::string(kCompat) + "/libcuda.so.560.1.2",
                  library_with_note(R"({"Driver": [535]})"));
  const auto directories = [&](bool wanted) {
    auto context = node.context();
    context.settings.emplace("cuda_compat", wanted ? "true" : "false");
    auto edits = nvidia_hook.prepare(context);
    REQUIRE(nvidia_hook.create(context, *edits));
    return edits->library_directories.size();
  };
  CHECK(directories(true) == 1);
  CHECK(directories(false) == 0);
  node.file("/proc/driver/nvidia/gpus/0000:20:00.0/information",
            "Model: \t NVIDIA GeForce RTX 4090\nDevice Minor: \t 0\n");
  CHECK(directories(true) == 0);
}

TEST_CASE("fake_driver_unversioned_names_are_linked") {
  const OneGpu node;
  node.link("/usr/lib64/libnvidia-ml.so", "libnvidia-ml.so.1");
  std::vector<SymlinkEdit> links = node.edits_with({}).symlinks;
  std::erase_if(links, [](const SymlinkEdit& link) { return !link.path.ends_with(".so"); });
  CHECK(links == std::vector<SymlinkEdit>{{"/usr/lib64/libcuda.so", "libcuda.so.1"},
                                          {"/usr/lib64/libnvidia-ml.so", "libnvidia-ml.so.1"}});
}

TEST_CASE("fake_driver_unsupported_features_are_reported") {
  const OneGpu node;
  auto context = node.context();
  const auto says = [&](const std::string& what) {
    auto edits = nvidia_hook.prepare(context);
    REQUIRE(nvidia_hook.create(context, *edits));
    std::string all;
    for (const auto* list : {&edits->notes, &edits->warnings}) {
      for (const std::string& text : *list) all += text + "\n";
    }
    return all.find(what) != std::string::npos;
  };
  CHECK_FALSE(says("musl"));
  CHECK_FALSE(says("nvidia-modprobe"));
  std::filesystem::remove(node.host() / "dev/nvidia-uvm");
  context = node.context();
  CHECK(says(
      "no /dev/nvidia-uvm, which CUDA needs (hint: on the node, as root: nvidia-modprobe -u -c0)"));
#if defined(__aarch64__)
  node.image_file("/lib/ld-musl-aarch64.so.1", elf_library("", EM_AARCH64));
#else
  node.image_file("/lib/ld-musl-x86_64.so.1", elf_library(""));
#endif
  CHECK(says("the image has musl"));
}

// outcome 212 contained: a compat directory full of links
TEST_CASE("fake_compat_links_stay_inside_the_image") {
  const OneGpu node;
  node.image_file("/usr/local/cuda-12.6/compat/libcuda.so.560.1.2");
  node.image_link("/etc/alternatives/cuda", "/usr/local/cuda-12.6");
  node.image_link("/usr/local/cuda", "/etc/alternatives/cuda");
  CHECK(node.compat().directory == kCompat);

  const OneGpu hostile;
  hostile.file("/libcuda.so.999.1", "");  // target of "../../../host" if the path left the image
  hostile.image_file("/usr/local/cuda/x");
  hostile.image_link(kCompat, "../../../../../../../../host");
  CHECK(hostile.compat().version.empty());
  CHECK(hostile.edits_with({}).library_directories.empty());
}

// outcome 212 contained: a compat directory full of links
TEST_CASE("fake_compat_ignores_links_fifos_and_lying_files") {
  const OneGpu farm;
  for (int i = 0; i < 100; ++i)
    farm.image_link(std::string(kCompat) + "/libcuda.so." + std::to_string(600 + i) + ".1",
                    "/etc/passwd");
  CHECK(farm.compat().directory.empty());

  const OneGpu fifo;
  fifo.image_file(std::string(kCompat) + "/x");
  REQUIRE(::mkfifo((fifo.image() / "usr/local/cuda/compat/libcuda.so.999.1").c_str(), 0644) == 0);
  CHECK(fifo.compat().directory.empty());

  const OneGpu dangling;
  dangling.image_link(std::string(kCompat) + "/libcuda.so.999.1", "/nowhere");
  CHECK(dangling.compat().directory.empty());

  const OneGpu liar;
  std::string bytes = library_with_note(R"({"Driver": [535]})");
  for (const std::size_t at : {40U, 60U, 64U + 64U + 24U, 64U + 128U + 24U, 64U + 128U + 32U}) {
    std::string broken = bytes;
    std::memset(broken.data() + at, 0xff, 8);
    liar.image_file(std::string(kCompat) + "/libcuda.so.535.1.1", broken);
    CHECK(liar.compat().directory.empty());  // same major version as the driver:
                                             // a valid note is required
  }
}

TEST_CASE("fake_driver_files_go_to_loader_directories") {
  const OneGpu debian;
  debian.image_file("/etc/debian_version", "12\n");
  const OneGpu other;
  const auto where = [](const Edits& edits) {
    return edits.libraries.front().path.substr(0, edits.libraries.front().path.rfind('/'));
  };
  CHECK(where(other.edits_with({})) == "/usr/lib64");
  CHECK(where(debian.edits_with({})).ends_with("-linux-gnu"));
}
