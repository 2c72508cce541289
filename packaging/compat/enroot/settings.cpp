#include "settings.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "tool/surroundings/places.hpp"

namespace spc::enroot {

using namespace tool;

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Everything but nothing and the ways to say no is yes.
bool is_set(const char* name) {
  static constexpr std::array<std::string_view, 9> kNo{"",   "n", "no", "N",    "No",
                                                       "NO", "f", "F",  "FALSE"};
  const std::string value = variable(name);
  return value != "false" && value != "False" &&
         std::find(kNo.begin(), kNo.end(), value) == kNo.end();
}

std::string place(const char* own, const char* xdg, const std::string& home,
                  const char* default_place) {
  if (auto path = variable(own); !path.empty()) return path;
  if (auto path = variable(xdg); !path.empty()) return path + "/enroot";
  return home + default_place + "/enroot";
}

}  // namespace

Result<EnrootSettings> EnrootSettings::take_from_environment() {
  const auto places = SPC_TRY(Places::find());
  EnrootSettings settings;
  settings.data_path = SPC_TRY(
      absolute_path(place("ENROOT_DATA_PATH", "XDG_DATA_HOME", places.home, "/.local/share")));
  settings.config_path = place("ENROOT_CONFIG_PATH", "XDG_CONFIG_HOME", places.home, "/.config");
  settings.writable = is_set("ENROOT_ROOTFS_WRITABLE");
  settings.remap_root = is_set("ENROOT_REMAP_ROOT");
  settings.mount_home = is_set("ENROOT_MOUNT_HOME");
  if (const auto cache = variable("ENROOT_CACHE_PATH"); !cache.empty()) {
    settings.cache_path = SPC_TRY(absolute_path(cache));
    ::setenv("XDG_DATA_HOME", settings.cache_path.c_str(), 1);
  }
  return settings;
}

}  // namespace spc::enroot
