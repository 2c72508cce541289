#include "registry/trust_policy.hpp"

#include <algorithm>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/json.hpp"

namespace spc {

// --- named reference ---

namespace {

/// Matches `matchRepoDigestOrExact`. The digest is not compared here: the payload's own digest is
/// checked elsewhere.
bool repo_digest_or_exact(const NamedReference& image, const NamedReference& signed_for) {
  if (signed_for.is_name_only()) return false;
  return image.digest ? signed_for.name == image.name : signed_for == image;
}

bool has_prefix(const std::string& name, const std::string& prefix) {
  return name.starts_with(prefix) && (name.size() == prefix.size() || name[prefix.size()] == '/');
}

/// Returns the name under which the image was signed, if `image` is a copy.
Result<NamedReference> remapped(const SignedIdentity& identity, const NamedReference& image) {
  if (!has_prefix(image.name, identity.reference)) return image;
  const std::string name = identity.signed_prefix + image.name.substr(identity.reference.size());
  auto original = SPC_TRY(NamedReference::parse(name));
  if (original.name != name) return Error(ErrorKind::invalid, "signedPrefix is not written out");
  original.tag = image.tag;
  original.digest = image.digest;
  return original;
}

}  // namespace

Result<NamedReference> NamedReference::parse(std::string_view text) {
  NamedReference named;
  std::string_view rest = text;
  if (const std::size_t at = rest.find('@'); at != std::string_view::npos) {
    named.digest = SPC_TRY(Digest::parse(rest.substr(at + 1)));
    rest = rest.substr(0, at);
  }
  // Prefixes that an ImageReference accepts are not part of a Docker reference.
  if (rest.find('#') != std::string_view::npos || rest.find("://") != std::string_view::npos) {
    return Error(ErrorKind::invalid, in_quotes(text) + " is not a Docker reference");
  }
  const auto image = SPC_TRY(ImageReference::parse(rest));
  named.name = image.registry + "/" + image.repository;
  const std::size_t colon = rest.rfind(':');
  const bool has_tag =
      colon != std::string_view::npos && rest.find('/', colon) == std::string_view::npos;
  if (has_tag) named.tag = image.tag;
  return named;
}

NamedReference NamedReference::of(const ImageReference& image) {
  return {
      .name = image.registry + "/" + image.repository, .tag = image.tag, .digest = image.digest};
}

std::string NamedReference::str() const {
  return name + (tag.empty() ? "" : ":" + tag) + (digest ? "@" + digest->str() : "");
}

bool SignedIdentity::admits(const NamedReference& image, std::string_view signed_name) const {
  const auto signed_for = NamedReference::parse(signed_name);
  if (!signed_for) return false;
  switch (kind) {
    case Kind::match_exact: return !signed_for->is_name_only() && *signed_for == image;
    case Kind::match_repo_digest_or_exact: return repo_digest_or_exact(image, *signed_for);
    case Kind::match_repository: return signed_for->name == image.name;
    case Kind::exact_reference: {
      const auto wanted = NamedReference::parse(reference);
      return wanted && !wanted->is_name_only() && *signed_for == *wanted;
    }
    case Kind::exact_repository: {
      const auto wanted = NamedReference::parse(reference);
      return wanted && signed_for->name == wanted->name;
    }
    case Kind::remap_identity: {
      const auto original = remapped(*this, image);
      return original && repo_digest_or_exact(*original, *signed_for);
    }
  }
  return false;
}

// --- trust policy ---

namespace {

using Requirements = TrustPolicy::Requirements;

constexpr std::size_t kMostPolicy = 1 << 20;

Result<NamedReference> take_reference(JsonObject& object, const char* key, std::string& into) {
  SPC_TRY(object.take(key, into));
  auto named = NamedReference::parse(into);
  if (!named) return object.problem(key, "is not a Docker reference");
  return named;
}

Result<SignedIdentity> identity_of(const Json& value, const std::string& where) {
  using Kind = SignedIdentity::Kind;
  auto object = SPC_TRY(JsonObject::of(value, where));
  SignedIdentity identity;
  std::string type;
  SPC_TRY(object.take("type", type));
  if (type == "matchExact") {
    identity.kind = Kind::match_exact;
  } else if (type == "matchRepoDigestOrExact") {
    identity.kind = Kind::match_repo_digest_or_exact;
  } else if (type == "matchRepository") {
    identity.kind = Kind::match_repository;
  } else if (type == "exactReference") {
    identity.kind = Kind::exact_reference;
    const auto named = SPC_TRY(take_reference(object, "dockerReference", identity.reference));
    if (named.is_name_only())
      return object.problem("dockerReference", "has neither tag nor digest");
  } else if (type == "exactRepository") {
    identity.kind = Kind::exact_repository;
    SPC_TRY(take_reference(object, "dockerRepository", identity.reference));
  } else if (type == "remapIdentity") {
    identity.kind = Kind::remap_identity;
    SPC_TRY(object.take("prefix", identity.reference));
    SPC_TRY(object.take("signedPrefix", identity.signed_prefix));
    if (identity.reference.empty()) return object.problem("prefix", "is missing");
    if (identity.signed_prefix.empty()) return object.problem("signedPrefix", "is missing");
  } else {
    return object.problem("type", formatted("{} is unknown", in_quotes(type)));
  }
  SPC_TRY(object.nothing_left());
  return identity;
}

TrustRequirement not_supported(const char* what) {
  TrustRequirement requirement;
  requirement.kind = TrustRequirement::Kind::not_supported;
  requirement.what = what;
  return requirement;
}

/// Unsupported requirements: their members are not validated.
TrustRequirement signed_by(JsonObject& object) {
  for (const char* key : {"keyType", "keyPath", "keyPaths", "keyData", "signedIdentity"})
    object.take_any(key);
  return not_supported("an OpenPGP signature (signedBy)");
}

TrustRequirement signed_base_layer(JsonObject& object) {
  object.take_any("baseLayerIdentity");
  return not_supported("a signed base layer (signedBaseLayer)");
}

Result<TrustRequirement> sigstore_signed(JsonObject& object) {
  TrustRequirement requirement;
  requirement.kind = TrustRequirement::Kind::sigstore_signed;
  int ways = 0;
  for (const char* key : {"keyPath", "keyPaths", "keyData", "keyDatas", "fulcio", "pki"})
    ways += object.has(key) ? 1 : 0;
  if (ways != 1)
    return object.problem(
        "type",
        "sigstoreSigned needs exactly one of keyPath, keyPaths, keyData, keyDatas, fulcio and pki");
  std::string one;
  if (object.has("keyPath")) {
    SPC_TRY(object.take_path("keyPath", one));
    requirement.key_paths = {one};
  }
  if (object.has("keyData")) {
    SPC_TRY(object.take("keyData", one));
    requirement.key_data = {one};
  }
  SPC_TRY(object.take_paths("keyPaths", requirement.key_paths));
  SPC_TRY(object.take("keyDatas", requirement.key_data));
  if (const Json* identity = object.take_any("signedIdentity")) {
    requirement.identity = SPC_TRY(identity_of(*identity, object.name_of("signedIdentity")));
  }
  const bool keyless = object.take_any("fulcio") != nullptr;
  const bool certificates = object.take_any("pki") != nullptr;
  bool logged = false;
  for (const char* key :
       {"rekorPublicKeyPath", "rekorPublicKeyPaths", "rekorPublicKeyData", "rekorPublicKeyDatas"}) {
    logged |= object.take_any(key) != nullptr;
  }
  if (keyless) return not_supported("a keyless signature (fulcio)");
  if (certificates) return not_supported("a signature by a certificate (pki)");
  if (logged) return not_supported("an entry in a Rekor log (rekorPublicKey)");
  if (requirement.key_paths.empty() && requirement.key_data.empty())
    return object.problem("type", "sigstoreSigned has no key");
  return requirement;
}

Result<TrustRequirement> requirement_of(JsonObject& object) {
  TrustRequirement requirement;
  std::string type;
  SPC_TRY(object.take("type", type));
  if (type == "signedBy") return signed_by(object);
  if (type == "signedBaseLayer") return signed_base_layer(object);
  if (type == "sigstoreSigned") return sigstore_signed(object);
  if (type == "insecureAcceptAnything") {
    requirement.kind = TrustRequirement::Kind::accept_anything;
  } else if (type != "reject") {
    return object.problem("type", formatted("{} is unknown", in_quotes(type)));
  }
  return requirement;
}

Result<Requirements> take_requirements(JsonObject& object, const char* key) {
  Requirements requirements;
  const auto add = [&](JsonObject& element) -> Result<void> {
    requirements.push_back(SPC_TRY(requirement_of(element)));
    return {};
  };
  SPC_TRY(object.take_each(key, add));
  if (requirements.empty()) return object.problem(key, "is an empty list");
  return requirements;
}

/// Returns the matching scopes, longest first: `reg:5000/a/b:1`, `reg:5000/a/b`, `reg:5000/a`,
/// `reg:5000`, and for `x.example.org` then `*.example.org`, `*.org`.
std::vector<std::string> docker_scopes(const NamedReference& image) {
  std::vector<std::string> scopes{image.str()};
  std::string name = image.name;
  for (;;) {
    scopes.push_back(name);
    const std::size_t slash = name.rfind('/');
    if (slash == std::string::npos) break;
    name.resize(slash);
  }
  name.resize(std::min(name.size(), name.find(':')));
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.')) {
    name.erase(0, dot + 1);
    scopes.push_back("*." + name);
  }
  return scopes;
}

}  // namespace

Result<TrustPolicy> TrustPolicy::parse(std::string_view text) {
  const Json document = SPC_TRY(JsonObject::parse(text));
  auto root = SPC_TRY(JsonObject::of(document));
  TrustPolicy policy;
  policy.default_ = SPC_TRY(take_requirements(root, "default"));
  if (const Json* transports = root.take_any("transports")) {
    SPC_TRY(JsonObject::of(*transports, "transports"));
    for (const Json::Member& transport : transports->members()) {
      const std::string where = "transports." + printable(transport.key.substr(0, 100));
      auto scopes = SPC_TRY(JsonObject::of(transport.value, where));
      for (const Json::Member& scope : transport.value.members()) {
        policy.transports_[transport.key][scope.key] =
            SPC_TRY(take_requirements(scopes, scope.key.c_str()));
      }
    }
  }
  SPC_TRY(root.nothing_left());
  return policy;
}

Result<TrustPolicy> TrustPolicy::read(const std::string& path, uid_t owner) {
  const auto read_and_parse = [&]() -> Result<TrustPolicy> {
    const auto file = SPC_TRY(open_trusted_file(path, "signature policy", owner));
    const std::string step = "signature policy " + in_quotes(path);
    const std::string text = SPC_TRY_DURING(step, read_file(file.get(), kMostPolicy));
    return SPC_TRY_DURING(step, parse(text));
  };
  auto policy = read_and_parse();
  if (policy) return policy;
  return std::move(policy).error().hint("ask the administrator to correct it");
}

TrustPolicy::Found TrustPolicy::find(const std::string& transport,
                                     const std::vector<std::string>& scopes) const {
  const auto known = transports_.find(transport);
  if (known == transports_.end()) return {"default", &default_};
  for (const std::string& scope : scopes) {
    const auto found = known->second.find(scope);
    if (found != known->second.end())
      return {formatted("{} {}", transport, in_quotes(scope)), &found->second};
  }
  const auto found = known->second.find("");
  if (found != known->second.end()) return {transport, &found->second};
  return {"default", &default_};
}

TrustPolicy::Found TrustPolicy::for_registry(const ImageReference& image) const {
  return find("docker", docker_scopes(NamedReference::of(image)));
}

TrustPolicy::Found TrustPolicy::for_local(const std::string& transport, const std::string& path,
                                          const std::string& reference) const {
  std::vector<std::string> scopes;
  if (!reference.empty()) scopes.push_back(path + ":" + reference);
  if (path.starts_with('/')) {
    for (std::string part = path; !part.empty(); part.resize(part.rfind('/')))
      scopes.push_back(part);
  }
  return find(transport, scopes);
}

}  // namespace spc
