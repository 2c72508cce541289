#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <map>

#include "base/format.hpp"
#include "base/process/user_namespace.hpp"
#include "base/text.hpp"
#include "image/config/config.hpp"
#include "image/export/image_tree.hpp"
#include "image/facts/facts.hpp"
#include "image/reference/file_url.hpp"
#include "image/reference/location.hpp"
#include "image/registry/json.hpp"
#include "image/registry/manifest.hpp"
#include "tool/command.hpp"
#include "tool/images/image_archive.hpp"
#include "tool/images/local_image.hpp"
#include "tool/images/obtain.hpp"
#include "tool/images/stored_images.hpp"
#include "tool/surroundings/places.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

/// A mounted image.
class MountedFiles final : public SeenFiles {
 public:
  explicit MountedFiles(int root) : root_(root) {}
  Result<void> walk(const std::function<void(const std::string&, bool)>& visit) override {
    return walk_image(root_, [&](const TreeEntry& entry) -> Result<void> {
      visit(entry.path, S_ISDIR(entry.status.st_mode));
      return {};
    });
  }
  std::string text(const std::string& path, std::size_t limit) override {
    return text_in_image(root_, path, limit);
  }

 private:
  int root_;
};

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

/// What is known of the image's files.
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

void note(Found& found, FactSheet sheet) {
  add_labels(found.labels, sheet.labels, false);
  found.facts = std::move(sheet.facts);
}

/// What cannot be found out here (no user namespaces, no FUSE) is a warning, not a failure.
Found found_or_warning(const Places& places, Result<OpenedImage> opened,
                       const std::string& config) {
  Found found;
  add_labels(found.labels, config, true);
  const auto looked = [&]() -> Result<void> {
    if (!opened) return opened.error();
    SPC_TRY(make_directories(places.workspace()));
    SPC_TRY(enter_user_namespace(RootMap::self));
    const auto mounted =
        SPC_TRY(mount_image(std::move(opened->files), places.workspace(), {.wanted = false}));
    found.settings = SPC_TRY(settings_of(*opened, mounted.root.get()));
    MountedFiles files(mounted.root.get());
    note(found, SPC_TRY(facts_of(files)));
    return {};
  }();
  if (!looked) report_error("warning: inspect the image: " + looked.error().message());
  return found;
}

/// Its record has the fact sheet since the import, unless an earlier version wrote it.
Found found_in_store(const Places& places, int store, const ListedImage& image) {
  Found found;
  auto sheet = facts_in(image.record->settings);
  if (!sheet)
    return found_or_warning(places, open_stored_image(store, image), image.record->config);
  add_labels(found.labels, image.record->config, true);
  note(found, *std::move(sheet));
  return found;
}

Json description_of(const ListedImage& image, const Found& seen,
                    const std::vector<std::string>& keys) {
  Json found = Json::object();
  for (const Fact& fact : seen.facts)
    found[fact.what] = fact.value.empty() ? Json() : Json(fact.value);
  Json names = Json::array();
  for (const auto& name : image.names) names.push_back(name.name);
  return {{"names", names},       {"digest", image.digest.str()}, {"platform", image.platform()},
          {"bytes", image.bytes}, {"layers", layers_of(image)},   {"signed_by", keys},
          {"facts", found},       {"labels", seen.labels},        {"config", config_of(image)}};
}

void print_line(const char* key, const std::string& value) {
  if (!value.empty()) std::printf("%-12s %s\n", key, printable(value).c_str());
}

void print_description(const ListedImage& image, const Found& seen,
                       const std::vector<std::string>& keys) {
  for (const auto& name : image.names) print_line("name", name.name);
  if (image.digest != Digest()) print_line("digest", image.digest.str());
  print_line("platform", image.platform());
  for (const auto& key : keys) print_line("signed by", key);
  print_line("size", image.record->layers.empty() && image.bytes == 0
                         ? "not pulled: versions are what the configuration says"
                         : formatted("{} in {} layers", human_bytes(image.bytes),
                                     image.record->layers.size()));
  for (const Fact& fact : seen.facts) print_line(fact.what.c_str(), fact.value);
  const std::string& settings = seen.settings.empty() ? image.record->settings : seen.settings;
  print_line("entrypoint", joined(setting_values(settings, "entrypoint"), " "));
  print_line("command", joined(setting_values(settings, "cmd"), " "));
  print_line("workdir", joined(setting_values(settings, "workdir"), " "));
  if (const auto user = setting_values(settings, "user"); !user.empty()) {
    print_line("user",
               user.front() + (is_other_user(user.front())
                                   ? " (not used: containers run as the user who starts them)"
                                   : ""));
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
    if (::fstat(layer.file.get(), &status) != 0)
      return Error::from_errno(errno, "look at " + in_quotes(path));
    image.bytes += static_cast<std::uint64_t>(status.st_size);
  }
  return image;
}

/// An image that is only where it comes from: its configuration, and what that says of its files.
Result<ListedImage> image_of_source(const Places& places, const Config& config,
                                    const std::string& name) {
  const auto source = SPC_TRY(
      image_at_source(places, config, {.image = name, .platform = {}, .pull = {}, .quiet = true}));
  const auto parsed =
      SPC_TRY(parse_image_config(source.config, "image configuration of " + in_quotes(name)));
  ListedImage image;
  image.digest = source.digest;
  image.names.push_back(
      {.name = SPC_TRY(ImageLocation::parse(name, config.default_registry)).canonical(),
       .manifest = source.digest});
  ImageRecord record;
  record.config = source.config;
  record.settings =
      settings_of(parsed) + fact_records({.facts = facts_of_variables(parsed.env), .labels = {}});
  image.record = std::move(record);
  ImageOrigin origin;
  origin.platform = parsed.platform.str();
  image.origins.add(std::move(origin));
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
    auto opened = SPC_TRY(
        open_image(places, config, {.image = arguments.words[0], .platform = {}, .pull = {}}));
    const auto image = SPC_TRY(image_of_path(opened, arguments.words[0]));
    return print_image(arguments, image, found_or_warning(places, std::move(opened), {}), {});
  }
  auto store = open_store(places.store);
  auto found = store ? find_image(store->get(), arguments.words[0], config.default_registry)
                     : Result<ListedImage>(store.error());
  const bool is_digest =
      arguments.words[0].find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!found && found.error().kind() == ErrorKind::not_found && places.own_store && location &&
      !is_digest) {
    found = image_of_source(places, config, arguments.words[0]);
    store = make_own_store(places);
  }
  if (!store) return store.error();
  const ListedImage image = SPC_TRY(std::move(found));
  if (!image.record)
    return Error(ErrorKind::refused, formatted("inspect {}: permission denied for its record",
                                               in_quotes(without_secrets(arguments.words[0]))));
  const auto keys =
      signed_by(store->get(), image.digest);  // first: what follows can enter a user namespace
  return print_image(arguments, image, found_in_store(places, store->get(), image), keys);
}

}  // namespace spc::tool
