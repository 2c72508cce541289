// config.toml. Root owns it, but an error in it must be reported and must not crash.

#include "config/config.hpp"

#include "lib/property.hpp"
#include "reference/reference.hpp"

using namespace spc;
using namespace spc::fuzz;

FUZZ_TARGET(config) {
  if (size > 4096) return 0;
  const std::string text(text_of(data, size));
  Config config;  // srun uses the valid keys of a file with errors
  const auto read = add_config(config, text, "config.toml");
  if (!read) {
    const std::string message = read.error().message();
    must(message.starts_with("configuration \"config.toml\", line ") && is_printable(message),
         "a message names file and line, in one line");
  }
  must(parse_registry(config.default_registry).has_value(), "the default registry is one");
  must(config.tag_ttl >= 0 && config.public_ttl >= 0 && config.stall_timeout >= 0 &&
           config.max_parallel_layers <= 64,
       "numbers are in their range");
  must(!config.upper_size.empty() && config.upper_size.size() <= 13 &&
           config.upper_size.find(',') == std::string::npos,
       "the size is one option of tmpfs");
  for (const auto& [name, registry] : config.registries) {
    must(parse_registry(name).has_value() && *parse_registry(name) == name,
         "registries have normal names");
    must(registry.ca.empty() || registry.ca.front() == '/', "certificates have absolute paths");
  }
  return 0;
}
