#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "tool/containers/own_containers.hpp"

namespace spc::enroot {

// --- job containers ---

// Containers of Slurm's steps, created with --container-name or running: within a step those of its
// node, elsewhere those of all nodes. They are listed as enroot lists those of pyxis: pyxis_NAME,
// pyxis_JOB_NAME if the name belongs to the job, and pyxis_JOB.STEP for steps without a name.

/// A container of a step.
struct JobContainer {
  std::string name;  ///< as listed by enroot
  std::string text;  ///< value of --container-name
  std::string job;   ///< job that it ends with; empty: it outlives its job
  std::string node;
  bool has_name = true;
  std::vector<pid_t> tasks;
};

/// Returns the containers of the caller's jobs.
std::vector<JobContainer> job_containers();

/// Returns the container with this name in enroot's list, if there is one.
std::optional<JobContainer> job_container(const std::string& name);

/// Returns the Slurm step of one of the caller's processes, given as text.
std::optional<tool::JobStep> step_named(const std::string& process);

// --- containers ---

// Containers made by `create`: directories in ENROOT_DATA_PATH. The image is not unpacked:
// `image.sqsh` is the image, `changes` has the changes (scontainer run --changes). Containers that
// enroot itself has unpacked there can be started as well.

/// A container in ENROOT_DATA_PATH.
struct EnrootContainer {
  std::string path;
  std::string image;    ///< a file, or a directory unpacked by enroot
  std::string changes;  ///< a directory, which may be missing; empty: unpacked by enroot
};

/// Returns the container with this name. Errors have enroot's wording.
Result<EnrootContainer> find_container(const std::string& data_path, const std::string& name);

/// Returns the path with links resolved. The error for a missing file has enroot's wording.
Result<std::string> real_path(const std::string& path);
/// Returns whether `path` is a file that starts with a squashfs header.
bool is_squashfs(const std::string& path);

/// Creates a container. `put_image` creates its image at the given path. The container becomes
/// visible when it is complete.
Result<void> create_container(const std::string& data_path, const std::string& name, bool replace,
                              const std::function<Result<void>(const std::string&)>& put_image);
/// Stores an image in a container: as a reflink if the file system supports it, otherwise as a hard
/// link if possible, otherwise as a copy.
Result<void> put_image_file(const std::string& image, const std::string& path);

/// Removes a container with all its files.
Result<void> remove_container(const std::string& path);

/// Returns the names, sorted.
Result<std::vector<std::string>> list_containers(const std::string& data_path);

// --- processes ---

/// Returns the output of `list -f`: a heading, a line for each running container, then one for each
/// other container.
Result<std::string> table_of(const std::vector<std::string>& names);

}  // namespace spc::enroot
