// Files of records/, names/ and images/origins/ in the store.

#include "image/store/store.hpp"
#include "lib/property.hpp"
#include "reference/reference.hpp"

using namespace spc;
using namespace spc::fuzz;

FUZZ_TARGET(record) {
  const auto origins = ImageOrigins::parse(text_of(data, size));
  const auto origins_again = ImageOrigins::parse(origins.serialize());
  must(origins_again.all().size() == origins.all().size(), "every origin is written");
  must(origins_again.public_until() == origins.public_until(), "and until when it is public");
  if (const auto named = NamedImage::parse(text_of(data, size))) {
    must(named->str() == NamedImage::parse(named->str())->str(),
         "what a name means is read as it is written");
  }
  const auto record = parse_image_record(text_of(data, size));
  if (!record) {
    must_be_readable(record.error());
    return 0;
  }
  must(record->layers.size() <= 500, "no image has more layers than overlayfs takes");
  const auto again = parse_image_record(serialize(*record));
  must(again.has_value(), "what was read can be written");
  must(again->layers == record->layers && again->settings == record->settings &&
           again->manifest == record->manifest && again->config == record->config &&
           again->layer_format == record->layer_format,
       "what is written is what was read");
  return 0;
}
