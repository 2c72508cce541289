#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include "base/file.hpp"
#include "base/unique_fd.hpp"
#include "property.hpp"

namespace spc::fuzz {

/// Returns a nameless file with these bytes, positioned at its start.
inline UniqueFd memory_file(std::string_view bytes = {}) {
  UniqueFd file(::memfd_create("fuzz", MFD_CLOEXEC));
  must(file && write_all(file.get(), bytes).has_value() && ::lseek(file.get(), 0, SEEK_SET) == 0,
       "memory files work");
  return file;
}

}  // namespace spc::fuzz
