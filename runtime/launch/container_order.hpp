#pragma once

#include <cstdint>
#include <optional>

#include "launch/agent_line.hpp"
#include "launch/hooks/prepared_hooks.hpp"
#include "launch/host/host_side.hpp"
#include "launch/host/image_order.hpp"
#include "launch/host/named_container.hpp"
#include "launch/inside/task_security.hpp"
#include "launch/site/site_importer.hpp"
#include "launch/spec/container_spec.hpp"
#include "launch/task_context.hpp"

namespace spc {

/// What the leader has heard from the agent, and what comes of it: settled before anything is
/// opened.
struct Terms {
  LaunchRequest request;  ///< as the site completes it
  SitePolicy site;        ///< with what enroot's files add
  PolicyRecord policy;
  Digest earlier;  ///< of a private container: the image that the step's earlier ones have

  [[nodiscard]] bool is_first() const { return earlier == Digest(); }
};

/// Reads the site's texts, which came with `policy`, and the files of enroot, and completes the
/// request.
Result<Terms> read_terms(const TaskContext& task, const AgentMessage& policy);

struct OrderRequest {
  const TaskContext& task;
  const Terms& terms;
  NamedStart& named;
  TaskHooks& hooks;
  SiteImporter& importer;
};

/// What the agent is told to build, and what the leader then makes of it inside.
struct ContainerOrder {
  ImageLocation location;
  ImageOrder image;
  HostSide side;
  std::optional<PreparedHooks> hooks;  ///< none: the container runs already
  ContainerSpec spec;
  TaskSecurity security;  ///< empty: the container runs already
  std::uint64_t upper_size =
      0;                     ///< bytes that can be written in each place; 0: what the site allows
  bool joins = false;        ///< a running container
  bool covers_home = false;  ///< something is mounted where the user's home is
  bool mounts_home = false;
};

/// Decides and opens all of it, on the host, as the user.
Result<ContainerOrder> plan_container(OrderRequest request);
/// `start_flags`: more of TaskMessage::StartFlags than the order itself has.
Result<void> send(const ContainerOrder& order, std::uint32_t start_flags, int agent);
/// Mount sources for the builder, except image files.
Result<void> send_sources(const ContainerOrder& order, int agent);
/// The file of this number, for the server at the other end of `server`: the image, then those that
/// are mounted.
Result<void> send_file(const ContainerOrder& order, std::uint32_t number, int server);
/// How to set up the root. To be asked while the builder works, and not later: who the user is
/// would be answered inside by the image's name service. `job`: its variables.
RootSetup root_setup(ContainerOrder& order, const NamedStart& named,
                     const std::map<std::string, std::string>& job);

}  // namespace spc
