// Answers of a registry: manifests, indexes and image configurations.
// outcome 60 refused: wrong JSON types

#include "registry/manifest.hpp"
#include "lib/property.hpp"

using namespace spc;
using namespace spc::fuzz;

namespace {

bool equal(const Descriptor& a, const Descriptor& b) {
  return a.media_type == b.media_type && a.digest == b.digest && a.size == b.size;
}

void check(const Manifest& manifest) {
  must(manifest.layers.size() <= 500, "no image has more layers than overlayfs takes");
  for (const Descriptor& layer : manifest.layers)
    must(layer.size <= std::uint64_t{1} << 50U, "no layer has an impossible size");
}

void check(const Index& index) {
  for (const char* wanted : {"linux/amd64", "linux/arm64/v8"}) {
    const auto platform = Platform::parse(wanted).value();
    const auto chosen = choose_platform(index, platform, "index");
    if (!chosen) {
      must_be_readable(chosen.error());
    } else if (chosen->has_platform) {
      must(chosen->platform.os == platform.os &&
               chosen->platform.architecture == platform.architecture,
           "what was chosen is for this platform");
    }
  }
}

bool same(const Manifest& a, const Manifest& b) {
  return equal(a.config, b.config) &&
         std::equal(a.layers.begin(), a.layers.end(), b.layers.begin(), b.layers.end(), equal);
}
bool same(const Index& a, const Index& b) {
  return std::equal(a.entries.begin(), a.entries.end(), b.entries.begin(), b.entries.end(),
                    [](const auto& x, const auto& y) {
                      return equal(x.descriptor, y.descriptor) && x.is_index == y.is_index &&
                             x.platform.str() == y.platform.str();
                    });
}

void check_configuration(std::string_view text) {
  const auto config = parse_image_config(text, "configuration");
  if (!config) return must_be_readable(config.error());
  for (const auto& entry : config->env) {
    must(entry.find('=') != std::string::npos && entry.front() != '=',
         "a variable has a name and a value");
    must(entry.find('\0') == std::string::npos, "a variable is one record");
  }
  for (const auto* list : {&config->entrypoint, &config->cmd}) {
    for (const auto& word : *list)
      must(word.find('\0') == std::string::npos, "an argument is one record");
  }
  must((config->workdir + config->user).find('\0') == std::string::npos,
       "settings are one record each");
}

}  // namespace

FUZZ_TARGET(manifest) {
  const std::string_view text = text_of(data, size);
  for (const char* type : {"application/vnd.oci.image.manifest.v1+json",
                           "application/vnd.oci.image.index.v1+json", ""}) {
    const auto document = parse_manifest(text, type, "manifest");
    if (!document) {
      must_be_readable(document.error());
      continue;
    }
    std::visit([](const auto& known) { check(known); }, *document);
    // Another serialization of the document has the same meaning.
    const auto again = parse_manifest(Json::parse(text).value().str(), type, "manifest");
    must(again.has_value() && again->index() == document->index(),
         "order and blanks do not matter");
    must(document->index() == 0 ? same(std::get<Manifest>(*document), std::get<Manifest>(*again))
                                : same(std::get<Index>(*document), std::get<Index>(*again)),
         "order and blanks do not matter");
  }
  check_configuration(text);
  return 0;
}
