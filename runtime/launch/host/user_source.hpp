#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/process/child.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/reference/location.hpp"

namespace spc {

/// The leader's handle of `user-source` (protocol/user_source.hpp): the process that reads for the
/// user what `import` requests. It is started on the first request, so never for a public image,
/// and is gone, with all its children, before the container is entered: the user's program inherits
/// nothing of it.
class UserSource {
 public:
  UserSource() = default;
  UserSource(const UserSource&) = delete;
  UserSource& operator=(const UserSource&) = delete;
  ~UserSource() { stop(); }

  /// Starts it for podman in another process than this one, which cannot gain any privilege.
  using Elsewhere = std::function<Result<void>(int socket, const std::string& location)>;
  void start_for_podman(Elsewhere elsewhere) { elsewhere_ = std::move(elsewhere); }
  /// `socket`: the end for requests. `environment`: the job's. `meeting`: where srun listens
  /// (kMeetingVariable), or empty.
  void prepare(UniqueFd socket, const ImageLocation& location,
               const std::map<std::string, std::string>& environment, std::string meeting);
  /// Returns when `agent` is readable. Until then, the first request starts the process.
  Result<void> wait_for(int agent);
  /// Kills and reaps it, and closes the socket.
  void stop();

 private:
  Result<void> start();

  UniqueFd socket_;  // until the process has it, or no more requests are possible
  ImageLocation location_;
  const std::map<std::string, std::string>* environment_ = nullptr;
  std::string meeting_;
  Elsewhere elsewhere_;
  bool started_ = false;
  Child child_;
};

}  // namespace spc
