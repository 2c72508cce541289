#include "base/process/own_program.hpp"
#include "base/process/user_namespace.hpp"
#include "image/config/config.hpp"
#include "image/export/enroot_files.hpp"
#include "image/export/new_file.hpp"
#include "image/export/write_image.hpp"
#include "tool/command.hpp"
#include "tool/images/image_archive.hpp"

namespace spc::tool {
Result<int> run_export(const Arguments& arguments) {
  const std::string& name = arguments.words[0];
  const ImageTarget target = parse_image_target(arguments.words[1]);
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config));
  auto source = SPC_TRY(open_archive_source(places, config, name));
  OpenedImage& opened = source.opened;
  const Replace replace = arguments.has("force") ? Replace::yes : Replace::no;
  auto file = SPC_TRY(NewFile::create(target.path, replace));
  SPC_TRY(make_directories(places.workspace()));
  WritableLayer shown{.wanted = false};
  if (arguments.has("changes")) shown.directory = SPC_TRY(absolute_path(arguments.value("changes")));

  SPC_TRY_DURING("mount the image", enter_user_namespace(RootMap::self));
  const auto mounted = SPC_TRY_DURING("mount the image", mount_image(std::move(opened.files), places.workspace(), shown));
  const int root = mounted.root.get();
  const std::string step = "export " + in_quotes(name);
  const std::string settings = target.oci ? SPC_TRY(settings_of(opened, root)) : std::string();
  const auto write = [&]() -> Result<void> {
    if (target.oci) {
      return write_oci_archive(root, {.config = source.config, .settings = settings, .name = opened.name}, file.file());
    }
    // What enroot made and we imported has these files already, as it wants them.
    const auto added =
        opened.settings == kSettingsInFiles ? std::vector<AddedFile>() : enroot_files(opened.settings, source.config);
    return write_squashfs(root, added, file.file(), 0, own_program("layer-writer"));
  };
  if (const auto written = write(); !written) return file.about(written.error()).during(step);
  SPC_TRY(file.publish());
  return 0;
}

}  // namespace spc::tool
