#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>

#include "base/file.hpp"
#include "hooks/node/node.hpp"

namespace spc {
namespace {

constexpr char kLocaltime[] = "/etc/localtime";
constexpr std::string_view kZones = "/usr/share/zoneinfo/";
constexpr std::size_t kLargestZone = 64 * 1024;  ///< those of tzdata have less than 4 KiB

std::string link_of(const std::string& path) {
  char text[PATH_MAX];
  const ssize_t size = ::readlink(path.c_str(), text, sizeof text);
  return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : "";
}

/// Links to the zone are written relatively (Debian) or absolutely (systemd):
/// /usr/share/zoneinfo/Europe/Zurich, or nothing.
std::string zone_file_of(std::string link) {
  if (link.starts_with("../")) link.erase(0, 2);
  const bool is_zone = link.starts_with(kZones) && link.find("/../") == std::string::npos &&
                       link.size() > kZones.size();
  return is_zone ? link : "";
}

/// The file itself, as the C library reads it (tzfile(5)).
std::string zone_of(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  const auto zone = read_file(file.get(), kLargestZone);
  return zone && zone->starts_with("TZif") ? *zone : "";
}

Result<Edits> zone_of_the_node(const HookContext& context) {
  Edits edits;
  const std::string zone = zone_of(context.host_root + kLocaltime);
  if (zone.empty()) return edits;  // a node without one keeps UTC, and the image what it has
  const std::string path = zone_file_of(link_of(context.host_root + kLocaltime));
  edits.files.push_back({path.empty() ? kLocaltime : path, zone});
  if (!path.empty()) edits.symlinks.push_back({kLocaltime, ".." + path});
  edits.notes.push_back("the time zone is the node's" +
                        (path.empty() ? "" : ", " + path.substr(kZones.size())));
  return edits;
}

/// An image that knows the zone keeps its own file of it.
Result<void> leave_what_the_image_has(const HookContext& context, Edits& edits) {
  std::erase_if(edits.files, [&](const FileEdit& file) {
    const auto of_image = file.path == kLocaltime
                              ? std::nullopt
                              : context.image_file(file.path.c_str(), kLargestZone);
    return of_image && of_image->starts_with("TZif");
  });
  return {};
}

}  // namespace

const Hook localtime_hook{.name = "10-localtime",
                          .says = "the time zone of the node",
                          .prepare = zone_of_the_node,
                          .create = leave_what_the_image_has};

}  // namespace spc
