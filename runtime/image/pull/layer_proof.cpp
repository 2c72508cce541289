#include "image/pull/layer_proof.hpp"

#include "base/format.hpp"

namespace spc {

std::unique_ptr<LayerProof> LayerProof::start(ImageLayer layer, const Digest& name,
                                              LayerLocks locks, ImageSource& source) {
  std::unique_ptr<LayerProof> proof(new LayerProof(std::move(layer), name, std::move(locks)));
  proof->blob_ = source.open_layer(proof->layer_.blob, *proof);
  proof->blob_->start();
  return proof;
}

HttpHandler::Take LayerProof::take(std::span<const std::byte> bytes) {
  hash_.update(bytes);
  received_ += bytes.size();
  came_.add(blob_->comes_from(), bytes.size());
  return HttpHandler::Take::taken;
}

Result<bool> LayerProof::advance() {
  blob_->advance();
  if (!blob_->finished()) return false;
  SPC_TRY(blob_->outcome());
  const Digest digest = hash_.finish();
  blob_->proven(digest == layer_.blob.digest);
  if (digest == layer_.blob.digest) return true;
  return std::move(Error(ErrorKind::corrupt,
                         formatted("{}: has digest {} instead", name_of(layer_), digest.str()))
                       .hint(blob_->whose_fault()));
}

}  // namespace spc
