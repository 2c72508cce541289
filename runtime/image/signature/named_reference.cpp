#include "image/signature/named_reference.hpp"

namespace spc {
namespace {

/// A signature says nothing of digests here: which bytes it is for, it says elsewhere.
bool repo_digest_or_exact(const NamedReference& image, const NamedReference& signed_for) {
  if (signed_for.is_name_only()) return false;
  return image.digest ? signed_for.name == image.name : signed_for == image;
}

bool has_prefix(const std::string& name, const std::string& prefix) {
  return name.starts_with(prefix) && (name.size() == prefix.size() || name[prefix.size()] == '/');
}

/// The name under which the image was signed, if it is a copy.
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
  // What an ImageReference may have before the name is no part of a Docker reference.
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

}  // namespace spc
