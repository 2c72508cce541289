#include "image/import/trust.hpp"

#include <algorithm>
#include <exception>

#include "base/format.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "image/signature/trust_policy.hpp"
#include "protocol/policy.hpp"

namespace spc {
namespace {

Result<void> check_local(const std::string& file, const std::string& path,
                         const std::string& reference, std::string_view transports) {
  const auto policy = SPC_TRY(TrustPolicy::read(file, 0));
  for (const std::string_view transport : split(transports, ',')) {
    const auto found = policy.for_local(std::string(transport), path, reference);
    const auto admits = [](const TrustRequirement& one) {
      return one.kind == TrustRequirement::Kind::accept_anything;
    };
    if (std::all_of(found.requirements->begin(), found.requirements->end(), admits)) continue;
    return Error(
               ErrorKind::refused,
               formatted(
                   "this site's signature policy does not admit {} without a signature ({} in {})",
                   path.empty() ? "this image" : in_quotes(path), found.scope, in_quotes(file)))
        .hint("use a signed image of a registry, or ask the administrator");
  }
  return {};
}

}  // namespace

int answer_trust(std::span<char*> words, int socket) noexcept {
  TrustAnswer answer;
  try {
    if (words.size() != 4) return 2;
    const auto checked = check_local(words[0], words[1], words[2], words[3]);
    if (!checked) answer.error = WireError(checked.error());
  } catch (const std::exception& error) {
    answer.error = WireError(Error(ErrorKind::internal, error.what()));
  }
  return send_struct(socket, answer) ? 0 : 1;
}

}  // namespace spc
