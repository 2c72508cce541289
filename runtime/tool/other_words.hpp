#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "tool/command.hpp"

namespace spc::tool {

/// Options in front of the image as tutorials for Apptainer, docker and podman have them, in our
/// words: `--nv`, `-B`, `-v`, `-it`. What cannot be had here is an error that says what to do
/// instead; what makes no difference is left out. `rows`: our own options.
Result<std::vector<std::string>> in_our_words(std::span<const std::string> words,
                                              std::span<const OptionRow> rows);

}  // namespace spc::tool
