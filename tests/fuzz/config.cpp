// config.toml. It belongs to root, but what is wrong with it must be told, not crash.

#include "image/config/config.hpp"

#include "image/reference/reference.hpp"
#include "lib/property.hpp"

using namespace spc;
using namespace spc::fuzz;

FUZZ_TARGET(config) {
  if (size > 4096) return 0;
  const std::string text(text_of(data, size));
  const auto config = parse_config(text, "config.toml");
  if (!config) {
    const std::string message = config.error().message();
    must(message.find("config.toml") != std::string::npos && is_printable(message),
         "a message names the file, in one line");
    return 0;
  }
  SubmitRules plain = SubmitRules::of({{"config.toml", text}});
  std::ranges::sort(plain.registries.blocked);
  must(plain.known == SubmitRules::Known::some || plain == config->submit_rules(),
       "srun reads it as it is");
  must(parse_registry(config->default_registry).has_value(), "the default registry is one");
  must(config->tag_ttl >= 0 && config->public_ttl >= 0 && config->stall_timeout >= 0 &&
           config->max_parallel_layers <= 64,
       "numbers are in their range");
  must(!config->upper_size.empty() && config->upper_size.size() <= 13 &&
           config->upper_size.find(',') == std::string::npos,
       "the size is one option of tmpfs");
  for (const auto& [name, registry] : config->registries) {
    must(parse_registry(name).has_value() && *parse_registry(name) == name,
         "registries have normal names");
    must(registry.ca.empty() || registry.ca.front() == '/', "certificates have absolute paths");
  }
  return 0;
}
