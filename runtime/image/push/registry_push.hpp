#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.hpp"
#include "image/registry/fetch.hpp"
#include "image/registry/manifest.hpp"
#include "image/registry/registry_session.hpp"
#include "image/user_source/file_part.hpp"

namespace spc {

/// Writes into one repository of a registry, as the OCI distribution specification has it. Runs its
/// requests to their end.
class RegistryPush {
 public:
  /// `session` is of that repository alone, without mirrors, and is borrowed.
  explicit RegistryPush(RegistrySession& session) : session_(session) {}

  Result<bool> has_blob(const Descriptor& blob);
  /// Asks for a blob of another repository of this registry; false: the registry does not give it.
  Result<bool> mount(const Descriptor& blob, const std::string& repository);

  /// Sends a blob in pieces. After a connection that broke, or a failure of the registry, it goes
  /// on where the registry says that it is, at most four times without a byte of progress. `meter`:
  /// bytes of this blob that have been sent.
  Result<void> upload(const Descriptor& blob, const user_source::FilePart& bytes,
                      const std::function<void(std::uint64_t)>& meter);

  Result<void> put_manifest(const std::string& text, const std::string& media_type,
                            const std::string& tag);

 private:
  struct Upload;
  Result<HttpHead> send(FetchRequest request);
  Result<std::string> begin_upload(const Descriptor& blob);
  Result<std::string> location_of(const HttpHead& head) const;
  Result<void> send_rest(Upload& upload);
  Result<void> find_place(Upload& upload);

  RegistrySession& session_;
};

}  // namespace spc
