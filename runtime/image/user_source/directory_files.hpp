#pragma once

#include "image/user_source/file_part.hpp"

namespace spc::user_source {

/// The files below a directory. Links may lead anywhere below it, never out of it.
class DirectoryFiles final : public NamedFiles {
 public:
  static Result<std::unique_ptr<DirectoryFiles>> open(const std::string& path);
  Result<std::optional<FilePart>> find(const std::string& name) const override;

 private:
  DirectoryFiles(UniqueFd directory, std::string path)
      : directory_(std::move(directory)), path_(std::move(path)) {}

  UniqueFd directory_;
  std::string path_;
};

}  // namespace spc::user_source
