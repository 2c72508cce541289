#pragma once

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/meeting.hpp"

namespace spc::user_source {

/// The connection of this node to the step's srun (protocol/meeting.hpp). It is opened for the
/// first record and stays open as long as this object lives: by its end srun knows that this node
/// brings nothing any more. Once it has failed it is not tried again.
class SrunLine {
 public:
  /// Sends a join or more; its answer comes within two seconds, the connection included, else this
  /// fails.
  Result<MeetingRecord> ask(const MeetingRecord& question);
  /// Progress, done or left.
  Result<void> tell(const MeetingRecord& record);

 private:
  Result<void> send(MeetingRecord record);

  UniqueFd socket_;
  bool tried_ = false;
};

}  // namespace spc::user_source
