#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/diagnose.hpp"
#include "hooks/fabric/fabric.hpp"
#include "hooks/nvidia_driver/driver.hpp"

namespace spc {

// --- surroundings ---

/// The environment of a job's process, as far as preflight() needs it. Files are read below
/// `host_root`.
struct Surroundings {
  struct Limit {
    std::uint64_t soft = 0, hard = 0;  ///< UINT64_MAX: unlimited
  };
  struct Space {
    std::uint64_t total = 0, free = 0;  ///< bytes
  };
  struct Interface {
    std::string name;
    bool loopback = false;
  };

  std::string host_root;  ///< prefix of every path; empty except in tests
  std::map<std::string, std::string, std::less<>> environment;
  NvidiaDriver driver;
  Limit locked_memory, open_files;
  std::optional<Space> shared_memory;  ///< of /dev/shm; empty if it does not exist
  std::vector<Interface>
      interfaces;  ///< interfaces that are up and have an IPv4 or IPv6 address, without duplicates
  /// Returns the errno of opening this device node for reading and writing, 0 if permitted; checked
  /// without opening it.
  std::function<int(const std::string& node)> may_open;
  /// Returns the errno of listening on this TCP port, 0 if it is free.
  std::function<int(std::uint16_t port)> listen_on;

  /// Returns a variable's value; nullptr if unset.
  [[nodiscard]] const std::string* variable(std::string_view name) const;
  [[nodiscard]] bool exists(const std::string& path) const;
  /// Returns up to 64 KiB of a file; empty if it cannot be read.
  [[nodiscard]] std::string text_of(const std::string& path) const;
  /// Returns the names in a directory, sorted; without . and ..
  [[nodiscard]] std::vector<std::string> names_in(const std::string& path) const;
};

/// Returns the surroundings of the calling process. `driver_root` is the setting in config.toml.
Surroundings surroundings_of_this_process(const std::string& driver_root);

// --- preflight ---

/// Checks requirements of GPUs, NCCL and MPI on a node or step. Each check gives one finding, even
/// if it does not apply. Opens no device, starts no process, and needs no privilege.
std::vector<Finding> preflight(const Surroundings& around);

// The checks of preflight().
std::vector<Finding> check_job(const Surroundings& around);
std::vector<Finding> check_gpus(const Surroundings& around);
std::vector<Finding> check_limits(const Surroundings& around);
std::vector<Finding> check_mpi(const Surroundings& around);
std::vector<Finding> check_fabric(const Surroundings& around);

/// Returns the node's adapters.
std::vector<FabricDevice> fabric_of(const Surroundings& around);

}  // namespace spc
