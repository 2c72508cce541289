#pragma once

#include <cstdint>

#include "protocol/wire_error.hpp"

namespace spc {

/// How slurmstepd, the tasks and `save` of a step speak: fixed-size messages over SEQPACKET sockets.
///
///   save      ── started (its pidfd) ──►    slurmstepd   before anything of it can be another's: slurmstepd waits for it,
///                                                        and goes on when it is gone, whoever holds the socket then
///   each task ── entered ──►                save         on slurmstepd's end, which every task inherits
///   slurmstepd ── save (tasks, killed) ──►  save         all tasks of the node have ended
///   save      ── progress … ──►             slurmstepd
///   save      ── done ──►                   slurmstepd   the last word, whatever it is; then it waits for the socket's end
///
/// On the socket between the first task and `save`:
///
///   save ── opened or failed ──►            first task   whether the file can be written, before the step begins
///   first task ── tree (root, record) ──►   save         the container's root, the image's settings
enum class SaveMessageKind : std::uint32_t { started = 1, entered, save, progress, done, failed, opened, tree };

struct SaveMessage {
  SaveMessageKind kind{};
  std::uint32_t tasks = 0;   ///< save: how many this node had
  std::uint32_t killed = 0;  ///< save: of those, how many SIGTERM or SIGKILL has ended
  Text<600> text;            ///< progress, done: a line, or nothing
  WireError error;           ///< failed
};

/// Descriptors of the program; 0-2 are /dev/null.
inline constexpr int kSaveSocket = 3;
inline constexpr int kSaveTaskSocket = 4;

}  // namespace spc
