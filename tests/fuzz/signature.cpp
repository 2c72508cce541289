// Inputs of the signature policy: policy.json, which administrators write, and an image's
// attachments, which are untrusted.

#include "registry/signature.hpp"
#include "base/json.hpp"
#include "lib/property.hpp"
#include "registry/trust_policy.hpp"

using namespace spc;
using namespace spc::fuzz;

namespace {

void check_policy(std::string_view text) {
  const auto policy = TrustPolicy::parse(text);
  if (!policy) return must_be_readable(policy.error());
  for (const char* name : {"registry:5000/team/app:1", "nvcr.io/nvidia/pytorch", "ubuntu"}) {
    const auto image = ImageReference::parse(name).value();
    const auto found = policy->for_registry(image);
    must(found.requirements != nullptr && !found.requirements->empty(),
         "no list of requirements is empty");
    for (const TrustRequirement& one : *found.requirements) {
      const bool has_key = !one.key_paths.empty() || !one.key_data.empty();
      must(has_key == (one.kind == TrustRequirement::Kind::sigstore_signed),
           "a signature is required of a key");
      static_cast<void>(one.identity.admits(NamedReference::of(image), "registry:5000/team/app"));
    }
  }
  must(!policy->for_local("squashfs", "/a/b").requirements->empty(),
       "no list of requirements is empty");
  must(TrustPolicy::parse(Json::parse(text).value().str()).has_value(),
       "order and blanks do not matter");
}

void check_reference(std::string_view text) {
  const auto named = NamedReference::parse(text);
  if (!named) return must_be_readable(named.error());
  const auto again = NamedReference::parse(named->str());
  must(again.has_value() && *again == *named, "a name stays what it is");
}

}  // namespace

FUZZ_TARGET(signature) {
  const std::string_view text = text_of(data, size);
  check_policy(text);
  check_reference(text);
  const auto payload = SignedPayload::parse(text);
  if (payload) check_reference(payload->name);
  if (!payload) must_be_readable(payload.error());
  const auto attached = parse_attachment(text, "signatures");
  if (!attached) must_be_readable(attached.error());
  if (attached) {
    must(attached->size() <= kMostSignatures, "no image has too many signatures");
    for (const AttachedSignature& one : *attached)
      must(one.payload_size <= kMostPayload, "no payload is too large");
  }
  const auto listed = parse_referrers(text, "referrers");
  if (!listed) must_be_readable(listed.error());
  const auto kept = parse_kept_signatures(text);
  must(parse_kept_signatures(serialize(kept)).size() == kept.size(), "what is kept is read again");
  return 0;
}
