#include "base/process/own_program.hpp"

#include <link.h>  // and dlfcn.h

#include <filesystem>

namespace spc {

std::string own_program(const char* name) {
  Dl_info about{};
  link_map* object = nullptr;  // this code's; the program itself has no name there
  ::dladdr1(reinterpret_cast<const void*>(&own_program), &about, reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP);
  const std::filesystem::path library = object->l_name;
  const auto here = (library.empty() ? std::filesystem::read_symlink("/proc/self/exe") : library).parent_path();
  return (here / (!library.empty() ? SPC_FROM_LIBRARY : here.filename() == "bin" ? SPC_FROM_COMMANDS : "") / name).lexically_normal();
}

}  // namespace spc
