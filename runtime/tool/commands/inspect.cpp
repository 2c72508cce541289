#include <algorithm>
#include <cstdio>

#include "base/format.hpp"
#include "base/process/user_namespace.hpp"
#include "base/text.hpp"
#include "image/config/config.hpp"
#include "image/registry/json.hpp"
#include "image/registry/manifest.hpp"
#include "tool/command.hpp"
#include "tool/facts.hpp"
#include "tool/images/local_image.hpp"
#include "tool/images/stored_images.hpp"
#include "tool/surroundings/places.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

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

/// What is in the image. What cannot be found out here (no user namespaces, no FUSE) is a warning, not a failure.
std::vector<Fact> facts_or_warning(const Places& places, int store, const ListedImage& image) {
  const auto facts = [&]() -> Result<std::vector<Fact>> {
    SPC_TRY(make_directories(places.workspace()));
    auto opened = SPC_TRY(open_stored_image(store, image));
    SPC_TRY(enter_user_namespace(RootMap::self));
    const auto mounted = SPC_TRY(mount_image(std::move(opened.files), places.workspace(), {.wanted = false}));
    return facts_of(mounted.root.get());
  }();
  if (facts) return *facts;
  report_error("warning: inspect the image: " + facts.error().message());
  return {};
}

Json description_of(const ListedImage& image, const std::vector<Fact>& facts, const std::vector<std::string>& keys) {
  Json found = Json::object();
  for (const Fact& fact : facts) found[fact.what] = fact.value.empty() ? Json() : Json(fact.value);
  Json names = Json::array();
  for (const auto& name : image.names) names.push_back(name.name);
  return {{"names", names},
          {"digest", image.digest.str()},
          {"platform", image.platform()},
          {"bytes", image.bytes},
          {"layers", layers_of(image)},
          {"signed_by", keys},
          {"facts", found},
          {"config", config_of(image)}};
}

void print_line(const char* key, const std::string& value) {
  if (!value.empty()) std::printf("%-12s %s\n", key, printable(value).c_str());
}

void print_description(const ListedImage& image, const std::vector<Fact>& facts, const std::vector<std::string>& keys) {
  for (const auto& name : image.names) print_line("name", name.name);
  print_line("digest", image.digest.str());
  print_line("platform", image.platform());
  for (const auto& key : keys) print_line("signed by", key);
  print_line("size",
             formatted("{} in {} layers", human_bytes(image.bytes), image.record->layers.size()));
  for (const Fact& fact : facts) print_line(fact.what.c_str(), fact.value);
  print_line("entrypoint", joined(setting_values(image.record->settings, "entrypoint"), " "));
  print_line("command", joined(setting_values(image.record->settings, "cmd"), " "));
  print_line("workdir", joined(setting_values(image.record->settings, "workdir"), " "));
  print_line("user", joined(setting_values(image.record->settings, "user"), " "));
  for (const auto& variable : setting_values(image.record->settings, "env")) print_line("env", variable);
  for (const Digest& layer : image.record->layers) print_line("layer", layer.str());
}

}  // namespace

Result<int> run_inspect(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config));
  const auto store = SPC_TRY(open_store(places.store));
  const auto image = SPC_TRY(find_image(store.get(), arguments.words[0], config.default_registry));
  if (!image.record)
    return Error(ErrorKind::refused, formatted("inspect {}: permission denied for its record",
                                               in_quotes(arguments.words[0])));
  const auto keys = signed_by(store.get(), image.digest);  // first: what follows enters a user namespace
  const auto facts = facts_or_warning(places, store.get(), image);
  if (arguments.has("json")) {
    std::puts(description_of(image, facts, keys).str(2).c_str());
  } else {
    print_description(image, facts, keys);
  }
  return 0;
}

}  // namespace spc::tool
