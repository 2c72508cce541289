#include "image/registry/json.hpp"

#include <string>

#include "base/format.hpp"

namespace spc {

Result<Json> parse_json_object(std::string_view text, std::string_view what) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '<') {
    return Error(ErrorKind::corrupt, std::string(what) + ": is an HTML page, not JSON")
        .hint("a proxy or a login page answers instead of the registry");
  }
  if (first != std::string_view::npos && text[first] != '{') {
    return Error(ErrorKind::corrupt, std::string(what) + ": is not a JSON object");
  }
  auto parsed = Json::parse(text);
  if (!parsed)
    return Error(ErrorKind::corrupt, formatted("{}: {}", what, parsed.error().message()));
  return parsed;
}

}  // namespace spc
