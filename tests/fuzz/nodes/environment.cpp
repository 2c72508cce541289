// Environment files of users, which srun and scontainer read, and the variable that passes an
// environment to the nodes.

#include <sys/mman.h>
#include <unistd.h>

#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "lib/property.hpp"

using namespace spc;
using namespace spc::fuzz;

FUZZ_TARGET(environment) {
  if (size > 4096) return 0;
  const std::string text(text_of(data, size));
  (void)NamedEnvironment::find(text, "a");
  const UniqueFd file(::memfd_create("environment", MFD_CLOEXEC));
  must(::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()),
       "the file is written");
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  EnvironmentPlaces places;
  places.variables = {{"A", "1"}, {"EMPTY", ""}};
  const auto read = places.read(path);
  if (!read) {
    must_be_readable(read.error());
    return 0;
  }
  const auto record = read->record();
  if (!record) return 0;
  must(is_printable(*record) && record->find(' ') == std::string::npos,
       "the variable is one printable word");
  const auto found = NamedEnvironment::find(*record, path);
  must(found && found->file == read->file, "the variable has the environment");
  std::size_t options = 0;
  for (const EnvironmentValue& value : read->values) {
    if (value.option.empty()) continue;
    const EnvironmentValue& passed = found->values.at(options++);
    must(passed.option == value.option && passed.value == value.value &&
             passed.origin == value.origin,
         "values arrive as they were read");
  }
  must(options == found->values.size(), "no value is added");
  return 0;
}
