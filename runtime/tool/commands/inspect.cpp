#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <map>

#include "base/format.hpp"
#include "base/process/user_namespace.hpp"
#include "base/text.hpp"
#include "image/config/config.hpp"
#include "image/export/image_tree.hpp"
#include "image/reference/location.hpp"
#include "image/registry/json.hpp"
#include "image/registry/manifest.hpp"
#include "tool/command.hpp"
#include "tool/facts.hpp"
#include "tool/images/image_archive.hpp"
#include "tool/images/local_image.hpp"
#include "tool/images/obtain.hpp"
#include "tool/images/stored_images.hpp"
#include "tool/surroundings/places.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

constexpr std::size_t kMaxLabels = 1 << 20;

Json layers_of(const ListedImage& image) {
  Json layers = Json::array();
  for (const Digest& layer : image.record->layers) layers.push_back(layer.str());
  return layers;
}

/// The configuration as the image brought it; what is no JSON stays text.
Json config_of(const ListedImage& image) {
  auto config = parse_json_object(image.record->config, "the image's configuration");
  return config ? *std::move(config) : Json(image.record->config);
}

/// What is found in the image's files.
struct Found {
  std::vector<Fact> facts;
  std::map<std::string, std::string> labels;
  std::string settings;
};

/// Labels of its configuration, and those that Apptainer keeps in a file.
void add_labels(std::map<std::string, std::string>& labels, std::string_view text, bool is_config) {
  const auto document = parse_json_object(text, "labels");
  const Json* found = document ? &*document : nullptr;
  if (is_config && found != nullptr) found = found->find("config");
  if (is_config && found != nullptr) found = found->find("Labels");
  if (found == nullptr || !found->is_object()) return;
  for (const auto& [name, value] : found->members()) labels[name] = value.as_text();
}

/// What cannot be found out here (no user namespaces, no FUSE) is a warning, not a failure.
Found found_or_warning(const Places& places, Result<OpenedImage> opened, const std::string& config) {
  Found found;
  add_labels(found.labels, config, true);
  const auto looked = [&]() -> Result<void> {
    if (!opened) return opened.error();
    SPC_TRY(make_directories(places.workspace()));
    SPC_TRY(enter_user_namespace(RootMap::self));
    const auto mounted = SPC_TRY(mount_image(std::move(opened->files), places.workspace(), {.wanted = false}));
    add_labels(found.labels, text_in_image(mounted.root.get(), ".singularity.d/labels.json", kMaxLabels), false);
    found.settings = SPC_TRY(settings_of(*opened, mounted.root.get()));
    found.facts = SPC_TRY(facts_of(mounted.root.get()));
    return {};
  }();
  if (!looked) report_error("warning: inspect the image: " + looked.error().message());
  return found;
}

Json description_of(const ListedImage& image, const Found& seen, const std::vector<std::string>& keys) {
  Json found = Json::object();
  for (const Fact& fact : seen.facts) found[fact.what] = fact.value.empty() ? Json() : Json(fact.value);
  Json names = Json::array();
  for (const auto& name : image.names) names.push_back(name.name);
  return {{"names", names},       {"digest", image.digest.str()}, {"platform", image.platform()},
          {"bytes", image.bytes}, {"layers", layers_of(image)},   {"signed_by", keys},
          {"facts", found},       {"labels", seen.labels},        {"config", config_of(image)}};
}

void print_line(const char* key, const std::string& value) {
  if (!value.empty()) std::printf("%-12s %s\n", key, printable(value).c_str());
}

void print_description(const ListedImage& image, const Found& seen, const std::vector<std::string>& keys) {
  for (const auto& name : image.names) print_line("name", name.name);
  if (image.digest != Digest()) print_line("digest", image.digest.str());
  print_line("platform", image.platform());
  for (const auto& key : keys) print_line("signed by", key);
  print_line("size", formatted("{} in {} layers", human_bytes(image.bytes), image.record->layers.size()));
  for (const Fact& fact : seen.facts) print_line(fact.what.c_str(), fact.value);
  const std::string& settings = seen.settings.empty() ? image.record->settings : seen.settings;
  print_line("entrypoint", joined(setting_values(settings, "entrypoint"), " "));
  print_line("command", joined(setting_values(settings, "cmd"), " "));
  print_line("workdir", joined(setting_values(settings, "workdir"), " "));
  if (const auto user = setting_values(settings, "user"); !user.empty()) {
    print_line("user",
               user.front() + (is_other_user(user.front()) ? " (not used: containers run as the user who starts them)" : ""));
  }
  for (const auto& variable : setting_values(settings, "env")) print_line("env", variable);
  for (const auto& [name, value] : seen.labels) print_line("label", name + "=" + value);
  for (const Digest& layer : image.record->layers) print_line("layer", layer.str());
}

/// A file or directory of the user: not in the store, so it has no digest.
Result<ListedImage> image_of_path(const OpenedImage& opened, const std::string& path) {
  ListedImage image;
  image.names.push_back({.name = path, .manifest = {}});
  image.record = ImageRecord();
  for (const auto& layer : opened.files.layers) {
    struct stat status {};
    if (::fstat(layer.file.get(), &status) != 0) return Error::from_errno(errno, "look at " + in_quotes(path));
    image.bytes += static_cast<std::uint64_t>(status.st_size);
  }
  return image;
}

Result<int> print_image(const Arguments& arguments, const ListedImage& image, const Found& seen,
                        const std::vector<std::string>& keys) {
  if (arguments.has("json")) {
    std::puts(description_of(image, seen, keys).str(2).c_str());
  } else {
    print_description(image, seen, keys);
  }
  return 0;
}

}  // namespace

Result<int> run_inspect(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config));
  const auto location = ImageLocation::parse(arguments.words[0], config.default_registry);
  if (location && location->kind == ImageLocation::Kind::path) {
    auto opened = SPC_TRY(open_image(places, config, {.image = arguments.words[0], .platform = {}, .pull = {}}));
    const auto image = SPC_TRY(image_of_path(opened, arguments.words[0]));
    return print_image(arguments, image, found_or_warning(places, std::move(opened), {}), {});
  }
  const auto store = SPC_TRY(open_store(places.store));
  const auto image = SPC_TRY(find_image(store.get(), arguments.words[0], config.default_registry));
  if (!image.record)
    return Error(ErrorKind::refused, formatted("inspect {}: permission denied for its record", in_quotes(arguments.words[0])));
  const auto keys = signed_by(store.get(), image.digest);  // first: what follows enters a user namespace
  auto opened = open_stored_image(store.get(), image);
  return print_image(arguments, image, found_or_warning(places, std::move(opened), image.record->config), keys);
}

}  // namespace spc::tool
