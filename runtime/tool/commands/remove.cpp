#include <charconv>
#include <cstdio>
#include <ctime>
#include <set>

#include "base/format.hpp"
#include "base/json/json.hpp"
#include "image/config/config.hpp"
#include "image/reference/file_url.hpp"
#include "image/reference/reference.hpp"
#include "image/store/eviction.hpp"
#include "image/store/inventory.hpp"
#include "image/store/store.hpp"
#include "tool/command.hpp"
#include "tool/containers/stored_containers.hpp"
#include "tool/images/shared_images.hpp"
#include "tool/images/stored_images.hpp"
#include "tool/surroundings/places.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

std::string said(const Evicted& gone, std::size_t staying, const char* verb) {
  std::string text =
      formatted("{} {}{} and {}{}, {}", verb, gone.images, gone.images == 1 ? " image" : " images",
                gone.layers, gone.layers == 1 ? " layer" : " layers", human_bytes(gone.bytes));
  if (staying > 0) text += formatted("; {} more in use", staying);
  return text;
}

Kept kept_in(const ImageStore& store) {
  return {.layers = {},
          .is_in_use = [&store](const Digest& layer) { return store.is_layer_in_use(layer); }};
}

Result<Evicted> carry_out(const ImageStore& store, const EvictionPlan& plan) {
  return evict(store, plan,
               [&](const Digest& layer) { return remove_layer(store.directory(), layer); });
}

/// The names that `text` means: itself if it is one, all of the image if it is a digest.
std::vector<StoredName> names_meant(const ListedImage& image, const std::string& text,
                                    const std::string& default_registry) {
  const auto reference = ImageReference::parse(text, default_registry);
  for (const StoredName& name : image.names) {
    if (name.name == text || name.name == name_without_secrets(text) ||
        (reference && name.name == reference->canonical()))
      return {name};
  }
  return image.names;
}

/// Containers with a name that nobody has used for as long as the site says; their number.
Result<std::size_t> expire_containers(const Places& places, bool dry) {
  const auto config = SPC_TRY(read_config(places.config));
  if (config.store.container_ttl == 0) return std::size_t{0};
  std::size_t removed = 0;
  std::set<uid_t> users;
  for (const StoredContainer& one : SPC_TRY(unused_containers(config.store.container_ttl))) {
    if (!dry && !SPC_TRY(remove_container(one))) continue;
    users.insert(one.uid);
    ++removed;
  }
  for (const uid_t uid : users) {
    if (!dry) SPC_TRY(remove_files_of(uid));
  }
  return removed;
}

/// With the parts that an earlier version did not make.
Result<UniqueFd> open_complete(const Places& places) {
  auto store = SPC_TRY(open_store(places.store));
  return places.own_store ? make_own_store(places) : Result<UniqueFd>(std::move(store));
}

/// The shared store: to its limit, and what was not used for --older days.
Result<int> clean_shared_store(const Arguments& arguments) {
  std::uint32_t days = 0;
  const std::string older = arguments.value("older");
  const auto [rest, error] = std::from_chars(older.data(), older.data() + older.size(), days);
  const bool is_number = error == std::errc() && rest == older.data() + older.size() && days > 0;
  if (arguments.has("older") && !is_number)
    return Error(ErrorKind::invalid, "--older: expected a number of days");
  const auto store = SPC_TRY(open_shared_store());
  const bool dry = !arguments.has("yes");
  const auto removed = store.clean(std::int64_t{days} * 24 * 3600, dry);
  if (arguments.has("json")) {
    std::puts(Json{{"dry_run", dry},
                   {"files", removed.files},
                   {"bytes", removed.bytes},
                   {"leftovers", removed.strays}}
                  .str(2)
                  .c_str());
    return 0;
  }
  std::puts(formatted("{} {}{}, {}, and {}{} of dead nodes", dry ? "would remove" : "removed",
                      removed.files, removed.files == 1 ? " file" : " files",
                      human_bytes(removed.bytes), removed.strays,
                      removed.strays == 1 ? " leftover" : " leftovers")
                .c_str());
  if (dry && removed.files + removed.strays > 0)
    std::puts("use scontainer gc --shared --yes to remove them");
  return 0;
}

}  // namespace

Result<int> run_rm(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config));
  const auto directory = SPC_TRY(open_complete(places));
  const auto store = SPC_TRY(ImageStore::open(directory.get()));
  for (const std::string& text : arguments.words) {
    const auto image = find_image(directory.get(), text, config.default_registry, true);
    if (!image) {
      if (image.error().kind() == ErrorKind::not_found && arguments.has("force")) continue;
      return image.error();
    }
    const auto names = names_meant(*image, text, config.default_registry);
    if (names.size() < image->names.size()) {  // it keeps others
      for (const StoredName& name : names) SPC_TRY(store.remove_name(ref_file(name.name)));
      std::puts(
          formatted("{}: {}", printable(without_secrets(text)), said({}, 0, "removed")).c_str());
      continue;
    }
    const auto plan = plan_removal(SPC_TRY(take_inventory(store)), {image->digest}, kept_in(store));
    const auto removed = SPC_TRY(carry_out(store, plan));
    std::puts(formatted("{}: {}", printable(without_secrets(text)),
                        said(removed, plan.staying, "removed"))
                  .c_str());
  }
  return 0;
}

Result<int> run_gc(const Arguments& arguments) {
  if (arguments.has("shared")) return clean_shared_store(arguments);
  if (arguments.has("older"))
    return Error(ErrorKind::invalid, "gc --older belongs to --shared").hint("scontainer gc --help");
  const auto places = SPC_TRY(Places::find());
  const auto directory = SPC_TRY(open_complete(places));
  const auto store = SPC_TRY(ImageStore::open(directory.get()));
  const bool dry = !arguments.has("yes");
  const auto plan =
      plan_cleaning(SPC_TRY(take_inventory(store)), kept_in(store), std::time(nullptr));
  Evicted removed{.images = plan.images.size(), .layers = plan.layers.size(), .bytes = plan.bytes};
  if (!dry) removed = SPC_TRY(carry_out(store, plan));
  const std::size_t expired =
      places.own_store ? std::size_t{0} : SPC_TRY(expire_containers(places, dry));
  if (arguments.has("json")) {
    Json report{{"dry_run", dry},
                {"images", removed.images},
                {"layers", removed.layers},
                {"bytes", removed.bytes},
                {"layers_in_use", plan.staying}};
    if (!places.own_store) report["containers"] = expired;
    std::puts(report.str(2).c_str());
  } else {
    std::puts(said(removed, plan.staying, dry ? "would remove" : "removed").c_str());
    if (expired > 0)
      std::puts(formatted("{} {}{}", dry ? "would remove" : "removed", expired,
                          expired == 1 ? " container" : " containers")
                    .c_str());
    if (dry && removed.images + removed.layers + expired > 0)
      std::puts("use scontainer gc --yes to remove them");
  }
  return 0;
}

}  // namespace spc::tool
