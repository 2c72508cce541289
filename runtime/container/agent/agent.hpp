#pragma once

#include <poll.h>
#include <sys/types.h>

#include <optional>
#include <vector>

#include "base/import_protocol.hpp"
#include "container/agent/builder.hpp"
#include "container/agent/image_store.hpp"
#include "container/protocol.hpp"

namespace spc {

/// What must exist before the first task asks; made while Slurm is still busy starting the tasks.
struct AgentTools {
  ImageStore store;
  UniqueFd loop_table;
  UniqueFd id_map;  ///< empty for jobs of root: the layers belong to root anyway
  PolicyRecord policy;
};

/// The root side of one step on one node: gives its tasks one container. It waits for nothing but events, so that it can
/// be killed at any time, and ends when slurmstepd has closed the common socket.
class Agent {
 public:
  /// `tools` may be an Error: then it is what every task is told.
  Agent(uid_t uid, gid_t gid, UniqueFd common, Result<AgentTools> tools);
  void run();

 private:
  struct Task {
    UniqueFd socket;
    UniqueFd mount_namespace;
  };
  struct Child {
    pid_t pid = -1;
    UniqueFd socket;
  };

  void on_join();
  void on_lead();
  void on_import();
  void on_builder();

  Result<void> add_source(const TaskMessage& message, std::vector<UniqueFd> descriptors);
  Result<void> start(const TaskMessage& message, std::vector<UniqueFd> descriptors);
  Result<void> start_import(int request, int user_source);
  Result<void> answer_import(const ImportMessage& message, std::vector<UniqueFd> descriptors);
  Result<void> start_builder(StoredImage image);

  void tell(const Task& task);  ///< its answer, when there is one
  void tell_all(TaskMessageKind kind, const char* text);
  void fail(const Error& error);
  void reap(Child& child);

  uid_t uid_;
  gid_t gid_;
  UniqueFd common_;
  Result<AgentTools> tools_;

  std::vector<Task> tasks_;  ///< waiting; the first one leads
  std::vector<BindSource> sources_;
  bool read_only_ = false;
  Child import_;
  Child builder_;
  std::uint64_t import_started_ = 0;

  std::optional<StoredImage> image_;
  std::optional<TaskMessage> answer_;  ///< ready or failed, once known
  UniqueFd mount_namespace_;
};

}  // namespace spc
