#pragma once

#include <cstdint>
#include <string>

#include "base/digest.hpp"
#include "base/result.hpp"

namespace spc {

/// That a registry has let everybody have an image: said by `import` on the node that asked,
/// believed by those that take the image from it, so that N nodes are one question. munge proves
/// that the service user of a node of this cluster says so: a relay, and the step's user, can pass
/// it on and not make one. It says who may have an image, never what is in it.
///
/// Nobody says anything of an image that needs credentials: each node asks for its user.
struct PublicStatement {
  std::string place;          ///< registry and repository
  Digest top;                 ///< manifest or index
  std::int64_t asked_at = 0;  ///< seconds since 1970

  /// Under which a relay has it, beside the blobs.
  [[nodiscard]] Digest name() const;
  [[nodiscard]] std::string text() const;
};

/// Good for a minute. An error: munge is not here, or does not answer.
Result<std::string> sign(const PublicStatement& statement);

/// The same image's statement, by this process's user on any node. An error: somebody else's, an
/// old one, one about something else.
Result<PublicStatement> read_statement(const std::string& place, const Digest& top,
                                       const std::string& is_signed);

}  // namespace spc
