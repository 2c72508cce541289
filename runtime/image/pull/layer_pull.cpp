#include "image/pull/layer_pull.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/format.hpp"

namespace spc {
namespace {

constexpr std::size_t kMaxWaiting = 512 << 10;
// When the converter gives up, what is left of the blob still tells whether the registry or the
// image is to blame.
constexpr std::uint64_t kWorthKnowing = 256 << 20;

constexpr char kBrokenImage[] = "the image is corrupt: rebuild and push it";

bool is_readable(int descriptor) {
  pollfd one{.fd = descriptor, .events = POLLIN};
  return ::poll(&one, 1, 0) == 1;
}

}  // namespace

LayerPull::LayerPull(ImageLayer layer, LayerLocks locks, std::shared_ptr<StoreObject> object,
                     LayerProcess converter)
    : layer_(std::move(layer)),
      name_(layer_.names.alone),
      locks_(std::move(locks)),
      object_(std::move(object)),
      converter_(std::move(converter)) {}

Result<std::unique_ptr<LayerPull>> LayerPull::start(ImageLayer layer, LayerLocks locks,
                                                    ImageSource& source, AgentLink& agent,
                                                    const LayerLimits& limits) {
  auto object = SPC_TRY(agent.new_object(order_of(limits)));
  LayerProcess converter(SPC_TRY_DURING("convert " + name_of(layer), object->writer()));
  const int input = converter.input();
  if (::fcntl(input, F_SETFL, O_WRONLY | O_NONBLOCK) != 0)
    return Error::from_errno(errno, "prepare the pipe to the converter");
  std::unique_ptr<LayerPull> pull(
      new LayerPull(std::move(layer), std::move(locks), std::move(object), std::move(converter)));
  pull->blob_ = source.open_layer(pull->layer_.blob, *pull);
  pull->blob_->start();
  return pull;
}

void LayerPull::watch(std::vector<pollfd>& descriptors) const {
  if (asked_for_name_) return descriptors.push_back(object_->watch());
  if (!input_closed_ && waiting_.size() > waiting_from_)
    descriptors.push_back({.fd = converter_.input(), .events = POLLOUT});
  if (!paused_ && !blob_->finished()) blob_->watch(descriptors);
  if (!converter_left_ && !wants_below_) {
    descriptors.push_back({.fd = converter_.result_descriptor(), .events = POLLIN});
    descriptors.push_back({.fd = converter_.below_descriptor(), .events = POLLIN});
  }
}

LayerPhase LayerPull::phase() const {
  if (asked_for_name_) return LayerPhase::publishing;
  return paused_ || blob_->finished() ? LayerPhase::converting : LayerPhase::fetching;
}

HttpHandler::Take LayerPull::take(std::span<const std::byte> bytes) {
  drain();
  if (waiting_.size() - waiting_from_ > kMaxWaiting) {
    paused_ = true;
    return HttpHandler::Take::later;
  }
  hash_.update(bytes);
  received_ += bytes.size();
  came_.add(blob_->comes_from(), bytes.size());
  const auto rest = waiting_.empty() ? write_some(bytes) : bytes;
  waiting_.insert(waiting_.end(), rest.begin(), rest.end());
  return HttpHandler::Take::taken;
}

/// Returns what the pipe had no room for.
std::span<const std::byte> LayerPull::write_some(std::span<const std::byte> bytes) {
  while (!bytes.empty() && !converter_left_) {
    const ssize_t written = ::write(converter_.input(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      return bytes;
    } else if (errno != EINTR) {
      converter_left_ = true;
    }
  }
  return {};
}

void LayerPull::drain() {
  if (waiting_.empty()) return;
  const auto rest = write_some(std::span(waiting_).subspan(waiting_from_));
  waiting_from_ = waiting_.size() - rest.size();
  if (rest.empty()) {
    waiting_.clear();
    waiting_from_ = 0;
  }
}

Result<bool> LayerPull::advance() {
  blob_->advance();  // also when it is finished: it may be a lease that others watch
  if (asked_for_name_) return object_->is_published();
  drain();
  if (paused_ && waiting_.empty()) {
    paused_ = false;
    blob_->resume();
  }
  if (!converter_left_ && !input_closed_) {
    converter_left_ = is_readable(converter_.result_descriptor());
  }
  if (converter_left_ && !blob_->finished() && layer_.blob.size - received_ > kWorthKnowing) {
    SPC_TRY(converted());
    return Error(ErrorKind::internal,
                 formatted("convert {}: the converter stopped reading", name_of(layer_)));
  }
  if (!blob_->finished() || !waiting_.empty()) return false;
  if (!input_closed_) {
    SPC_TRY(check_blob());
    converter_.close_input();
    input_closed_ = true;
  }
  if (!is_readable(converter_.result_descriptor())) {
    if (!wants_below_ && is_readable(converter_.below_descriptor())) {
      wants_below_ = true;
      locks_.alone.reset();  // it will not have that name
    }
    return false;
  }
  SPC_TRY(check_archive());
  SPC_TRY(object_->publish(name_));
  asked_for_name_ = true;
  return false;
}

Result<void> LayerPull::give_below(std::span<const int> layers) {
  wants_below_ = false;
  // An error is of no interest: if the converter has ended, its report or its status says why.
  (void)converter_.give_below(layers);
  return {};
}

Result<void> LayerPull::check_blob() {
  SPC_TRY(blob_->outcome());
  const Digest digest = hash_.finish();
  blob_->proven(digest == layer_.blob.digest);
  if (digest == layer_.blob.digest) return {};
  return std::move(Error(ErrorKind::corrupt,
                         formatted("{}: has digest {} instead", name_of(layer_), digest.str()))
                       .hint(blob_->whose_fault()));
}

/// What the converter made of the layer; bytes that it cannot accept are the image's fault, and the
/// user hears so.
Result<ConvertedLayer> LayerPull::converted() {
  auto layer = converter_.finish();
  if (layer) return layer;
  auto error = std::move(layer).error().during("convert " + name_of(layer_));
  const bool image_is_bad = error.kind() == ErrorKind::corrupt ||
                            error.kind() == ErrorKind::invalid ||
                            error.kind() == ErrorKind::refused;
  return image_is_bad ? std::move(error).hint(kBrokenImage) : std::move(error);
}

Result<void> LayerPull::check_archive() {
  const ConvertedLayer layer = SPC_TRY(converted());
  if (layer.fitted != 0) name_ = layer_.names.fitted;
  if (layer.diff_id == layer_.diff_id) return {};
  return Error(ErrorKind::corrupt,
               formatted(
                   "{}: its uncompressed digest is {} instead of {} as in the image configuration",
                   name_of(layer_), layer.diff_id.str(), layer_.diff_id.str()))
      .hint(kBrokenImage);
}

}  // namespace spc
