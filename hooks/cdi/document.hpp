#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/result.hpp"

namespace spc {

/// The tree that a CDI file is, whichever of the two it was written in.
struct CdiDocument {
  nlohmann::json tree;
  bool from_yaml = false;  ///< a number may stand for a text then: YAML's `name: 0`
};

// Real files have some hundred lines; those of a node with many partitions of GPUs some thousand.
inline constexpr std::size_t kCdiMostBytes = 1 << 20;
inline constexpr std::size_t kCdiMostValues = 100'000;
inline constexpr std::size_t kCdiMostDepth = 16;

/// JSON, if the text begins with a brace, else YAML as programs write it: maps and sequences by indentation, plain and quoted
/// texts in one line, comments, `[]` and `{}`. Everything else that YAML has is refused as unsupported, with the line. Keys
/// given twice are refused, too: readers differ in which one counts.
Result<CdiDocument> parse_cdi_document(std::string_view text);

/// The two, for themselves.
Result<nlohmann::json> parse_cdi_json(std::string_view text);
Result<nlohmann::json> parse_cdi_yaml(std::string_view text);

}  // namespace spc
