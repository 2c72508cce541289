#include "image/import/signature_policy.hpp"

#include "base/format.hpp"
#include "base/sha256.hpp"

namespace spc {

Result<void> policy_decides(std::string_view manifest, const ImageReference& reference, const Config& config) {
  if (!config.registry(reference.registry).require_digest || reference.digest) return {};
  return std::move(
             Error(ErrorKind::refused, formatted("this site allows images from {} by digest only",
                                                 in_quotes(reference.registry))))
      .hint(formatted("currently {}/{}@{}", reference.registry, reference.repository,
                      Sha256::of(manifest).str()));
}

}  // namespace spc
