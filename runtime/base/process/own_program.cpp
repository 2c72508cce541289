#include "base/process/own_program.hpp"

#include <fcntl.h>
#include <link.h>  // and dlfcn.h

#include <string_view>

#include "base/unique_fd.hpp"  // and unistd.h

namespace spc {

std::string own_program(const char* name) {
  Dl_info about{};
  link_map* code =
      nullptr;  // this one's; the program itself has no name there, and a static one is none
  ::dladdr1(reinterpret_cast<const void*>(&own_program), &about, reinterpret_cast<void**>(&code),
            RTLD_DL_LINKMAP);
  // The loader's names are as it looked for them, perhaps by way of symbolic links.
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
