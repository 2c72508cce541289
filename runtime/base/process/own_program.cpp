#include "base/process/own_program.hpp"

#include <limits.h>
#include <link.h>  // and dlfcn.h
#include <unistd.h>

#include <string_view>

namespace spc {

std::string own_program(const char* name) {
  Dl_info about{};
  link_map* object = nullptr;  // this code's; the program itself has no name there
  ::dladdr1(reinterpret_cast<const void*>(&own_program), &about, reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP);
  char program[PATH_MAX] = "";
  [[maybe_unused]] const auto size = ::readlink("/proc/self/exe", program, sizeof program - 1);
  std::string here(*object->l_name != '\0' ? object->l_name : program);
  here.resize(here.rfind('/') + 1);
  for (const std::string_view place : {SPC_LIBRARY_PLACE, SPC_COMMANDS_PLACE})
    if (here.ends_with(place)) here.replace(here.size() - place.size(), place.size(), SPC_PROGRAMS_PLACE);
  return here + name;
}

}  // namespace spc
