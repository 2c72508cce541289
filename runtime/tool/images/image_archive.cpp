#include "tool/images/image_archive.hpp"

#include <sys/mman.h>

#include "base/file.hpp"
#include "base/process/user_namespace.hpp"
#include "image/reference/location.hpp"
#include "launch/inside/image_files.hpp"
#include "task/entering/visit.hpp"

namespace spc::tool {
namespace {

constexpr std::size_t kMaxSettings = 4 << 20;

std::string records_of(const ImageSettings& settings) {
  std::string records;
  const auto add = [&](const char* key, const std::string& value) {
    records += key + ("=" + value) + '\0';
  };
  for (const auto* variables : {&settings.environment, &settings.assignments}) {
    for (const std::string& variable : *variables) add("env", variable);
  }
  if (!settings.workdir.empty()) add("workdir", settings.workdir);
  std::vector<std::string> entrypoint;
  if (!settings.start_script.empty()) entrypoint = {"/bin/sh", settings.start_script};
  for (const std::string& word : settings.after_scripts(std::move(entrypoint)))
    add("entrypoint", word);
  return records;
}

}  // namespace

Result<ArchiveSource> open_archive_source(const Places& places, const Config& config,
                                          const std::string& name) {
  const auto location = ImageLocation::parse(name, config.default_registry);
  if (location && location->kind == ImageLocation::Kind::path) {
    return ArchiveSource{
        SPC_TRY(open_image(places, config, {.image = name, .platform = {}, .pull = {}})), {}};
  }
  const auto store = SPC_TRY(open_store(places.store));
  const auto image = SPC_TRY(find_image(store.get(), name, config.default_registry));
  auto opened = SPC_TRY(open_stored_image(store.get(), image));
  return ArchiveSource{std::move(opened), image.record->config};
}

Result<std::string> settings_of(const OpenedImage& opened, int root) {
  if (opened.settings != kSettingsInFiles) return opened.settings;
  const UniqueFd found(::memfd_create("spank-container settings", MFD_CLOEXEC));
  SPC_TRY_DURING("read the image's settings", visit_root(root, [&]() -> Result<void> {
                   ImageSettings settings;
                   read_image_files({}, settings, nullptr);
                   return write_all(found.get(), records_of(settings));
                 }));
  return read_file(found.get(), kMaxSettings);
}

Result<void> write_archive_apart(const Places& places, ArchiveSource source, int file) {
  SPC_TRY(make_directories(places.workspace()));
  return run_apart(
      [&]() -> Result<void> {
        SPC_TRY_DURING("mount the image", enter_user_namespace(RootMap::self));
        const auto mounted = SPC_TRY_DURING(
            "mount the image",
            mount_image(std::move(source.opened.files), places.workspace(), {.wanted = false}));
        const int root = mounted.root.get();
        const std::string settings = SPC_TRY(settings_of(source.opened, root));
        const OciImage image{.config = source.config,
                             .settings = settings,
                             .name = source.opened.name,
                             .compressed = true};
        return write_oci_archive(root, image, file);
      },
      "write the image as one layer");
}

}  // namespace spc::tool
