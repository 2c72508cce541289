#include "base/process/own_program.hpp"

#include <fcntl.h>
#include <link.h>  // and dlfcn.h

#include <string_view>

#include "base/unique_fd.hpp"

namespace spc {

std::string own_program(const char* name) {
  Dl_info about{};
  // The file with this code. The main program has an empty name in the list, and a static program
  // has no list.
  link_map* code = nullptr;
  ::dladdr1(reinterpret_cast<const void*>(&own_program), &about, reinterpret_cast<void**>(&code),
            RTLD_DL_LINKMAP);
  // The loader lists names as it searched for them, possibly through symbolic links.
  const UniqueFd file(
      ::open(code != nullptr && *code->l_name != '\0' ? code->l_name : "/proc/self/exe",
             O_PATH | O_CLOEXEC));
  char path[4096] = "";
  [[maybe_unused]] const auto size =
      ::readlink(("/proc/self/fd/" + std::to_string(file.get())).c_str(), path, sizeof path - 1);
  std::string here(path, std::string_view(path).rfind('/') + 1);
  for (const std::string_view place : {SPC_LIBRARY_PLACE, SPC_COMMANDS_PLACE})
    if (here.ends_with(place))
      here.replace(here.size() - place.size(), place.size(), SPC_PROGRAMS_PLACE);
  return here + name;
}

}  // namespace spc
