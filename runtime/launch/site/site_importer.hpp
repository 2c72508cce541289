#pragma once

#include <map>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/reference/location.hpp"

namespace spc {

/// A program of the site that brings images instead of `import` (`importer` in config.toml), by the contract of pyxis:
///
///     PROGRAM get docker://IMAGE    prints the absolute path of a squashfs file; what it says on stderr is shown if it fails
///     PROGRAM release               the file is not needed any more; may be called more than once
///
/// It runs as the user with the job's environment, on the host, and may gain what any program of his may gain. The file is
/// then an image file like any other of his. It is released as soon as the container is there: that has the file open.
class SiteImporter {
 public:
  /// `environment`: the job's.
  explicit SiteImporter(const std::map<std::string, std::string>& environment) : environment_(&environment) {}
  SiteImporter(const SiteImporter&) = delete;
  SiteImporter& operator=(const SiteImporter&) = delete;
  /// On the host only, as everything here.
  ~SiteImporter() { release(); }

  /// Empty: the site has none.
  void set_program(std::string program) { program_ = std::move(program); }
  /// Whether there is one, and images of this kind are its business.
  [[nodiscard]] bool brings(const ImageLocation& image) const;
  /// The path of the file. `image` as the user named it.
  Result<std::string> get(const std::string& image, Log& log);
  /// Nothing where nothing has been asked for.
  void release();

 private:
  Result<std::string> run(const char* verb, const char* argument, Log* log);

  const std::map<std::string, std::string>* environment_;
  std::string program_;
  bool asked_ = false;  // and has not been told yet that the file is not needed
};

}  // namespace spc
