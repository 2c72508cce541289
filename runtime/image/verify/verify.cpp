#include "image/verify/verify.hpp"

#include "image/verify/attributes.hpp"
#include "image/verify/data_area.hpp"
#include "image/verify/erofs/tree.hpp"
#include "image/verify/inode_tree.hpp"
#include "image/verify/super_block.hpp"

namespace spc {
namespace {

Result<void> verify_erofs(verify::LayerBytes& layer) {
  verify::erofs::Window image(layer);
  const auto super = SPC_TRY(verify::erofs::SuperBlock::read(image));
  return verify::erofs::Tree(image, super).check();
}

}  // namespace

Result<void> verify_layer(verify::LayerBytes& layer) {
  if (SPC_TRY(verify::erofs::SuperBlock::is_there(layer))) return verify_erofs(layer);
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
