#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/cdi/names.hpp"
#include "hooks/cdi/spec.hpp"

namespace spc {

// --- verbs ---

/// The task of a hook in NVIDIA's specs: `nvidia-cdi-hook create-symlinks --link A::B`. Files of
/// NVIDIA's tools have only these hooks. Each is translated to edits, and none is executed. Source:
/// nvidia-container-toolkit, cmd/nvidia-cdi-hook.
struct CdiVerb {
  std::string name;
  /// names without dashes; the value is empty for an option without one
  std::vector<std::pair<std::string, std::string>> options;

  [[nodiscard]] std::vector<std::string> values_of(std::string_view option) const;
};

/// Returns the verb of a hook; empty for a hook of another program. The older `nvidia-ctk hook
/// VERB` is equivalent.
std::optional<CdiVerb> verb_of(const CdiHook& hook);

// --- registry ---

/// A valid CDI file.
struct CdiFile {
  std::string path;
  unsigned priority = 0;  ///< priority of its directory: the higher one wins
  CdiSpec spec;
};

/// A device, as defined by one of the files.
struct CdiEntry {
  const CdiFile* file;
  const CdiDevice* device;

  [[nodiscard]] std::string name() const { return file->spec.kind + "=" + device->name; }
};

/// The CDI files of a node: *.json and *.yaml directly in /etc/cdi and, with precedence, in
/// /run/cdi and /var/run/cdi. They decide which parts of the host appear in containers, so they and
/// the directories above must be owned by root and writable by root only.
class CdiRegistry {
 public:
  /// Reads the files. `host_root` is the prefix of each path; files owned by `owner` are trusted
  /// like root's. Unreadable and invalid files are skipped, with a problem.
  static CdiRegistry read(const std::string& host_root = "", uid_t owner = 0);
  /// Makes a registry of parsed files.
  static CdiRegistry of(std::vector<CdiFile> files);

  /// Returns one sentence for each skipped file.
  [[nodiscard]] const std::vector<std::string>& problems() const { return problems_; }
  [[nodiscard]] const std::vector<CdiFile>& files() const { return files_; }

  /// Returns all valid devices, by name. A device in two files of the same priority is not valid.
  [[nodiscard]] std::vector<CdiEntry> devices() const;
  /// Returns the valid devices of a kind, in file order.
  [[nodiscard]] std::vector<CdiEntry> devices_of(std::string_view kind) const;
  /// Returns the device of this name. `all`, unless a device has that name, means all devices of
  /// the kind. If there is none, the error lists the available ones.
  [[nodiscard]] Result<std::vector<CdiEntry>> find(const CdiName& name) const;
  /// Returns the names defined by two files of the same priority.
  [[nodiscard]] std::vector<std::string> conflicts() const;
  /// Returns the files that define the device, if two of the same priority do.
  [[nodiscard]] std::vector<std::string> conflict(const CdiName& name) const;

 private:
  void read_directory(const std::string& host_root, const std::string& directory, unsigned priority,
                      uid_t owner);
  void read_file(const std::string& host_root, const std::string& path, unsigned priority,
                 uid_t owner);

  std::vector<CdiFile> files_;
  std::vector<std::string> problems_;
  std::vector<std::pair<dev_t, ino_t>> seen_;  ///< directories already read
};

/// Returns the combined edits of these devices, in the order of the request. Each file's edits for
/// all of its devices come first, once per file. Mounts are ordered by depth of their targets.
CdiEdits cdi_edits_of(const std::vector<CdiEntry>& devices);

}  // namespace spc
