#include "base/process/own_program.hpp"

#include <climits>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string_view>

namespace spc {

std::string own_program(const char* name) {
  const auto here = reinterpret_cast<std::uintptr_t>(&own_program);
  std::uintptr_t begin = 0, end = 0;
  char path[PATH_MAX] = "/";
  int words = 2;
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(::fopen("/proc/self/maps", "re"), ::fclose);
  // "55d0-55e0 r-xp 00000000 08:01 42    /usr/bin/x"; memory that is of no file has no path. A file that was replaced meanwhile is
  // "/usr/bin/x (deleted)".
  while (maps && words >= 2 && (here < begin || here >= end))
    words = std::fscanf(maps.get(), "%lx-%lx%*[^/\n]%4095[^\n]", &begin, &end, path);
  const std::string directory(path, words == 3 ? std::string_view(path).rfind('/') : 0);
  for (const std::string_view place : {SPC_LIBRARY_PLACE, "/lib", SPC_COMMANDS_PLACE})
    if (directory.ends_with(place)) return directory.substr(0, directory.size() - place.size()) + SPC_PROGRAMS_PLACE "/" + name;
  return directory + "/" + name;
}

}  // namespace spc
