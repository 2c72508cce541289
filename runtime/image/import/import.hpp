#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "config/config.hpp"
#include "image/pull/agent_link.hpp"
#include "image/pull/image_source.hpp"
#include "image/pull/pull_layers.hpp"
#include "image/store/store.hpp"
#include "protocol/layer.hpp"
#include "reference/reference.hpp"
#include "reference/request.hpp"
#include "registry/client.hpp"
#include "registry/signature.hpp"
#include "share/spool.hpp"

namespace spc {

// --- sandbox ---

/// Places that `import` may still write to.
struct ImportSandbox {
  int store = -1;                  ///< directory below which it writes; -1: none
  std::vector<std::string> paths;  ///< the same by path; missing ones are skipped
};

/// Confines this thread, later ones and their children. They cannot make or enter namespaces,
/// mount, trace or read other processes, use io_uring, userfaultfd, BPF or keys, start processes,
/// or execute programs. With Landlock (second version, Linux 5.19) they can write files only below
/// these places, not to /dev/fuse either. Kernels without it have the other restrictions. Call
/// before there are other threads.
///
/// Landlock cannot allow import to execute a single program: that needs the loader of shared
/// libraries, which loads any other. So RelayStarter starts before.
Result<void> enter_import_sandbox(const ImportSandbox& sandbox);

// --- stored image ---

/// A requested image and its user.
struct RequestedImage {
  std::string name;  ///< in full, for messages and listings
  /// its name in the store, ref_file_of() the reference; empty: no name is kept
  std::optional<std::string> stored_as;
  /// ref_file_of() the tag, if srun resolved it to `digest`
  std::optional<std::string> tag;
  std::optional<Digest> digest;  ///< set when the digest is known
  ImageOrigin origin;            ///< place and platform
  std::uint32_t uid = 0;
  std::optional<std::int64_t> since;  ///< submission time of the job
  bool may_name = true;               ///< a public name may be written for it
  bool has_it = false;    ///< the user has a container of this image, so access is granted
  /// Its layers may be in the shared store only: called with their number before the registry is
  /// asked. Empty: images are not used in place.
  std::function<void(std::size_t layers)> in_place;
};

/// The store's data on an image, and whether this user has access to it.
///
/// Anybody who may pull an image without credentials may use it. This was verified when the image
/// was fetched and is valid for `public_ttl` seconds. Afterwards the registry must confirm it. Any
/// other image is private: its registry must deliver its manifest to this import, with this user's
/// credentials. That is recorded as a grant to this user. The grant is valid for `private_ttl`
/// seconds if `pull` forbids a query or the registry cannot be reached. A user without a grant
/// learns nothing from here: neither an answer nor a message depends on other content of the store.
class StoredImage {
 public:
  /// All arguments are borrowed.
  StoredImage(const ImageStore& store, const RequestedImage& wanted, const Config& config)
      : store_(store), wanted_(wanted), config_(config) {}
  /// Checks whether the site's rules admit an image with this manifest. `indexes` led to it, the
  /// newest first.
  using Admit =
      std::function<Result<void>(const std::string& manifest, const std::vector<Digest>& indexes)>;

  /// Returns the image if it is complete in the store, this user has access and `pull` allows it.
  /// Sends at most one HEAD request, and for a private image one GET. A registry that does not
  /// answer is a warning while the image is known to be public or a grant is valid. Empty: the
  /// image must be fetched. `admit` is called before any record is written: from these, other tasks
  /// conclude that they may start the image without `import`.
  Result<std::optional<Digest>> usable(PullPolicy pull, Repository& repository, const Admit& admit,
                                       Log& log);

  /// An image whose layers are all in the store, each delivered by this origin or public.
  struct Brought {
    std::vector<HeldLayer> layers;
    std::string facts;      ///< records of convert/facts.hpp, or empty
    bool in_place = false;  ///< the layers are not here: their files are empty
  };
  /// Writes the image's records into the store. `asked_at`: time of the registry's answer; empty:
  /// now.
  Result<void> keep(const ResolvedImage& image, Access access, const Brought& brought,
                    std::optional<std::int64_t> asked_at = {}) const;

 private:
  struct Known {
    NamedImage named;
    ImageRecord record;
    ImageOrigins origins;
    ImageOrigin origin;  // the requested origin
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
  /// Marks the image as used now and admitted by the site's rules.
  void touch(const Digest& manifest) const;

  const ImageStore& store_;
  const RequestedImage& wanted_;
  const Config& config_;
  std::vector<UniqueFd> held_;  // layers found: cannot be evicted until this import ends
};

// --- space and slots ---

/// Makes room for `needed` bytes in the store. If necessary, evicts the least recently used images,
/// and layers left by a crash. `keep`: the layers that this import needs. `hint`: advice for the
/// user if there is no space.
Result<void> make_room(const ImageStore& store, const StoreConfig& config, std::uint64_t needed,
                       const std::set<Digest>& keep, AgentLink& agent, const char* hint);

/// Returns whether `bytes` in addition to `needed`, without any eviction, stay within max_size and
/// the file system. True if the store cannot be inspected.
bool has_room_beside(const ImageStore& store, const StoreConfig& config, std::uint64_t needed,
                     std::uint64_t bytes);

/// Returns whether `auto` stores contents as they are while the disk is fast: where few processors
/// would compress them, and the store is on a local disk with much room for these `bytes`. Nodes
/// that share converted layers need the same form, and a user's own store may have a quota.
bool stores_plain_first(const Config& config, const ImportRequest& request, const ImageStore& store,
                        LayerCompression compression, std::uint64_t bytes);

/// Waits until this user has fewer imports on this node than the site allows. The lock occupies the
/// slot.
Result<StoreLock> wait_for_slot(const ImageStore& store, const StoreConfig& config,
                                std::uint32_t uid, AgentLink& agent);

/// Returns the same error. If it is about space in the store, adds the store's path and free space.
Error about_store(Error error, const ImageStore& store);
template <typename Value>
Result<Value> about_store(Result<Value> result, const ImageStore& store) {
  return result ? std::move(result) : Result<Value>(about_store(std::move(result).error(), store));
}

// --- trust program ---

/// The main function of `import trust POLICY PATH REFERENCE TRANSPORT[,TRANSPORT]`, run as the
/// job's user. Sends a TrustAnswer.
int answer_trust(std::span<char*> words, int socket) noexcept;

// --- admission ---

/// Decision whether the site admits an image of a registry: `require_digest`, and
/// `signature_policy` with its current keys. Made at each start, before anything is fetched or
/// used. Signatures that have admitted an image are stored with it, so that the next start asks no
/// registry. They are verified again each time, so that no start depends on an earlier decision.
class Admission {
 public:
  /// Reads the policy. `image` is the user's reference, `name` the reference that must be signed:
  /// they differ for a named container. All arguments are borrowed. Error: the policy cannot be
  /// read, or cannot admit the image in any case.
  static Result<Admission> prepare(const Config& config, const ImageStore& store,
                                   const ImageReference& image, const ImageReference& name);

  /// Decides on `manifest`, exactly the bytes whose layers are converted or mounted; `indexes` led
  /// to it. May fetch signatures unless `pull` is never. keep() stores what was found.
  Result<void> decide(std::string_view manifest, std::vector<Digest> indexes, PullPolicy pull,
                      Repository& repository);
  /// Stores the signatures, after the image's record was written.
  Result<void> keep() const;

 private:
  Admission(const Config& config, const ImageStore& store, const ImageReference& image,
            const ImageReference& name)
      : config_(config), store_(store), image_(image), name_(NamedReference::of(name)) {}

  Result<void> decide_digest(const Digest& manifest) const;
  Result<void> ask(const SignedImage& image, Repository& repository);
  Result<bool> add_attached(const std::string& tag_or_digest, Repository& repository);
  Result<void> add_referrers(const Digest& subject, Repository& repository);
  /// Returns whether the signatures found so far admit the image. Remembers the reason if not.
  bool satisfied(const SignedImage& image);

  const Config& config_;
  const ImageStore& store_;
  const ImageReference& image_;
  NamedReference name_;
  std::optional<RequirementCheck> check_;
  Digest manifest_;
  std::vector<ImageSignature> found_;
  std::vector<ImageSignature> accepted_;  // to be stored: found now, not in the store
  std::optional<Error> refusal_;
  bool has_bundles_ = false;
};

// --- policy ---

/// Reads config.toml and sends a PolicyAnswer to this socket. Returns the program's exit status.
int answer_policy(int socket) noexcept;

// --- layer form ---

/// Returns file system and compression of new layers, by the site's configuration or the kernel's
/// support. A user's own store is read by the user's FUSE server, which supports both forms.
LayerLimits form_of_layers(const Config& config, bool user_store);

// --- shared store filling ---

/// Pulls an image of a registry into the site's shared store only, without credentials. Reads and
/// verifies the stored blobs as well. Returns the digest of its manifest.
Result<Digest> fill_shared_store(const ImportRequest& request, const Config& config,
                                 AgentLink& agent);

// --- tag resolution ---

/// `import resolve IMAGE PULL` (protocol/submit.hpp), run as the user on srun's machine. `words`
/// follow `resolve`. Returns the exit status. Prints no messages.
int answer_resolve(std::span<char*> words) noexcept;

// --- import ---

/// Adds an image to the store, unless it is there, and returns the manifest digest, which names its
/// record. `user` reads files of the user. `relay`, in a step on several nodes, starts the relay.
Result<Digest> import_image(const ImportRequest& request, const Config& config,
                            const ImageStore& store, AgentLink& agent, UserSourceLink& user,
                            const RelayStarter* relay = nullptr);

}  // namespace spc
