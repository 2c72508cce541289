// What a user writes behind the options: the first line is --container-mounts, the others --container-image, -workdir, -env
// and -pull.

#include <array>
#include <filesystem>

#include "image/request.hpp"
#include "launch/mount_spec.hpp"
#include "property.hpp"
#include "spank_container/runtime.h"

using namespace spc;
using namespace spc::fuzz;

namespace {

void check_mounts(std::string_view text) {
  const auto mounts = parse_mounts(text);
  if (!mounts) return must_be_readable(mounts.error());
  must(!mounts->empty(), "an accepted list of mounts is not empty");
  for (const MountSpec& mount : *mounts) {
    const bool has_source = mount.kind == MountSpec::Kind::bind || mount.kind == MountSpec::Kind::squashfs;
    must(mount.source.empty() != has_source, "what comes from the host has a source, and nothing else");
    must(mount.kind != MountSpec::Kind::bind || mount.source[0] == '/' || mount.source[0] == '.', "a source is a path");
    must(mount.target.starts_with('/'), "a target is an absolute path");
    const bool quotes = mount.shown_as.find_first_of("\\\"") != std::string::npos;
    must(quotes || (mount.source + mount.target).find_first_of(":,") == std::string::npos,
         "what separates takes no part unquoted");
    must(mount.kind == MountSpec::Kind::tmpfs || mount.kind == MountSpec::Kind::removal || (!mount.size && !mount.mode),
         "only what is made has a size and a mode");
    must(!mount.mode || *mount.mode <= 01777U, "no mode has privilege");
    must(!mount.size || (mount.size->bytes >> 60 == 0 && mount.size->percent <= 100), "a size can be calculated with");
    must(std::filesystem::path(mount.target).lexically_normal() != "/", "a target is not the root, however it is written");
    const auto again = parse_mounts(mount.shown_as);
    must(again.has_value() && again->size() == 1 && again->front() == mount, "a mount as it is shown is the same mount");
  }
}

void check_platform(std::string_view text) {
  const auto platform = Platform::parse(text);
  if (!platform) return must_be_readable(platform.error());
  must(platform->str() == text, "a platform is written as it was");
}

void check_all(const std::array<std::string, 5>& lines) {
  spc_runtime* rt = nullptr;
  must(spc_open(nullptr, nullptr, &rt) == SPC_OK, "a handle can be had");
  const char* const mounts[] = {lines[0].c_str(), nullptr};
  const char* const env[] = {lines[3].c_str(), nullptr};
  spc_options options{};
  options.size = sizeof options;
  options.image = lines[1].c_str();
  options.mounts = lines[0].empty() ? nullptr : mounts;
  options.workdir = lines[2].empty() ? nullptr : lines[2].c_str();
  options.env = lines[3].empty() ? nullptr : env;
  options.pull = lines[4].empty() ? nullptr : lines[4].c_str();
  options.writable = options.mount_home = SPC_UNSET;
  const int rc = spc_check(rt, &options);
  must(rc == SPC_OK || rc == SPC_E_INVALID, "options are right or wrong, and nothing else");
  if (rc != SPC_OK) must(*spc_error_message(rt) != '\0' && is_printable(spc_error_message(rt)), "a refusal says why");
  spc_close(rt);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest = text_of(data, size);
  std::array<std::string, 5> lines;
  for (auto& line : lines) {
    const auto end = std::min(rest.find('\n'), rest.size());
    line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  check_mounts(text_of(data, size));
  check_mounts(lines[0]);
  check_platform(text_of(data, size));
  check_all(lines);
  return 0;
}
