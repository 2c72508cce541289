#include <cstdio>

#include "image/config.hpp"
#include "image/json.hpp"
#include "image/reference.hpp"
#include "tool/command.hpp"
#include "tool/places.hpp"
#include "tool/stored_images.hpp"
#include "tool/terminal.hpp"

namespace spc {
namespace {

std::string said(const Removed& removed, const char* verb) {
  std::string text = std::string(verb) + " " + std::to_string(removed.images) + (removed.images == 1 ? " image" : " images") +
                     " and " + std::to_string(removed.layers) + (removed.layers == 1 ? " layer" : " layers") + ", " +
                     human_bytes(removed.bytes);
  if (removed.in_use > 0) text += "; " + std::to_string(removed.in_use) + " more are in use";
  return text;
}

/// The names that `text` means: itself if it is one, all of the image if it is a digest.
std::vector<StoredName> names_meant(const ListedImage& image, const std::string& text, const std::string& default_registry) {
  const auto reference = ImageReference::parse(text, default_registry);
  for (const StoredName& name : image.names) {
    if (name.name == text || (reference && name.name == reference->canonical())) return {name};
  }
  return image.names;
}

}  // namespace

Result<int> run_rm(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config));
  const auto store = SPC_TRY(open_store(places.store));
  for (const std::string& text : arguments.words) {
    const auto image = find_image(store.get(), text, config.default_registry);
    if (!image) {
      if (image.error().kind() == ErrorKind::not_found && arguments.has("force")) continue;
      return image.error();
    }
    const auto names = names_meant(*image, text, config.default_registry);
    const auto removed = SPC_TRY(remove_names(store.get(), names, {image->digest}));
    std::puts((printable(text) + ": " + said(removed, "removed")).c_str());
  }
  return 0;
}

Result<int> run_gc(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  const auto store = SPC_TRY(open_store(places.store));
  const bool dry = !arguments.has("yes");
  const auto removed = SPC_TRY(sweep(store.get(), dry ? DryRun::yes : DryRun::no));
  if (arguments.has("json")) {
    const Json report{{"dry_run", dry},
                      {"images", removed.images},
                      {"layers", removed.layers},
                      {"bytes", removed.bytes},
                      {"layers_in_use", removed.in_use}};
    std::puts(report.dump(2).c_str());
  } else {
    std::puts(said(removed, dry ? "would remove" : "removed").c_str());
    if (dry && removed.images + removed.layers > 0) std::puts("scontainer gc --yes does it");
  }
  return 0;
}

}  // namespace spc
