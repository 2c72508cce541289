#pragma once

#include <string>
#include <vector>

#include "image/export/archive.hpp"

namespace spc {

/// How Apptainer stores an image's settings in the image: below /.singularity.d a script with the
/// environment, one that runs the image, and the labels. Its work directory Apptainer has no place
/// for, so that script enters it. `settings`: records `key=value\0`; `config`: the image
/// configuration.
std::vector<AddedFile> apptainer_files(const std::string& settings, const std::string& config);

}  // namespace spc
