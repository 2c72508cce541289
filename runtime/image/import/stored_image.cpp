#include "image/import/import.hpp"

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "base/format.hpp"
#include "base/hash.hpp"
#include "convert/facts.hpp"
#include "reference/reference.hpp"

namespace spc {
namespace {

std::int64_t now() { return static_cast<std::int64_t>(std::time(nullptr)); }

/// Returns the sandbox's records in the same order, truncated and printable.
std::string checked_facts(const std::string& records) {
  const auto sheet = facts_in(records);
  return sheet ? fact_records(*sheet) : std::string();
}

/// Returns the image's name by digest in the store.
std::optional<std::string> name_by_digest(const ImageOrigin& origin, const Digest& manifest) {
  const auto reference = ImageReference::parse(origin.place() + "@" + manifest.str());
  return reference ? reference->ref_file_name() : std::nullopt;
}

/// Ignores EROFS: the registry's answer is valid even if it cannot be recorded for the next start.
Result<void> unless_read_only(Result<void> written) {
  return written || written.error().sys_errno() != EROFS ? std::move(written) : Result<void>();
}

/// Returns whether the record has the layers of this manifest: the manifest is checked by the
/// rules, but the record's layers are mounted.
bool is_of(const Digest& manifest, const ImageRecord& record) {
  if (Sha256::of(record.manifest) != manifest) return false;
  const auto parsed = parse_manifest(record.manifest, "", "manifest");
  const auto* image = parsed ? std::get_if<Manifest>(&*parsed) : nullptr;
  if (image == nullptr) return false;
  std::vector<Digest> blobs;
  for (const Descriptor& layer : image->layers) blobs.push_back(layer.digest);
  return runs_of(record.layers, layer_names(distinct_layers(blobs))).has_value();
}

}  // namespace

/// Finds public images by the public name, private ones by this user's grants. The agent writes
/// both, so the service user alone cannot change which image a name means.
Result<std::optional<StoredImage::Known>> StoredImage::find() {
  const std::optional<Known> none;
  const auto exactly = [&] { return look_at({.name = {}, .manifest = *wanted_.digest}); };
  if (wanted_.has_it) {
    auto known = SPC_TRY(exactly());
    if (known) known->granted = true;
    return known;
  }
  if (!wanted_.stored_as) return none;
  std::optional<NamedImage> named, grant;
  for (const auto& name : {wanted_.stored_as, wanted_.tag}) {
    const auto is_meant = [&](const std::optional<NamedImage>& one) {
      return one && (!wanted_.digest || one->is(*wanted_.digest));
    };
    auto found = name ? store_.public_name(*name) : std::nullopt;
    if (!named && is_meant(found)) named = std::move(found);
    found = name ? store_.grant(wanted_.uid, *name) : std::nullopt;
    if (!grant && is_meant(found)) grant = std::move(found);
  }
  if (named) {
    auto known = SPC_TRY(look_at(*named));
    if (known && known->is_public) return known;
  }
  if (!grant) {
    if (named) return look_at(*named);
    return wanted_.digest ? exactly() : Result(none);  // it was pulled by a tag
  }
  auto known = SPC_TRY(look_at(*grant));
  if (known)
    known->granted = grant->asked_at <= now() && now() < grant->asked_at + config_.private_ttl;
  return known;
}

Result<std::optional<StoredImage::Known>> StoredImage::look_at(NamedImage named) {
  const std::optional<Known> none;
  const Digest manifest = named.manifest;
  const bool is_meant = !wanted_.digest || manifest == *wanted_.digest ||
                        std::ranges::count(named.indexes, *wanted_.digest) > 0;
  auto record = SPC_TRY(store_.image(manifest));
  if (!is_meant || !record || !is_of(manifest, *record)) return none;
  auto origins = SPC_TRY(store_.origins(manifest));
  const ImageOrigin* origin = origins.find(wanted_.origin.place());
  if (origin == nullptr || (!wanted_.has_it && origin->platform != wanted_.origin.platform))
    return none;
  if (record->in_place && !wanted_.in_place) return none;
  for (const Digest& layer : record->in_place ? std::vector<Digest>() : record->layers) {
    held_.push_back(store_.hold_layer(layer));
    if (!held_.back() && !store_.has_layer(layer)) return none;
  }
  Known known{
      .named = std::move(named), .record = *std::move(record), .origins = {}, .origin = *origin};
  known.origins = std::move(origins);
  // A date too far in the future was written before the clock was set back.
  const std::int64_t left = known.origin.public_until - now();
  known.is_public = left > 0 && left <= config_.public_ttl;
  return std::optional(std::move(known));
}

Result<std::optional<Digest>> StoredImage::usable(PullPolicy pull, Repository& repository,
                                                  const Admit& admit, Log& log) {
  const std::optional<Digest> none;
  if (pull == PullPolicy::always) return none;
  auto known = SPC_TRY(find());
  if (!known && pull == PullPolicy::never) {
    return Error(ErrorKind::not_found, "not on this node")
        .hint("pull it first, or drop --container-pull=never");
  }
  if (!known) return none;
  if (known->record.in_place) wanted_.in_place(known->record.layers.size());
  if (const auto image = SPC_TRY(without_asking(pull, *known))) {
    SPC_TRY(admit(known->record.manifest, known->named.indexes));
    if (known->is_public && is_unnamed())
      SPC_TRY(unless_read_only(name_it(named(*image, known->named.indexes))));
    touch(*image);
    return image;
  }

  // A tag may have moved. If the user accepts the stored image, only access to it has to be
  // checked.
  const bool as_it_is = pull == PullPolicy::missing || wanted_.digest;
  const Digest manifest = known->named.manifest;
  // true if the image was public: then one request answers for all nodes of the step
  const bool is_for_all = wanted_.digest && known->origin.public_until > 0;
  const auto answer =
      is_for_all ? repository.ask_for_all(*wanted_.digest, manifest)
                 : repository.ask_digest(as_it_is ? manifest.str() : repository.tag_or_digest());
  const auto image = answer ? SPC_TRY(with_answer(*std::move(known), *answer, repository, admit))
                            : SPC_TRY(without_answer(*known, answer.error(), as_it_is, admit, log));
  if (image) touch(*image);
  return image;
}

void StoredImage::touch(const Digest& manifest) const {
  store_.touch_image(manifest);
  if (wanted_.stored_as && wanted_.may_name) store_.touch_name(*wanted_.stored_as);
}

/// Returns whether the image was known only by a tag and needs a name by digest: the next start
/// then finds it without `import`, even if the tag moves.
bool StoredImage::is_unnamed() const {
  return wanted_.digest && wanted_.stored_as && !store_.public_name(*wanted_.stored_as);
}

Result<void> StoredImage::name_it(const NamedImage& image) const {
  return wanted_.may_name ? store_.write_name(image) : Result<void>();
}

Result<std::optional<Digest>> StoredImage::without_asking(PullPolicy pull,
                                                          const Known& known) const {
  const bool need_not_ask = pull == PullPolicy::missing || pull == PullPolicy::never;
  const bool may = known.is_public || known.granted;
  if (may && need_not_ask) return std::optional(known.named.manifest);
  const TagAge age{.asked_at = known.named.asked_at, .now = now()};
  const bool is_fresh_in_job = age.is_fresh(0, config_.job_tag_ttl, wanted_.since);
  const bool is_fresh = wanted_.digest || is_fresh_in_job || age.is_fresh(config_.tag_ttl, 0, {});
  if ((known.is_public && is_fresh) || (known.granted && is_fresh_in_job))
    return std::optional(known.named.manifest);
  if (pull != PullPolicy::never) return std::optional<Digest>();
  if (known.origin.public_until > 0) {
    return Error(ErrorKind::refused, "the registry must confirm that it is public")
        .hint("drop --container-pull=never");
  }
  return Error(ErrorKind::not_found, "not on this node")
      .hint("pull it first, or drop --container-pull=never");
}

Result<std::optional<Digest>> StoredImage::with_answer(Known known, const Digest& answer,
                                                       Repository& repository,
                                                       const Admit& admit) const {
  const std::optional<Digest> none;
  const Digest manifest = known.named.manifest;
  const std::vector<Digest> indexes = known.named.indexes;
  if (answer != manifest && std::find(indexes.begin(), indexes.end(), answer) == indexes.end())
    return none;
  if (repository.access() == Access::anonymous) {
    SPC_TRY(admit(known.record.manifest, indexes));
    SPC_TRY(
        unless_read_only(renew(std::move(known), repository.asked_by_others_at().value_or(now()))));
    return std::optional(manifest);
  }
  // none: fetching the manifest gives the better message
  if (!repository.confirm(manifest)) return none;
  const Access access = repository.access();
  SPC_TRY(admit(known.record.manifest, indexes));
  if (access == Access::refused_to_anonymous && known.origin.public_until > 0) {
    SPC_TRY(turn_private(std::move(known)));
  }
  SPC_TRY(unless_read_only(grant(named(manifest, indexes))));
  return std::optional(manifest);
}

Result<std::optional<Digest>> StoredImage::without_answer(const Known& known, const Error& why,
                                                          bool asked_for_itself, const Admit& admit,
                                                          Log& log) const {
  const std::optional<Digest> none;
  if (why.kind() == ErrorKind::unavailable) {
    if (!known.is_public && !known.granted) return why;
    SPC_TRY(admit(known.record.manifest, known.named.indexes));
    log.write(LogLevel::warning,
              formatted("{}; using the stored image of {}", why.message(), wanted_.name));
    return std::optional(known.named.manifest);
  }
  // The image is gone or no longer public. The fetch that follows gives the message.
  const bool gone =
      why.kind() == ErrorKind::refused || (why.kind() == ErrorKind::not_found && asked_for_itself);
  if (gone && known.origin.public_until > 0) SPC_TRY(turn_private(known));
  return none;
}

NamedImage StoredImage::named(const Digest& manifest, const std::vector<Digest>& indexes) const {
  NamedImage image{.name = wanted_.stored_as.value_or(""), .manifest = manifest, .asked_at = now()};
  image.add_indexes(indexes);
  return image;
}

/// Records that the registry has confirmed tag and public access. Writes files only if later starts
/// need them.
Result<void> StoredImage::renew(Known known, std::int64_t asked_at) const {
  const Digest manifest = known.named.manifest;
  const bool counts = config_.tag_ttl > 0 || (config_.job_tag_ttl > 0 && wanted_.since);
  const bool is_tag_of_time = counts && !wanted_.digest;
  const bool was_private = known.origin.public_until == 0;
  if (is_tag_of_time || was_private || is_unnamed())
    SPC_TRY(name_it(named(manifest, known.named.indexes)));
  if (known.origin.public_until - asked_at > config_.public_ttl / 2) return {};
  known.origin.public_until = asked_at + config_.public_ttl;
  known.origins.add(known.origin);
  SPC_TRY(store_.write_origins(manifest, known.origins));
  return store_.set_public_until(manifest, known.origins.public_until());
}

/// Removes the image's public names first: everybody can read them.
Result<void> StoredImage::turn_private(Known known) const {
  for (const auto& name : {wanted_.stored_as, wanted_.tag}) {
    const auto found = name ? store_.public_name(*name) : std::nullopt;
    if (found && found->manifest == known.named.manifest) SPC_TRY(store_.remove_name(*name));
  }
  known.origin.public_until = 0;
  known.origins.add(known.origin);
  SPC_TRY(store_.set_public_until(known.named.manifest, known.origins.public_until()));
  return store_.write_origins(known.named.manifest, known.origins);
}

Result<void> StoredImage::grant(NamedImage image) const {
  if (!wanted_.stored_as) return {};
  SPC_TRY(store_.write_grant(wanted_.uid, image));
  for (const auto& name : {name_by_digest(wanted_.origin, image.manifest), wanted_.tag}) {
    if (!name || name == wanted_.stored_as) continue;
    image.name = *name;
    SPC_TRY(store_.write_grant(wanted_.uid, image));
  }
  return {};
}

/// Records srun's resolution of a tag for this user only, for starts that ask no registry. Grants
/// no access.
Result<void> StoredImage::note_tag(NamedImage image) const {
  if (!wanted_.tag) return {};
  image.name = *wanted_.tag;
  image.asked_at = 0;
  return store_.write_grant(wanted_.uid, image);
}

Result<void> StoredImage::keep(const ResolvedImage& image, Access access, const Brought& brought,
                               std::optional<std::int64_t> asked_at) const {
  ImageOrigins origins = SPC_TRY(store_.origins(image.digest));
  ImageOrigin origin = wanted_.origin;
  // the name by which scontainer finds the image
  origin.name = wanted_.tag ? origin.place() + "@" + wanted_.digest->str() : wanted_.name;
  const ImageOrigin* known = origins.find(origin.place());
  if (access == Access::anonymous)
    origin.public_until = asked_at.value_or(now()) + config_.public_ttl;
  if (access == Access::not_known && known != nullptr) origin.public_until = known->public_until;
  origins.add(origin);

  ImageRecord record;
  record.layer_format = kLayerFormat;
  record.in_place = brought.in_place;
  for (const HeldLayer& layer : brought.layers) record.layers.push_back(layer.name);
  record.settings = settings_of(image.config) + checked_facts(brought.facts);
  record.manifest = image.manifest_bytes;
  record.config = image.config_bytes;
  // Write origins first: a record without origins is unusable, the reverse would make it public.
  SPC_TRY(store_.write_origins(image.digest, origins));
  SPC_TRY(store_.write_image(image.digest, record));
  SPC_TRY(store_.set_public_until(image.digest, origins.public_until()));
  // The description is for display only: a failure must not fail the pull.
  if (const bool is_public = origins.public_until() > now();
      !is_public || !store_.write_public(image.digest, record, origin.platform))
    SPC_TRY(store_.remove_public(image.digest));
  if (!wanted_.stored_as) return {};
  NamedImage now_named = named(image.digest, image.indexes);
  const auto before = store_.public_name(*wanted_.stored_as);
  if (before && before->manifest == image.digest) now_named.add_indexes(before->indexes);
  if (access == Access::anonymous) {
    SPC_TRY(note_tag(now_named));
    return name_it(now_named);
  }
  if (access == Access::refused_to_anonymous) SPC_TRY(store_.remove_name(*wanted_.stored_as));
  return grant(std::move(now_named));
}

}  // namespace spc
