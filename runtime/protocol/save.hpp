#pragma once

#include <cstdint>

#include "protocol/wire_error.hpp"

namespace spc {

/// Messages between slurmstepd, the tasks and the saver of a step: fixed size, over SEQPACKET
/// sockets.
///
///   save       ── started ──►               slurmstepd  sent by the process that slurmstepd waits
///                                                       for, identified by the kernel
///   each task  ── entered ──►               save        on slurmstepd's end, which tasks inherit
///   slurmstepd ── save (tasks, killed) ──►  save        all tasks of the node have ended
///   save       ── progress … ──►            slurmstepd
///   save       ── done or failed ──►        slurmstepd  the last message; then slurmstepd waits
///                                                       for the end of the socket
///   leader     ── failed ──►                slurmstepd  in place of a saver that ended at its
///                                                       start: the leader has reported it
///
/// On the socket between the leader and the saver:
///
///   save   ── opened or failed ──►     leader  whether the file can be written, before the start
///   leader ── tree (root, record) ──►  save    the container's root and the image's settings; the
///                                              image's name, if a layer is saved
///   save   ── known or failed ──►      leader  only if a layer is saved: the saver has listed the
///                                              root before the tasks change it
enum class SaveMessageKind : std::uint32_t {
  started = 1,
  entered,
  save,
  progress,
  done,
  failed,
  opened,
  tree,
  known
};

struct SaveMessage {
  SaveMessageKind kind{};
  std::uint32_t tasks = 0;   ///< save: number of tasks on this node
  std::uint32_t killed = 0;  ///< save: of those, ended by SIGTERM or SIGKILL
  std::uint32_t failed = 0;  ///< save: of those, ended with a status that is not 0
  bool may_be_lost = false;  ///< started: its unexpected end is no error
  Text<600> text;            ///< progress, done, failed: a line, or empty
  WireError error;           ///< failed, to the leader
};

/// Descriptors of the program; 0-2 are /dev/null.
inline constexpr int kSaveSocket = 3;
inline constexpr int kSaveTaskSocket = 4;

}  // namespace spc
