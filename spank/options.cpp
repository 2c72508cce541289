#include "options.hpp"

#include <algorithm>

namespace spank_container {
namespace {

std::string add_once(std::vector<std::string>& list, const char* option, const std::string& value) {
  if (value.empty()) return std::string(option) + ": argument required";
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
  return {};
}

/// The last one counts.
std::string replace(std::string& old, const char* option, const std::string& value) {
  if (value.empty()) return std::string(option) + ": argument required";
  old = value;
  return {};
}

/// `value` is empty on the command line, where the option has none, and a boolean in an environment twin.
std::string switch_to(int& old, int wanted, const char* option, const std::string& value) {
  if (value == "0" || value == "false" || value == "no" || value == "n") {
    wanted = wanted == SPC_YES ? SPC_NO : SPC_YES;
  } else if (!value.empty() && value != "1" && value != "true" && value != "yes" && value != "y") {
    return std::string(option) + ": \"" + value + "\" is not a boolean (hint: 1, true, yes, 0, false or no)";
  }
  if (old != SPC_UNSET && old != wanted) return std::string(option) + ": the opposite option was specified too";
  old = wanted;
  return {};
}

constexpr OptionRow kTable[] = {
    {"container-image", "[USER@][REGISTRY/]NAME[:TAG][@DIGEST]",
     "[container] run the tasks in this image; it is fetched from its registry when the node does not have it", "IMAGE",
     [](Options& o, const std::string& value) { return replace(o.image, "--container-image", value); }},
    {"container-mounts", "SRC[:DST[:FLAGS]][,...]",
     "[container] show a file or directory of the host inside; DST defaults to SRC; FLAGS joined by +: ro, bind, noexec",
     "MOUNTS", [](Options& o, const std::string& value) { return add_once(o.mounts, "--container-mounts", value); }},
    {"container-workdir", "PATH", "[container] start in this directory of the container instead of the image's", "WORKDIR",
     [](Options& o, const std::string& value) { return replace(o.workdir, "--container-workdir", value); }},
    {"container-env", "NAME[,NAME...]",
     "[container] these variables keep the value they have outside; without it the image's value wins", "ENV",
     [](Options& o, const std::string& value) { return add_once(o.env, "--container-env", value); }},
    {"container-pull", "newer|missing|always|never",
     "[container] when the registry is asked about an image that the node has: newer asks each time whether the tag has moved",
     "PULL", [](Options& o, const std::string& value) { return replace(o.pull, "--container-pull", value); }},
    {"container-platform", "OS/ARCHITECTURE[/VARIANT]", "[container] take the image for this machine instead of the node's",
     "PLATFORM", [](Options& o, const std::string& value) { return replace(o.platform, "--container-platform", value); }},
    {"container-writable", nullptr, "[container] the container's file system can be written to; changes last as long as the step",
     "WRITABLE",
     [](Options& o, const std::string& value) { return switch_to(o.writable, SPC_YES, "--container-writable", value); }},
    {"container-readonly", nullptr, "[container] the container's file system cannot be written to, except /tmp and mounts",
     "READONLY",
     [](Options& o, const std::string& value) { return switch_to(o.writable, SPC_NO, "--container-readonly", value); }},
    {"container-mount-home", nullptr, "[container] show the user's home directory inside", "MOUNT_HOME",
     [](Options& o, const std::string& value) { return switch_to(o.mount_home, SPC_YES, "--container-mount-home", value); }},
    {"no-container-mount-home", nullptr, "[container] do not show the user's home directory inside", nullptr,
     [](Options& o, const std::string& value) { return switch_to(o.mount_home, SPC_NO, "--no-container-mount-home", value); }},
    {"container-verbose", nullptr, "[container] say where the time of the start went", "VERBOSE",
     [](Options& o, const std::string& value) {
       int verbose = SPC_UNSET;
       auto refused = switch_to(verbose, SPC_YES, "--container-verbose", value);
       if (refused.empty()) o.verbose = verbose == SPC_YES;
       return refused;
     }},
};

/// Command line beats environment, whole option by whole option.
bool is_set(const Options& options, const std::string& twin) {
  if (twin == "IMAGE") return !options.image.empty();
  if (twin == "MOUNTS") return !options.mounts.empty();
  if (twin == "WORKDIR") return !options.workdir.empty();
  if (twin == "ENV") return !options.env.empty();
  if (twin == "PULL") return !options.pull.empty();
  if (twin == "PLATFORM") return !options.platform.empty();
  if (twin == "WRITABLE" || twin == "READONLY") return options.writable != SPC_UNSET;
  if (twin == "MOUNT_HOME") return options.mount_home != SPC_UNSET;
  if (twin == "VERBOSE") return options.verbose;
  return false;
}

}  // namespace

std::span<const OptionRow> option_table() { return kTable; }

std::string apply_given(Options& options, std::span<const GivenOption> given) {
  for (const GivenOption& option : given) {
    if (auto refused = kTable[option.row].apply(options, option.value); !refused.empty()) return refused;
  }
  return {};
}

std::string apply_twins(Options& options, bool (*get)(const char* name, std::string& value, void* arg), void* arg) {
  for (const OptionRow& row : kTable) {
    if (row.twin == nullptr || is_set(options, row.twin)) continue;
    for (const char* prefix : {"SCONTAINER_", "PYXIS_CONTAINER_"}) {
      const std::string name = std::string(prefix) + row.twin;
      std::string value;
      if (!get(name.c_str(), value, arg)) continue;
      if (auto refused = row.apply(options, value); !refused.empty()) return name + ": " + refused;
      break;
    }
  }
  return {};
}

}  // namespace spank_container
