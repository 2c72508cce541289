// Input of enroot-mount from hooks, and content of ENROOT_MOUNTS.

#include <sys/mount.h>

#include "base/text.hpp"
#include "hook_engine/enroot_fstab.hpp"
#include "lib/property.hpp"

using namespace spc;
using namespace spc::fuzz;

FUZZ_TARGET(enroot_mounts) {
  const auto lines = parse_enroot_mounts(text_of(data, size));
  if (!lines) {
    must_be_readable(lines.error());
    return 0;
  }
  const std::string_view text = text_of(data, size);
  must(lines->size() <= 1 + static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')),
       "a line is at most one mount");
  for (const EnrootFstabLine& line : *lines) {
    must(!line.source.empty() && !line.target.empty() && !line.type.empty(),
         "a mount says what, where and how");
    must(line.source.size() + line.target.size() + line.data.size() < kMostOfFstabLine * 2,
         "nothing grows");
    must((line.flags & (MS_PRIVATE | MS_SHARED | MS_SLAVE | MS_UNBINDABLE)) == 0,
         "propagation is no flag of a mount");
    for (const std::string_view option : split(line.data, ','))
      must(!option.starts_with("x-"), "options for programs do not reach the file system");
    must((line.source + line.target + line.type + line.data).find('\0') == std::string::npos,
         "the kernel reads all of it");
  }
  return 0;
}
