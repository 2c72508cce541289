#include "image/layer/worker/image_facts.hpp"

#include <chrono>

namespace spc {
namespace {

/// When everything else of the image is there: for a processor that others use, not for an image
/// that has too many files.
constexpr std::chrono::milliseconds kFactsPatience{1000};

}  // namespace

void ImageFacts::prepare() {
  if (prepared_) return;
  prepared_ = true;
  if (auto ends = start_()) process_.emplace(*std::move(ends));
}

void ImageFacts::read(std::span<const int> layers) {
  prepare();
  read_ = true;
  if (process_ && !process_->give(layers)) process_.reset();
}

std::string ImageFacts::records() {
  auto found =
      process_ && read_ ? process_->finish(kFactsPatience) : Result<std::string>(std::string());
  process_.reset();
  return found ? *std::move(found) : std::string();
}

}  // namespace spc
