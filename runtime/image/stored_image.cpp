#include "stored_image.hpp"

#include <algorithm>
#include <ctime>

namespace spc {
namespace {

std::int64_t now() { return static_cast<std::int64_t>(std::time(nullptr)); }

/// What the task will be given of the configuration.
std::string settings_of(const ImageConfig& config, const std::string& reference) {
  std::string out;
  const auto add = [&](std::string_view key, std::string_view value) {
    out.append(key).append("=").append(value).push_back('\0');
  };
  for (const auto& entry : config.env) add("env", entry);
  if (!config.workdir.empty()) add("workdir", config.workdir);
  for (const auto& argument : config.entrypoint) add("entrypoint", argument);
  for (const auto& argument : config.cmd) add("cmd", argument);
  if (!config.user.empty()) add("user", config.user);
  add("reference", reference);
  return out;
}

}  // namespace

Result<std::optional<StoredImage::Known>> StoredImage::find() const {
  const std::optional<Known> none;
  const auto name = reference_.ref_file_name();
  if (!name) return none;
  const auto ref = SPC_TRY(store_.ref(*name));
  if (!ref) return none;
  auto record = SPC_TRY(store_.image(ref->manifest));
  if (!record || record->origin.registry != reference_.registry || record->origin.repository != reference_.repository ||
      record->origin.platform != platform_.str()) {
    return none;
  }
  const auto there = [&](const Digest& layer) { return store_.has_layer(layer); };
  if (!std::all_of(record->layers.begin(), record->layers.end(), there)) return none;
  return std::optional(Known{*ref, *std::move(record)});
}

Result<std::optional<Digest>> StoredImage::usable(PullPolicy pull, Repository& repository, Log& log) const {
  const std::optional<Digest> none;
  if (pull == PullPolicy::always) return none;
  auto known = SPC_TRY(find());
  if (!known && pull == PullPolicy::never) {
    return Error(ErrorKind::not_found, "it is not on this node").hint("fetch it first: leave --container-pull=never out");
  }
  if (!known) return none;
  const Digest manifest = known->ref.manifest;
  const bool is_public = now() < known->record.public_until;
  if (pull == PullPolicy::never && !is_public) {
    return Error(ErrorKind::refused, "it is on this node, but its registry has to confirm that it is public")
        .hint("leave --container-pull=never out");
  }
  const bool need_not_ask = pull == PullPolicy::missing || pull == PullPolicy::never || reference_.digest ||
                            now() < known->ref.asked_at + config_.tag_ttl;
  if (is_public && need_not_ask) return std::optional(manifest);

  // A tag may have moved; of what the user wants as it is, only access to it is in question.
  const auto asked = repository.ask_digest(need_not_ask ? manifest.str() : reference_.tag_or_digest());
  if (!asked) {
    if (asked.error().kind() != ErrorKind::unavailable) return none;  // fetching it gives the better message
    if (!is_public) return asked.error();
    log.write(LogLevel::warning, asked.error().message() + "; using the stored image of " + reference_.canonical());
    return std::optional(manifest);
  }
  const auto& indexes = known->record.origin.indexes;
  if (*asked != manifest && std::find(indexes.begin(), indexes.end(), *asked) == indexes.end()) return none;
  SPC_TRY(renew(*std::move(known)));
  return std::optional(manifest);
}

/// The registry has just confirmed both tag and access. Files are written only when that matters to somebody.
Result<void> StoredImage::renew(Known known) const {
  if (config_.tag_ttl > 0 && !reference_.digest) {
    SPC_TRY(store_.write_ref(*reference_.ref_file_name(), {known.ref.manifest, now()}));
  }
  if (known.record.public_until - now() > config_.public_ttl / 2) return {};
  known.record.public_until = now() + config_.public_ttl;
  return store_.write_image(known.ref.manifest, known.record);
}

Result<void> StoredImage::keep(const ResolvedImage& image) const {
  ImageRecord record;
  record.public_until = now() + config_.public_ttl;
  for (const Descriptor& layer : image.manifest.layers) record.layers.push_back(layer.digest);
  record.settings = settings_of(image.config, reference_.canonical());
  record.manifest = image.manifest_bytes;
  record.config = image.config_bytes;
  record.origin = {reference_.registry, reference_.repository, platform_.str(), image.indexes};
  SPC_TRY(store_.write_image(image.digest, record));
  if (const auto name = reference_.ref_file_name()) SPC_TRY(store_.write_ref(*name, {image.digest, now()}));
  return {};
}

}  // namespace spc
