#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>

#include "base/format.hpp"
#include "image/reference/location.hpp"
#include "image/reference/reference.hpp"
#include "image/store/store.hpp"
#include "launch/host/local_image.hpp"
#include "tool/command.hpp"
#include "tool/images/file_import.hpp"
#include "tool/images/obtain.hpp"

namespace spc::tool {
Result<int> run_import(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  if (!places.own_store) {
    return Error(ErrorKind::refused,
                 "import a file: the node's store takes images from registries only")
        .hint("use the file with --container-image, or import it as a non-root user");
  }
  const auto config = SPC_TRY(read_config(places.config));
  std::string source = arguments.words[0];
  const auto reference = SPC_TRY_DURING(
      "new name", ImageReference::parse(arguments.words[1], config.default_registry));
  const auto ref_file = reference.ref_file_name();
  if (!ref_file || reference.digest)
    return Error(ErrorKind::invalid, "new name: must be NAME[:TAG]");
  const auto directory = SPC_TRY(make_own_store(places));
  const auto store = SPC_TRY(ImageStore::open(directory.get()));

  // A file may be named as it is; where an image could be meant, too, it is the file here.
  if (::access(source.c_str(), F_OK) == 0 && source[0] != '/' && source[0] != '.')
    source = "./" + source;
  auto local = source[0] == '/' || source[0] == '.' || source[0] == '~'
                   ? open_local_image(source, places.home)
                   : Result<LocalImage>(LocalImage{});
  if (!local) return std::move(local).error().during("import " + in_quotes(source));
  Digest digest;
  if (local->file && local->kind == LocalImage::Kind::squashfs) {
    digest = SPC_TRY_DURING("import " + in_quotes(source),
                            import_file(directory.get(), local->file.get(), reference.canonical()));
  } else {
    const auto location = SPC_TRY(ImageLocation::parse(source, config.default_registry));
    struct stat status {};
    if (location.kind == ImageLocation::Kind::registry) {
      return Error(ErrorKind::invalid,
                   formatted("import {}: is the name of an image in a registry", in_quotes(source)))
          .hint("use scontainer pull");
    }
    if (location.kind == ImageLocation::Kind::path && ::stat(location.path.c_str(), &status) == 0 &&
        S_ISDIR(status.st_mode)) {
      return Error(ErrorKind::invalid, formatted("import {}: is a directory", in_quotes(source)))
          .hint("scontainer run takes directories; for an image layout use oci:DIR");
    }
    digest =
        SPC_TRY(
            obtain(places, config,
                   {.image = source, .platform = {}, .pull = {}, .quiet = arguments.has("quiet")}))
            .image.digest;
  }
  SPC_TRY(store.write_name({.name = *ref_file,
                            .manifest = digest,
                            .asked_at = static_cast<std::int64_t>(std::time(nullptr))}));
  std::puts(digest.str().c_str());
  return 0;
}

}  // namespace spc::tool
