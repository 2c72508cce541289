// A file of images/ in the store.

#include "image/record.hpp"
#include "property.hpp"

using namespace spc;
using namespace spc::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto record = parse_image_record(text_of(data, size));
  if (!record) {
    must_be_readable(record.error());
    return 0;
  }
  must(record->layers.size() <= 500, "no image has more layers than overlayfs takes");
  const auto again = parse_image_record(serialize(*record));
  must(again.has_value(), "what was read can be written");
  must(again->layers == record->layers && again->settings == record->settings && again->manifest == record->manifest &&
           again->config == record->config && again->public_until == record->public_until,
       "what is written is what was read");
  must(again->origin.indexes == record->origin.indexes && again->origin.registry == record->origin.registry &&
           again->origin.repository == record->origin.repository && again->origin.platform == record->origin.platform,
       "the origin too");
  return 0;
}
