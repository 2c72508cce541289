#pragma once

#include <cstddef>
#include <string_view>

#include "base/json/json.hpp"

namespace spc {

/// What a CDI file says, whether it is JSON or YAML.
struct CdiDocument {
  Json tree;
  bool from_yaml = false;  ///< a number may stand for a text then: YAML's `name: 0`
};

/// Real files have some hundred lines; those of a node with many partitions of GPUs some thousand.
inline constexpr JsonLimits kCdiLimits{.bytes = 1 << 20, .depth = 16, .values = 100'000};

/// JSON if the text begins with a brace, else YAML.
Result<CdiDocument> parse_cdi_document(std::string_view text);

/// YAML as programs write it: maps and sequences by indentation, plain and quoted texts of one
/// line, `[]` and `{}`. Refused is what can be read in more than one way, or can be made to grow:
/// anchors, aliases, tags, other collections in brackets, texts over several lines, directives,
/// further documents, keys given twice.
Result<Json> parse_cdi_yaml(std::string_view text);

}  // namespace spc
