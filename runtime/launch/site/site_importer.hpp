#pragma once

#include <map>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/reference/location.hpp"

namespace spc {

/// External importer (`importer` in config.toml), with pyxis's contract:
///
///     PROGRAM get docker://IMAGE    prints the absolute path of a squashfs file; its stderr is
///     shown if it fails PROGRAM release               the file is no longer needed; may be called
///     repeatedly
///
/// It runs as the user with the job's environment, on the host, with the user's rights. The file is
/// then an image file like any other. It is released when the container is set up and has the file
/// open.
class SiteImporter {
 public:
  /// `environment`: the job's.
  explicit SiteImporter(const std::map<std::string, std::string>& environment)
      : environment_(&environment) {}
  SiteImporter(const SiteImporter&) = delete;
  SiteImporter& operator=(const SiteImporter&) = delete;
  /// On the host only, like everything here.
  ~SiteImporter() { release(); }

  /// Empty: none is configured.
  void set_program(std::string program) { program_ = std::move(program); }
  /// Whether there is one, and it handles images of this kind.
  [[nodiscard]] bool brings(const ImageLocation& image) const;
  /// The path of the file. `image` as given by the user.
  Result<std::string> get(const std::string& image, Log& log);
  /// No effect if nothing was requested.
  void release();

 private:
  Result<std::string> run(const char* verb, const char* argument, Log* log);

  const std::map<std::string, std::string>* environment_;
  std::string program_;
  bool asked_ = false;  // requested and not released yet
};

}  // namespace spc
