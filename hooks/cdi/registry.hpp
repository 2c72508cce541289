#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "hooks/cdi/names.hpp"
#include "hooks/cdi/spec.hpp"

namespace spc {

/// A CDI file that could be read.
struct CdiFile {
  std::string path;
  unsigned priority = 0;  ///< of its directory: the higher counts
  CdiSpec spec;
};

/// A device as it counts, in one of the files.
struct CdiEntry {
  const CdiFile* file;
  const CdiDevice* device;

  [[nodiscard]] std::string name() const { return file->spec.kind + "=" + device->name; }
};

/// The CDI files of a node: *.json and *.yaml directly in /etc/cdi and, counting more, in /run/cdi and /var/run/cdi. They decide
/// what of the host appears inside, so they, and what lies above them, must be root's, and nobody else's to write.
class CdiRegistry {
 public:
  /// `host_root` comes before each path; files of `owner` are trusted as root's are. What cannot be read or is wrong is left
  /// out, with a problem.
  static CdiRegistry read(const std::string& host_root = "", uid_t owner = 0);
  /// Of files as they are.
  static CdiRegistry of(std::vector<CdiFile> files);

  /// One sentence for each file that is left out.
  [[nodiscard]] const std::vector<std::string>& problems() const { return problems_; }
  [[nodiscard]] const std::vector<CdiFile>& files() const { return files_; }

  /// All devices that count, in the order of their names. Of two files of the same priority that have a device neither counts.
  [[nodiscard]] std::vector<CdiEntry> devices() const;
  /// Those of a kind, in the order of their file.
  [[nodiscard]] std::vector<CdiEntry> devices_of(std::string_view kind) const;
  /// The device of this name; that of `all`, where no device is called so, is all of the kind. If there is none, the error
  /// says what there is instead.
  [[nodiscard]] Result<std::vector<CdiEntry>> find(const CdiName& name) const;
  /// The names that two files of the same priority have.
  [[nodiscard]] std::vector<std::string> conflicts() const;
  /// Which files give the device, if there are two of the same priority.
  [[nodiscard]] std::vector<std::string> conflict(const CdiName& name) const;

 private:
  void read_directory(const std::string& host_root, const std::string& directory, unsigned priority, uid_t owner);
  void read_file(const std::string& host_root, const std::string& path, unsigned priority, uid_t owner);

  std::vector<CdiFile> files_;
  std::vector<std::string> problems_;
  std::vector<std::pair<dev_t, ino_t>> seen_;  ///< directories
};

/// What these devices come to, in the order in which they were asked for: first what their files say for all devices of theirs,
/// each file once, and mounts by the depth of their places.
CdiEdits cdi_edits_of(const std::vector<CdiEntry>& devices);

}  // namespace spc
