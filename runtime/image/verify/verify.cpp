#include "image/verify/verify.hpp"

#include "image/verify/attributes.hpp"
#include "image/verify/data_area.hpp"
#include "image/verify/inode_tree.hpp"
#include "image/verify/super_block.hpp"

namespace spc {

Result<void> verify_layer(verify::LayerBytes& layer) {
  const auto layout = SPC_TRY(verify::Layout::read(layer));
  auto attributes = SPC_TRY(verify::Attributes::read(layer, layout));
  verify::DataArea data(layer, layout);
  SPC_TRY(data.check_fragments());
  SPC_TRY(verify::InodeTree(layer, layout, data, attributes).check());
  return data.check_apart();
}

Result<void> verify_layer(std::span<const std::byte> layer) {
  verify::SpanBytes bytes(layer);
  return verify_layer(bytes);
}

}  // namespace spc
