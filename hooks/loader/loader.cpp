#include "hooks/loader/loader.hpp"

namespace spc {

Result<Edits> loader_edits(const HookContext&, const std::vector<LibraryEdit>& libraries,
                           const std::vector<LibraryDirectoryEdit>&) {
  Edits edits;
  for (const LibraryEdit& library : libraries) {
    const auto slash = library.path.rfind('/');
    edits.symlinks.push_back({library.path.substr(0, slash + 1) + library.soname, library.path.substr(slash + 1)});
  }
  return edits;
}

}  // namespace spc
