#pragma once

#include <sys/types.h>

#include <map>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/reference/location.hpp"

namespace spc {

/// The leading task's hold on `user-source` (base/user_source_protocol.hpp): the process that reads for the user what
/// `import` asks for. It is started when `import` asks for the first time, which for a public image it never does, and is
/// gone, with all that it started, before the container is entered: none of it is left to the user's program.
class UserSource {
 public:
  UserSource() = default;
  UserSource(const UserSource&) = delete;
  UserSource& operator=(const UserSource&) = delete;
  ~UserSource() { stop(); }

  /// `socket`: the end on which questions come. `environment`: the job's.
  void prepare(UniqueFd socket, const ImageLocation& location, const std::map<std::string, std::string>& environment);
  /// Returns when `agent` has something to say. Until then the first question starts the process.
  Result<void> wait_for(int agent);
  /// Kills and reaps it, and lets go of the socket.
  void stop();

 private:
  Result<void> start();

  UniqueFd socket_;  // until somebody has it who answers, or nobody asks any more
  ImageLocation location_;
  const std::map<std::string, std::string>* environment_ = nullptr;
  pid_t pid_ = -1;
};

}  // namespace spc
