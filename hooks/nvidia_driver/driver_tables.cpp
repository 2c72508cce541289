#include <algorithm>
#include <array>

#include "hooks/nvidia_driver/driver.hpp"
#include "hooks/text.hpp"

namespace spc {
namespace {

struct Word {
  std::string_view word;
  std::uint32_t use;
};
constexpr std::array<Word, 8> kCapabilityWords{{{"utility", for_utility},
                                                {"compute", for_compute},
                                                {"video", for_video},
                                                {"graphics", for_graphics},
                                                {"display", for_display},
                                                {"ngx", for_ngx},
                                                {"compat32", for_32_bit},
                                                {"all", for_any}}};

constexpr std::uint32_t for_pictures = for_graphics | for_display;

/// By the file's name up to ".so": libnvidia-container's src/nvc_info.c, and what drivers have
/// brought since.
constexpr std::array<Word, 57> kLibraries{{{"libnvidia-ml", for_utility},
                                           {"libnvidia-cfg", for_utility},
                                           {"libnvidia-nscq", for_utility},
                                           {"libnvidia-sandboxutils", for_utility},
                                           {"libnvsdm", for_utility},
                                           {"libcuda", for_compute},
                                           {"libcudadebugger", for_compute},
                                           {"libnvidia-opencl", for_compute},
                                           {"libnvidia-gpucomp", for_compute | for_pictures},
                                           {"libnvidia-ptxjitcompiler", for_compute},
                                           {"libnvidia-fatbinaryloader", for_compute},
                                           {"libnvidia-allocator", for_compute | for_pictures},
                                           {"libnvidia-compiler", for_compute},
                                           {"libnvidia-pkcs11", for_compute},
                                           {"libnvidia-pkcs11-openssl3", for_compute},
                                           {"libnvidia-nvvm", for_compute},
                                           {"libnvidia-nvvm70", for_compute},
                                           {"libnvidia-tileiras", for_compute},
                                           {"libvdpau_nvidia", for_video},
                                           {"libnvidia-encode", for_video},
                                           {"libnvidia-opticalflow", for_video},
                                           {"libnvcuvid", for_video},
                                           {"libnvidia-eglcore", for_pictures},
                                           {"libnvidia-glcore", for_pictures},
                                           {"libnvidia-tls", for_pictures},
                                           {"libnvidia-glsi", for_pictures},
                                           {"libnvidia-fbc", for_pictures},
                                           {"libnvidia-ifr", for_pictures},
                                           {"libnvidia-rtcore", for_pictures},
                                           {"libnvoptix", for_pictures},
                                           {"libGLX_nvidia", for_pictures},
                                           {"libEGL_nvidia", for_pictures},
                                           {"libGLESv2_nvidia", for_pictures},
                                           {"libGLESv1_CM_nvidia", for_pictures},
                                           {"libnvidia-glvkspirv", for_pictures},
                                           {"libnvidia-cbl", for_pictures},
                                           {"libnvidia-present", for_pictures},
                                           {"libnvidia-vksc-core", for_pictures},
                                           {"libnvidia-vulkan-producer", for_pictures},
                                           {"libnvidia-wayland-client", for_pictures},
                                           {"libnvidia-egl-gbm", for_pictures},
                                           {"libnvidia-egl-wayland", for_pictures},
                                           {"libnvidia-egl-wayland2", for_pictures},
                                           {"libnvidia-egl-xcb", for_pictures},
                                           {"libnvidia-egl-xlib", for_pictures},
                                           {"libGL", for_pictures},
                                           {"libEGL", for_pictures},
                                           {"libGLX", for_pictures},
                                           {"libGLdispatch", for_pictures},
                                           {"libOpenGL", for_pictures},
                                           {"libGLESv1_CM", for_pictures},
                                           {"libGLESv2", for_pictures},
                                           {"libglxserver_nvidia", for_display},
                                           {"libnvidia-gtk2", for_display},
                                           {"libnvidia-gtk3", for_display},
                                           {"libnvidia-ngx", for_ngx},
                                           {"libnvidia-api", for_compute | for_pictures}}};

/// The first driver of each branch of Linux drivers, and the CUDA version that it supports: the
/// release notes of the CUDA toolkit, "CUDA driver versions".
struct Branch {
  unsigned major, cuda;
};
constexpr std::array<Branch, 28> kBranches{
    {{375, 800},  {384, 900},  {390, 901},  {396, 902},  {410, 1000}, {418, 1001}, {440, 1002},
     {450, 1100}, {455, 1101}, {460, 1102}, {465, 1103}, {470, 1104}, {495, 1105}, {510, 1106},
     {515, 1107}, {520, 1108}, {525, 1200}, {530, 1201}, {535, 1202}, {545, 1203}, {550, 1204},
     {555, 1205}, {560, 1206}, {565, 1207}, {570, 1208}, {575, 1209}, {580, 1300}, {590, 1301}}};

}  // namespace

std::optional<std::uint32_t> nvidia_use_of(std::string_view word) {
  for (const auto& [known, use] : kCapabilityWords) {
    if (known == word) return use;
  }
  return std::nullopt;
}

std::uint32_t nvidia_library_use(std::string_view file) {
  const std::string_view stem = file.substr(0, file.find(".so"));
  const auto found = std::find_if(kLibraries.begin(), kLibraries.end(),
                                  [&](const Word& entry) { return entry.word == stem; });
  return found == kLibraries.end() ? std::uint32_t{for_any} : found->use;
}

unsigned cuda_version_of_driver(std::string_view version) {
  const auto major = decimal(version.substr(0, version.find('.')));
  if (!major || *major > kBranches.back().major) return 0;
  unsigned cuda = 0;
  for (const Branch& branch : kBranches) {
    if (branch.major <= *major) cuda = branch.cuda;
  }
  return cuda;
}

}  // namespace spc
