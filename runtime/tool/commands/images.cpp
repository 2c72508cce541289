#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <map>
#include <set>

#include "base/bytes.hpp"
#include "base/format.hpp"
#include "base/json.hpp"
#include "base/process/user_namespace.hpp"
#include "base/text.hpp"
#include "config/config.hpp"
#include "convert/facts.hpp"
#include "export/archive.hpp"
#include "image/store/eviction.hpp"
#include "image/store/store.hpp"
#include "reference/location.hpp"
#include "reference/reference.hpp"
#include "registry/manifest.hpp"
#include "tool/build/build_step.hpp"
#include "tool/command.hpp"
#include "tool/containers/stored_containers.hpp"
#include "tool/images/obtain.hpp"
#include "tool/images/stored_images.hpp"
#include "tool/surroundings/places.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

// --- images ---

namespace {

/// Descriptions of images in the site's catalogue.
using Descriptions = std::map<std::string, std::string>;

Descriptions descriptions_of_site() {
  Descriptions descriptions;
  const auto catalogue = read_catalogue();
  if (!catalogue) report_error("warning: " + catalogue.error().message());
  if (!catalogue) return descriptions;
  const auto config = read_config(SPC_CONFIG_FILE);
  for (const CatalogueEntry& entry : *catalogue) {
    const auto reference =
        ImageReference::parse(entry.image, config ? config->default_registry : "docker.io");
    descriptions[reference ? reference->canonical() : entry.image] = entry.description;
  }
  return descriptions;
}

std::string description_in(const Descriptions& descriptions, const std::string& name) {
  const auto found = descriptions.find(name);
  return found == descriptions.end() ? std::string() : printable(found->second);
}

struct Row {
  const char* store;
  ListedImage image;
};

Result<void> add_rows(std::vector<Row>& rows, const char* label, const std::string& path) {
  const auto store = open_store(path);
  if (!store) return {};
  auto images = SPC_TRY(list_images(store->get()));
  for (auto& image : images) rows.push_back({label, std::move(image)});
  return {};
}

/// Returns the seconds since the name was last seen to resolve to this image, -1 if unknown.
std::int64_t age_of(const StoredName* name, const ListedImage& image) {
  const std::int64_t since = name != nullptr ? name->asked_at : image.used_at;
  return since == 0 ? -1 : std::max<std::int64_t>(0, std::time(nullptr) - since);
}

std::int64_t age_of(const SharedImage& image) {
  return std::max<std::int64_t>(0, std::time(nullptr) - image.used_at);
}

Json as_json(const SharedImage& image) {
  Json names = Json::array();
  for (const auto& place : image.places)
    names.push_back({{"name", place}, {"age_seconds", age_of(image)}});
  return {{"store", "shared"},          {"digest", image.digest.str()}, {"names", names},
          {"platform", image.platform}, {"layers", image.layers},       {"bytes", image.bytes},
          {"complete", image.complete}, {"last_used", image.used_at}};
}

Json as_json(const Row& row, const Descriptions& descriptions) {
  std::string text;
  Json names = Json::array();
  for (const auto& name : row.image.names)
    names.push_back({{"name", name.name}, {"age_seconds", age_of(&name, row.image)}});
  for (const auto& name : row.image.names) {
    if (auto description = description_in(descriptions, name.name); !description.empty())
      text = std::move(description);
  }
  Json object{{"store", row.store}, {"digest", row.image.digest.str()}, {"names", names}};
  if (!text.empty()) object["description"] = text;
  for (const auto& name : row.image.asked_as) object["asked_as"].push_back(name.name);
  if (row.image.record) {
    object["platform"] = row.image.platform();
    object["layers"] = row.image.record->layers.size();
    object["bytes"] = row.image.bytes;
    object["complete"] = row.image.complete;
    object["last_used"] = row.image.used_at;
  }
  return object;
}

/// An image as it is shown: once, wherever it is stored.
struct ShownImage {
  Digest digest;
  std::vector<StoredName> names;
  std::string platform;
  std::optional<std::uint64_t> bytes;
  bool complete = true;
  std::string stores;
  std::int64_t used_at = 0;
};

constexpr std::string_view kDigestMark = "@sha256:";

/// Returns whether another of the names says more than `name`: a tag of the same repository.
bool is_spare(const std::string& name, const std::vector<StoredName>& names) {
  const auto mark = name.find(kDigestMark);
  const std::string repository = name.substr(0, mark);
  const bool has_tag =
      mark == std::string::npos && name.find(':', name.rfind('/') + 1) != std::string::npos;
  return !has_tag && std::ranges::any_of(names, [&](const StoredName& other) {
    return other.name.starts_with(repository + ":") ||
           (mark == std::string::npos && other.name.starts_with(repository + "@"));
  });
}

class ShownImages {
 public:
  void add(const Row& row) {
    ShownImage& shown = of(row.image.digest, row.store);
    const ListedImage& image = row.image;
    if (image.record && !shown.bytes) {
      shown.platform = image.platform();
      shown.bytes = image.bytes;
      shown.complete = image.complete;
    }
    shown.used_at = std::max(shown.used_at, image.used_at);
    for (const StoredName& name : image.all_names()) add_name(shown, name);
  }
  void add(const SharedImage& image) {
    ShownImage& shown = of(image.digest, "shared");
    if (!shown.bytes) {
      shown.platform = image.platform;
      shown.bytes = image.bytes;
      shown.complete = image.complete;
    }
    shown.used_at = std::max(shown.used_at, image.used_at);
    for (const auto& place : image.places)
      add_name(shown, {.name = place, .manifest = image.digest, .asked_at = image.used_at});
  }
  /// Returns the images without names that say less than another one.
  std::vector<ShownImage> all() && {
    for (ShownImage& image : images_) {
      const auto names = image.names;
      std::erase_if(image.names, [&](const auto& one) { return is_spare(one.name, names); });
    }
    return std::move(images_);
  }

 private:
  ShownImage& of(const Digest& digest, const char* store) {
    auto found = std::ranges::find(images_, digest, &ShownImage::digest);
    if (found == images_.end()) found = images_.insert(found, ShownImage{.digest = digest});
    found->stores += (found->stores.empty() ? "" : ",") + std::string(store);
    return *found;
  }
  static void add_name(ShownImage& image, const StoredName& name) {
    if (std::ranges::find(image.names, name.name, &StoredName::name) == image.names.end())
      image.names.push_back(name);
  }

  std::vector<ShownImage> images_;
};

/// A line of the list, by the names of its fields in --format.
using Fields = std::map<std::string, std::string, std::less<>>;

Fields fields_of(const ShownImage& image, const StoredName* name, const Descriptions& descriptions,
                 bool whole_digests) {
  const std::string known = name == nullptr ? "<none>" : printable(name->name);
  const auto mark = known.find(kDigestMark);
  const auto colon = known.find(':', known.rfind('/') + 1);
  const std::int64_t since = name != nullptr ? name->asked_at : image.used_at;
  const std::string size = image.bytes ? human_bytes(*image.bytes) : "-";
  const std::string id = image.digest.hex().substr(0, 12);
  return {
      {"Name", whole_digests || mark == std::string::npos
                   ? known
                   : known.substr(0, mark + kDigestMark.size() + 12)},
      {"Repository", known.substr(0, std::min(mark, colon))},
      {"Tag", mark != std::string::npos || colon == std::string::npos ? "<none>"
                                                                      : known.substr(colon + 1)},
      {"ID", id},
      {"Digest", whole_digests ? image.digest.str() : id},
      {"Platform", image.platform.empty() ? "-" : printable(image.platform)},
      {"Size", size + (image.complete ? "" : " (incomplete)")},
      {"Age", since == 0 ? "-" : human_age(std::max<std::int64_t>(0, std::time(nullptr) - since))},
      {"Store", image.stores},
      {"Description", name == nullptr ? "" : description_in(descriptions, name->name)}};
}

std::vector<Fields> lines_of(const std::vector<ShownImage>& images,
                             const Descriptions& descriptions, bool whole_digests) {
  std::vector<Fields> lines;
  for (const ShownImage& image : images) {
    for (const StoredName& name : image.names)
      lines.push_back(fields_of(image, &name, descriptions, whole_digests));
    if (image.names.empty())
      lines.push_back(fields_of(image, nullptr, descriptions, whole_digests));
  }
  return lines;
}

/// Fills `{{.Name}}` and the other fields into `format`. Backslash and t or n are a tab or line
/// end.
Result<std::string> filled(std::string_view format, const Fields& fields) {
  std::string text;
  while (!format.empty()) {
    if (format.starts_with("\\t") || format.starts_with("\\n")) {
      text += format[1] == 't' ? '\t' : '\n';
      format.remove_prefix(2);
    } else if (format.starts_with("{{")) {
      const auto end = format.find("}}");
      std::string_view name = trimmed(format.substr(2, end == format.npos ? end : end - 2));
      if (name.starts_with('.')) name.remove_prefix(1);
      const auto found = fields.find(name);
      if (end == format.npos || found == fields.end()) {
        return Error(ErrorKind::invalid, "--format: unknown field " + in_quotes(name))
            .hint("Name, Repository, Tag, ID, Digest, Platform, Size, Age, Store, Description");
      }
      text += found->second;
      format.remove_prefix(end + 2);
    } else {
      text += format.front();
      format.remove_prefix(1);
    }
  }
  return text;
}

Result<void> print_in_form(std::vector<Fields> lines, std::string_view format) {
  if (format.starts_with("table ")) {  // as docker and podman: with a heading
    format.remove_prefix(6);
    Fields heading;
    for (const auto& [name, value] : fields_of({}, nullptr, {}, false)) {
      heading[name] = name;
      for (char& c : heading[name]) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
    }
    lines.insert(lines.begin(), std::move(heading));
  }
  if (lines.empty()) SPC_TRY(filled(format, fields_of({}, nullptr, {}, false)));
  for (const Fields& line : lines) std::puts(SPC_TRY(filled(format, line)).c_str());
  return {};
}

void print_lines(const std::vector<Fields>& lines, bool has_descriptions) {
  std::vector<std::string> columns{"Name", "Digest", "Platform", "Size", "Age", "Store"};
  if (has_descriptions) columns.emplace_back("Description");
  std::vector<std::vector<std::string>> table(1);
  for (const std::string& column : columns) {
    table.front().push_back(column);
    for (char& c : table.front().back()) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  }
  for (const Fields& line : lines) {
    auto& row = table.emplace_back();
    for (const std::string& column : columns) row.push_back(line.find(column)->second);
  }
  print_table(table);
}

}  // namespace

Result<int> run_images(const Arguments& arguments) {
  std::vector<Row> rows;
  const auto places = Places::find();
  if (places && places->own_store) SPC_TRY(add_rows(rows, "own", places->store));
  SPC_TRY(add_rows(rows, "site", SPC_STORE_DIR));
  const auto listed = list_shared_images();
  if (!listed) report_error("warning: " + listed.error().message());
  const std::vector<SharedImage> shared = listed ? *listed : std::vector<SharedImage>();
  const Descriptions descriptions = descriptions_of_site();
  const std::string format = arguments.value("format");
  if (arguments.has("json") || format == "json") {
    Json list = Json::array();
    for (const Row& row : rows) list.push_back(as_json(row, descriptions));
    for (const SharedImage& image : shared) list.push_back(as_json(image));
    std::puts(list.str(2).c_str());
    return 0;
  }
  ShownImages images;
  for (const Row& row : rows) images.add(row);
  for (const SharedImage& image : shared) images.add(image);
  const auto lines = lines_of(std::move(images).all(), descriptions, arguments.has("digests"));
  if (arguments.has("format")) {
    SPC_TRY(print_in_form(lines, format));
  } else {
    print_lines(lines, !descriptions.empty());
  }
  return 0;
}

// --- catalogue ---

namespace {

/// Returns the image of the user's or the node's store; empty if neither has it.
std::optional<ListedImage> stored_image(const std::string& name) {
  const auto places = Places::find();
  const auto config = read_config(places ? places->config : SPC_CONFIG_FILE);
  if (!places || !config) return {};
  for (const std::string& path : {places->store, std::string(SPC_STORE_DIR)}) {
    const auto store = open_store(path);
    auto found = store ? find_image(store->get(), name, config->default_registry)
                       : Result<ListedImage>(store.error());
    if (found && found->bytes > 0) return *std::move(found);
  }
  return {};
}

}  // namespace

Result<int> run_catalogue(const Arguments& arguments) {
  auto catalogue = SPC_TRY(read_catalogue());
  if (!arguments.words.empty()) {
    const std::string& name = arguments.words[0];
    std::erase_if(catalogue, [&](const CatalogueEntry& entry) { return entry.name != name; });
    if (catalogue.empty()) {
      return Error(ErrorKind::not_found,
                   formatted("no image {} in the site's catalogue", in_quotes(name)))
          .hint("scontainer catalogue lists it");
    }
  }
  if (arguments.has("json")) {
    Json list = Json::array();
    for (const auto& entry : catalogue) {
      Json one{{"name", entry.name}, {"image", entry.image}, {"description", entry.description}};
      if (const auto image = stored_image(entry.image)) {
        one["bytes"] = image->bytes;
        one["platform"] = image->platform();
      }
      list.push_back(std::move(one));
    }
    std::puts(list.str(2).c_str());
  } else if (!arguments.words.empty()) {
    std::puts(printable(catalogue.front().image).c_str());  // without a heading, for $(...)
  } else {
    std::vector<std::vector<std::string>> table{
        {"NAME", "IMAGE", "SIZE", "PLATFORM", "DESCRIPTION"}};
    for (const auto& entry : catalogue) {
      const auto image = stored_image(entry.image);
      table.push_back({printable(entry.name), printable(entry.image),
                       image ? human_bytes(image->bytes) : "-",
                       image ? printable(image->platform()) : "-", printable(entry.description)});
    }
    print_table(table);
  }
  return 0;
}

// --- inspect ---

namespace {

/// The files of a mounted image.
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

/// Returns the configuration as delivered with the image, as a string if it is not JSON.
Json config_of(const ListedImage& image) {
  auto config = parse_json_object(image.record->config, "the image's configuration");
  return config ? *std::move(config) : Json(image.record->config);
}

/// Facts about the image's files.
struct Found {
  std::vector<Fact> facts;
  std::map<std::string, std::string> labels;
  std::string settings;
};

/// Adds the labels of the image's configuration, or those that Apptainer keeps in a file.
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

/// Reports an unavailable inspection (no user namespaces, no FUSE) as a warning, not as a failure.
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

/// Returns the facts in the record alone: its fact sheet, or what its variables say.
Found found_in_record(const ListedImage& image) {
  Found found;
  add_labels(found.labels, image.record->config, true);
  auto sheet = facts_in(image.record->settings);
  if (!sheet) {
    sheet = FactSheet{.facts = facts_of_variables(setting_values(image.record->settings, "env")),
                      .labels = {}};
  }
  note(found, *std::move(sheet));
  return found;
}

/// Returns the fact sheet of the image's record. Inspects the files if an earlier version wrote the
/// record.
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

/// Describes a file or directory of the user. It is not in the store, so it has no digest.
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

/// Describes an image that has not been pulled, from its configuration and the facts in that.
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

/// Returns a public image of the node's store.
std::optional<ListedImage> image_of_node(const Config& config, const std::string& text) {
  const auto store = open_store(SPC_STORE_DIR);
  auto image = store ? find_image(store->get(), text, config.default_registry)
                     : Result<ListedImage>(store.error());
  return image && image->record ? std::optional(*std::move(image)) : std::nullopt;
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
  const auto config = SPC_TRY(read_config(places.config, ::geteuid(), places.containers));
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
  const bool is_missing = !found && found.error().kind() == ErrorKind::not_found;
  auto of_node = is_missing && places.own_store ? image_of_node(config, arguments.words[0])
                                                : std::optional<ListedImage>();
  if (is_missing && !of_node && places.own_store && location && !is_digest) {
    found = image_of_source(places, config, arguments.words[0]);
    store = make_own_store(places);
    // A job that has resolved the tag has pulled its digest.
    if (found) of_node = image_of_node(config, found->digest.hex());
    if (of_node) of_node->names = found->names;
  }
  if (of_node) return print_image(arguments, *of_node, found_in_record(*of_node), {});
  if (!store) return store.error();
  const ListedImage image = SPC_TRY(std::move(found));
  if (!image.record)
    return Error(ErrorKind::refused, formatted("inspect {}: permission denied for its record",
                                               in_quotes(without_secrets(arguments.words[0]))));
  const auto keys =
      signed_by(store->get(), image.digest);  // first: found_in_store() can enter a user namespace
  return print_image(arguments, image, found_in_store(places, store->get(), image), keys);
}

// --- remove ---

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

/// Returns the names to remove: `text` if it is a name, all names of the image if it is a digest.
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

/// Removes named containers unused for the site's container_ttl. Returns their number.
Result<std::size_t> expire_containers(const Places& places, bool dry) {
  const auto config = SPC_TRY(read_config(places.config, ::geteuid(), places.containers));
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

/// Opens the store and creates directories that an earlier version did not.
Result<UniqueFd> open_complete(const Places& places) {
  auto store = SPC_TRY(open_store(places.store));
  return places.own_store ? make_own_store(places) : Result<UniqueFd>(std::move(store));
}

/// Evicts blobs of the shared store down to its limit, and those unused for --older days.
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
  const auto config = SPC_TRY(read_config(places.config, ::geteuid(), places.containers));
  const auto directory = SPC_TRY(open_complete(places));
  const auto store = SPC_TRY(ImageStore::open(directory.get()));
  for (const std::string& text : arguments.words) {
    const auto image = find_image(directory.get(), text, config.default_registry, true);
    if (!image) {
      if (image.error().kind() == ErrorKind::not_found && arguments.has("force")) continue;
      return image.error();
    }
    const auto names = names_meant(*image, text, config.default_registry);
    if (names.size() < image->names.size()) {  // the image keeps other names
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
  std::size_t steps = 0;
  if (places.own_store) steps = SPC_TRY(BuildCache::open(places)).remove_unused(dry);
  if (arguments.has("json")) {
    Json report{{"dry_run", dry},
                {"images", removed.images},
                {"layers", removed.layers},
                {"bytes", removed.bytes},
                {"layers_in_use", plan.staying}};
    if (!places.own_store) report["containers"] = expired;
    if (places.own_store) report["build_steps"] = steps;
    std::puts(report.str(2).c_str());
  } else {
    std::puts(said(removed, plan.staying, dry ? "would remove" : "removed").c_str());
    if (expired > 0)
      std::puts(formatted("{} {}{}", dry ? "would remove" : "removed", expired,
                          expired == 1 ? " container" : " containers")
                    .c_str());
    if (steps > 0)
      std::puts(formatted("{} {} of builds, unused for a month", dry ? "would remove" : "removed",
                          steps == 1 ? "1 step" : std::to_string(steps) + " steps")
                    .c_str());
    if (dry && removed.images + removed.layers + expired + steps > 0)
      std::puts("use scontainer gc --yes to remove them");
  }
  return 0;
}

}  // namespace spc::tool
