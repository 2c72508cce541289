#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>

#include "base/json/json.hpp"
#include "base/process/own_program.hpp"
#include "image/config/config.hpp"
#include "tool/command.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {

Result<int> run_version(const Arguments&) {
  std::puts("scontainer " SPC_VERSION);
  return 0;
}

Result<int> run_info(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config));
  utsname system{};
  ::uname(&system);
  const std::string import = own_program("import");
  const std::pair<const char*, std::string> lines[] = {
      {"version", SPC_VERSION},
      {"store", places.store},
      {"store_of_the_node", SPC_STORE_DIR},
      {"config", ::access(places.config.c_str(), F_OK) == 0
                     ? places.config
                     : places.config + " (missing: defaults)"},
      {"default_registry", config.default_registry},
      {"pull", name_of(config.pull)},
      {"platform", Platform::host().str()},
      {"kernel", system.release},
      {"programs", import.substr(0, import.rfind('/'))},
  };
  if (arguments.has("json")) {
    Json object = Json::object();
    for (const auto& [key, value] : lines) object[key] = value;
    std::puts(object.str(2).c_str());
    return 0;
  }
  for (const auto& [key, value] : lines) std::printf("%-18s %s\n", key, printable(value).c_str());
  return 0;
}

}  // namespace spc::tool
