// Values of a user's options: one line per option with a value, in the order of `Line`, then words
// of plugstack.conf.
// outcome 9 refused: 1 MiB reference; 10,000 mounts
// outcome 12 refused: mounts that cannot be meant; the others round-trip
// outcome 14 refused: hostile option variables

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/property.hpp"
#include "reference/request.hpp"
#include "request/mount_spec.hpp"
#include "spank_container/runtime.h"

using namespace spc;
using namespace spc::fuzz;

namespace {

void check_mounts(std::string_view text) {
  const auto mounts = parse_mounts(text);
  if (!mounts) return must_be_readable(mounts.error());
  must(!mounts->empty(), "an accepted list of mounts is not empty");
  for (const MountSpec& mount : *mounts) {
    const bool has_source =
        mount.kind == MountSpec::Kind::bind || mount.kind == MountSpec::Kind::squashfs;
    must(mount.source.empty() != has_source,
         "what comes from the host has a source, and nothing else");
    must(mount.kind != MountSpec::Kind::bind || mount.source[0] == '/' || mount.source[0] == '.',
         "a source is a path");
    must(mount.target.starts_with('/'), "a target is an absolute path");
    const bool quotes = mount.shown_as.find_first_of("\\\"") != std::string::npos;
    must(quotes || (mount.source + mount.target).find_first_of(":,") == std::string::npos,
         "what separates takes no part unquoted");
    must(mount.kind == MountSpec::Kind::tmpfs || mount.kind == MountSpec::Kind::removal ||
             (!mount.size && !mount.mode),
         "only what is made has a size and a mode");
    must(!mount.mode || *mount.mode <= 01777U, "no mode has privilege");
    must(!mount.size || (mount.size->bytes >> 60 == 0 && mount.size->percent <= 100),
         "a size can be calculated with");
    must(std::filesystem::path(mount.target).lexically_normal() != "/",
         "a target is not the root, however it is written");
    const auto again = parse_mounts(mount.shown_as);
    must(again.has_value() && again->size() == 1 && again->front() == mount,
         "a mount as it is shown is the same mount");
  }
}

void check_platform(std::string_view text) {
  const auto platform = Platform::parse(text);
  if (!platform) return must_be_readable(platform.error());
  must(platform->str() == text, "a platform is written as it was");
}

constexpr std::array kNames{"mounts", "image",   "workdir",    "env",   "pull",    "name",
                            "save",   "unshare", "tmpfs-size", "batch", "platform"};
/// Values of the options with these names, then of two more.
enum Line : std::size_t { kScript = kNames.size(), kSettings, kLines };
using Lines = std::array<std::string, kLines>;

void check_all(const Lines& lines) {
  spc_runtime* rt = nullptr;
  must(spc_open(nullptr, nullptr, &rt) == SPC_OK, "a handle can be had");
  const auto text = [&](Line line) { return lines[line].empty() ? nullptr : lines[line].c_str(); };
  const std::array<const char*, 2> given_settings{text(kSettings), nullptr};
  must(spc_configure(rt, given_settings.data()) == SPC_OK, "settings are taken as they are");
  std::vector<std::string> texts;
  for (std::size_t line = 0; line < kNames.size(); ++line) {
    if (!lines[line].empty())
      texts.push_back(std::string("container-") + kNames[line] + "=" + lines[line]);
  }
  std::size_t bits = 0;
  for (const std::string& line : lines) bits = bits * 31 + line.size();
  spc_option option{};
  option.size = sizeof option;
  for (std::size_t number = 0; spc_option_at(number, &option) == SPC_OK; ++number) {
    if (option.argument == nullptr && bits % 3 == 0) texts.emplace_back(option.name);
    bits = bits / 3 * 31 + number;
  }
  std::vector<const char*> given;
  for (const std::string& one : texts) given.push_back(one.c_str());
  given.push_back(nullptr);
  spc_options options{};
  options.size = sizeof options;
  options.given = given.data();
  options.batch_script = text(kScript);
  const int rc = spc_check(rt, &options);
  must(rc == SPC_OK || rc == SPC_E_INVALID, "options are right or wrong, and nothing else");
  if (rc != SPC_OK)
    must(*spc_error_message(rt) != '\0' && is_printable(spc_error_message(rt)),
         "a refusal says why");
  spc_close(rt);
}

}  // namespace

FUZZ_TARGET(options) {
  std::string_view rest = text_of(data, size);
  Lines lines;
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
