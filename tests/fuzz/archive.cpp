// An image archive of a user (`docker save`, an OCI layout, a root file system), as read by
// user-source.

#include "lib/property.hpp"
#include "local/image_files.hpp"
#include "local/local_image.hpp"

using namespace spc;
using namespace spc::user_source;
using namespace spc::fuzz;

namespace {

class NoLog final : public Log {
 public:
  void write(LogLevel, std::string_view) noexcept override {}
};

bool lies_in(const FilePart& part, const FilePart& archive) {
  return part.offset <= archive.size && part.size <= archive.size - part.offset;
}

void check(const Result<std::unique_ptr<LocalImage>>& image) {
  if (!image) return must_be_readable(image.error());
  const auto document = read_part((*image)->document(), std::size_t{4} << 20U, "document");
  if (!document) return must_be_readable(document.error());
  const auto nothing = (*image)->blob(Digest());
  if (nothing) must(!nothing->has_value(), "nobody has a blob of zeros");
}

}  // namespace

FUZZ_TARGET(archive) {
  const auto file = file_with(text_of(data, size), "");
  must(file.has_value(), "memory files work");
  NoLog log;
  for (int how = 0; how < 3; ++how) {
    auto files = TarFiles::index(*file, "archive");
    if (!files) {
      must_be_readable(files.error());
      return 0;
    }
    for (const char* name :
         {"manifest.json", "index.json", "oci-layout", "etc/passwd", "../a", "a"}) {
      const auto found = (*files)->find(name);
      if (found && *found) must(lies_in(**found, *file), "a file lies in its archive");
    }
    check(how == 0 ? open_docker_save(std::move(*files), size % 2 == 0 ? "" : "a:1", "archive", log)
          : how == 1 ? open_oci_layout(std::move(*files), size % 2 == 0 ? "" : "a:1", "archive")
                     : open_root_archive(**files, "archive", log));
  }
  return 0;
}
