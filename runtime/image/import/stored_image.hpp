#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/pull/pull_layers.hpp"
#include "image/pull/repository.hpp"
#include "image/store/store.hpp"

namespace spc {

/// What is asked for, and for whom.
struct RequestedImage {
  std::string name;                      ///< in full, for messages and listings
  std::optional<std::string> stored_as;  ///< its name in the store, ref_file_of() the reference;
                                         ///< empty: no name is kept for it
  std::optional<std::string>
      tag;  ///< ref_file_of() the tag, if somebody said that it stands for `digest`
  std::optional<Digest> digest;  ///< when it is known which image is meant
  ImageOrigin origin;            ///< the place and the platform
  std::uint32_t uid = 0;
  std::optional<std::int64_t> since;  ///< when the job was submitted
  bool may_name = true;               ///< what a public name means can be written
  bool has_it = false;  ///< the user has a container of this digest: access is not in question
};

/// What the store knows of an image, and whether this user may have that as it is.
///
/// Whoever may pull an image without credentials may use it; that this is so was seen when it was
/// fetched and holds for `public_ttl` seconds, after which the registry has to say so again. Any
/// other image is private: its registry has to give its manifest to this import, with this user's
/// credentials. That is remembered as a grant to this user, which serves for `private_ttl` seconds
/// where the registry is not to be asked or cannot be reached. Who has no grant learns nothing from
/// here: neither an answer nor a message depends on what else is in the store.
class StoredImage {
 public:
  /// Everything is borrowed.
  StoredImage(const ImageStore& store, const RequestedImage& wanted, const Config& config)
      : store_(store), wanted_(wanted), config_(config) {}
  /// Whether the site's rules admit an image with this manifest, to which these indexes lead, the
  /// newest first.
  using Admit =
      std::function<Result<void>(const std::string& manifest, const std::vector<Digest>& indexes)>;

  /// The image if it is complete in the store, this user may have it and `pull` allows it; after
  /// one HEAD request or none, and for a private image one GET. A registry that does not answer is
  /// a warning as long as the image is known to be public or a grant holds. Empty: it has to be
  /// fetched. `admit` is asked before anything is noted: from what is noted here other tasks
  /// conclude that they may start the image without `import`.
  Result<std::optional<Digest>> usable(PullPolicy pull, Repository& repository, const Admit& admit,
                                       Log& log);

  /// An image whose layers are all there, each delivered by this origin or public.
  struct Brought {
    std::vector<HeldLayer> layers;
    std::string facts;  ///< records of image/facts/facts.hpp, or nothing
  };
  /// Writes what the store has to know of it. `asked_at`: when the registry was asked; nothing:
  /// just now.
  Result<void> keep(const ResolvedImage& image, Access access, const Brought& brought,
                    std::optional<std::int64_t> asked_at = {}) const;

 private:
  struct Known {
    NamedImage named;
    ImageRecord record;
    ImageOrigins origins;
    ImageOrigin origin;  // the wanted one
    bool is_public = false;
    bool granted = false;
  };
  Result<std::optional<Known>> find();
  Result<std::optional<Known>> look_at(NamedImage named);
  [[nodiscard]] bool is_unnamed() const;
  Result<void> name_it(const NamedImage& image) const;
  Result<void> note_tag(NamedImage image) const;
  Result<std::optional<Digest>> without_asking(PullPolicy pull, const Known& known) const;
  Result<std::optional<Digest>> with_answer(Known known, const Digest& answer,
                                            Repository& repository, const Admit& admit) const;
  Result<std::optional<Digest>> without_answer(const Known& known, const Error& why,
                                               bool asked_for_itself, const Admit& admit,
                                               Log& log) const;
  Result<void> renew(Known known, std::int64_t asked_at) const;
  Result<void> turn_private(Known known) const;
  Result<void> grant(NamedImage named) const;
  [[nodiscard]] NamedImage named(const Digest& manifest, const std::vector<Digest>& indexes) const;
  /// It is used now, and the site's rules admit it.
  void touch(const Digest& manifest) const;

  const ImageStore& store_;
  const RequestedImage& wanted_;
  const Config& config_;
  std::vector<UniqueFd> held_;  // the layers found: nobody takes them away until this import ends
};

}  // namespace spc
