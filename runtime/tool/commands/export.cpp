#include "base/format.hpp"
#include "base/process/own_program.hpp"
#include "base/process/user_namespace.hpp"
#include "image/config/config.hpp"
#include "image/export/apptainer_files.hpp"
#include "image/export/enroot_files.hpp"
#include "image/export/image_tree.hpp"
#include "image/export/new_file.hpp"
#include "image/export/sif_file.hpp"
#include "image/export/write_image.hpp"
#include "image/reference/file_url.hpp"
#include "tool/command.hpp"
#include "tool/images/image_archive.hpp"

namespace spc::tool {
namespace {

/// The image's settings as those want them who read the file. What enroot or Apptainer made and we
/// imported has them already.
Result<std::vector<AddedFile>> files_for(ImageForm form, const ArchiveSource& source, int root) {
  const std::vector<AddedFile> none;
  if (form == ImageForm::sif) {
    if (open_in_image(root, ".singularity.d")) return none;
    const std::string settings = SPC_TRY(settings_of(source.opened, root));
    return apptainer_files(settings, source.config);
  }
  return source.opened.settings == kSettingsInFiles
             ? none
             : enroot_files(source.opened.settings, source.config);
}

}  // namespace

Result<int> run_export(const Arguments& arguments) {
  const std::string& name = arguments.words[0];
  const ImageTarget target = parse_image_target(arguments.words[1]);
  if (target.form == ImageForm::oci_layer)
    return Error(ErrorKind::invalid,
                 "export " + in_quotes(without_secrets(name)) +
                     ": one layer is what --container-save writes, of a job's container")
        .hint("name a FILE.tar, FILE.sif or FILE.sqsh");
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config));
  auto source = SPC_TRY(open_archive_source(places, config, name));
  OpenedImage& opened = source.opened;
  const Replace replace = arguments.has("force") ? Replace::yes : Replace::no;
  auto file = SPC_TRY(NewFile::create(target.path, replace));
  SPC_TRY(make_directories(places.workspace()));
  WritableLayer shown{.wanted = false};
  if (arguments.has("changes"))
    shown.directory = SPC_TRY(absolute_path(arguments.value("changes")));

  SPC_TRY_DURING("mount the image", enter_user_namespace(RootMap::self));
  const auto mounted = SPC_TRY_DURING(
      "mount the image", mount_image(std::move(opened.files), places.workspace(), shown));
  const int root = mounted.root.get();
  const std::string step = "export " + in_quotes(without_secrets(name));
  const auto write = [&]() -> Result<void> {
    if (target.form == ImageForm::oci_archive) {
      const std::string settings = SPC_TRY(settings_of(opened, root));
      return write_oci_archive(
          root, {.config = source.config, .settings = settings, .name = opened.name}, file.file());
    }
    const auto added = SPC_TRY(files_for(target.form, source, root));
    SPC_TRY(write_squashfs(root, added, file.file(), 0, own_program("layer-writer")));
    return target.form == ImageForm::sif ? make_sif(file.file(), source.config) : Result<void>();
  };
  if (const auto written = write(); !written) return file.about(written.error()).during(step);
  SPC_TRY(file.publish());
  return 0;
}

}  // namespace spc::tool
