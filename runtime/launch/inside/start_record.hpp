#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "launch/request/container_name.hpp"
#include "launch/spec/container_spec.hpp"
#include "protocol/task.hpp"

namespace spc {

/// SCONTAINER_IMAGE_NAME, as requested, and SCONTAINER_IMAGE_DIGEST.
void tell_image(const std::string& image, ContainerSpec& spec);

/// SCONTAINER_CONTAINER_NAME, of --container-name.
void tell_name(const std::optional<ContainerName>& name, ContainerSpec& spec);

/// For a shell on a terminal: its prompt begins with the name of the container or image. Debian's
/// bash, which has a prompt of its own, shows `debian_chroot` in front of it.
void tell_prompt(ContainerSpec& spec);

/// One line of key=value about a completed start, for the administrator's log; texts are quoted.
/// `scontainer metrics` reads it, and spank-container.conf(5) lists the keys: their names and order
/// are kept. `pulled`: the image was pulled for this start.
std::string start_record(const std::string& image, const UserIdentity& user,
                         const ContainerSpec& spec, const TaskMessage& ready, bool pulled,
                         std::uint64_t microseconds, const std::map<std::string, std::string>& job);

/// The same about a start that failed on this node.
std::string failure_record(const std::string& image, ErrorKind kind,
                           const std::map<std::string, std::string>& job);

/// The same about what this node has pulled: `said` by `import`.
std::string pull_record(const std::string& image, std::string_view said,
                        const std::map<std::string, std::string>& job);

/// The timing breakdown for the user, one line.
std::string timing_line(const TaskMessage& ready, std::uint64_t microseconds,
                        std::uint64_t entrypoint);

}  // namespace spc
