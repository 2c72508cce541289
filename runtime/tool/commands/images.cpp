#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>

#include "base/format.hpp"
#include "base/json/json.hpp"
#include "image/config/config.hpp"
#include "tool/command.hpp"
#include "tool/images/catalogue.hpp"
#include "tool/images/shared_images.hpp"
#include "tool/images/stored_images.hpp"
#include "tool/surroundings/places.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

/// What the site's catalogue says of an image.
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

/// Seconds since it was last seen to be this image; -1: unknown.
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

void print_rows(const std::vector<Row>& rows, const std::vector<SharedImage>& shared,
                const Descriptions& descriptions) {
  std::vector<std::vector<std::string>> table{
      {"NAME", "DIGEST", "PLATFORM", "SIZE", "AGE", "STORE"}};
  if (!descriptions.empty()) table.front().emplace_back("DESCRIPTION");
  for (const Row& row : rows) {
    const bool known = row.image.record.has_value();
    const auto line = [&](const StoredName* name) {
      const auto age = age_of(name, row.image);
      table.push_back(
          {printable(name == nullptr ? "<none>" : name->name), row.image.digest.hex().substr(0, 12),
           known ? printable(row.image.platform()) : "-",
           !known ? "-"
                  : human_bytes(row.image.bytes) + (row.image.complete ? "" : " (incomplete)"),
           age < 0 ? "-" : human_age(age), row.store});
      if (!descriptions.empty())
        table.back().push_back(name == nullptr ? "" : description_in(descriptions, name->name));
    };
    for (const auto& name : row.image.names) line(&name);
    for (const auto& name : row.image.asked_as) line(&name);
    if (!row.image.names.empty()) continue;
    for (const auto& origin : row.image.origins.all()) {
      const StoredName name{
          .name = origin.name, .manifest = row.image.digest, .asked_at = row.image.used_at};
      line(&name);
    }
    if (row.image.origins.all().empty() && row.image.asked_as.empty()) line(nullptr);
  }
  for (const SharedImage& image : shared) {
    const std::vector<std::string> nobody{"<none>"};
    for (const auto& place : image.places.empty() ? nobody : image.places) {
      table.push_back({printable(place), image.digest.hex().substr(0, 12),
                       image.platform.empty() ? "-" : printable(image.platform),
                       human_bytes(image.bytes) + (image.complete ? "" : " (incomplete)"),
                       human_age(age_of(image)), "shared"});
      if (!descriptions.empty()) table.back().emplace_back();
    }
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
  if (arguments.has("json")) {
    Json list = Json::array();
    for (const Row& row : rows) list.push_back(as_json(row, descriptions));
    for (const SharedImage& image : shared) list.push_back(as_json(image));
    std::puts(list.str(2).c_str());
  } else {
    print_rows(rows, shared, descriptions);
  }
  return 0;
}

}  // namespace spc::tool
