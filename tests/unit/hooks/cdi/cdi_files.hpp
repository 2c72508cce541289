#pragma once

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace spc {

/// Returns the content of a file below tests/unit/cdi.
inline std::string cdi_text(const std::string& name) {
  std::ifstream file(std::string(SPC_CDI_FILES "/") + name, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A temporary root of a host, removed by the destructor.
class FakeHost {
 public:
  FakeHost() {
    std::string name = std::filesystem::temp_directory_path() / "spc-cdi-XXXXXX";
    root_ = ::mkdtemp(name.data());
    for (const char* directory : {"/etc/cdi", "/run/cdi", "/dev"})
      std::filesystem::create_directories(root_ + directory);
    std::filesystem::create_directories(root_ + "/var");
    std::filesystem::create_symlink("../run", root_ + "/var/run");
  }
  FakeHost(const FakeHost&) = delete;
  FakeHost& operator=(const FakeHost&) = delete;
  ~FakeHost() { std::filesystem::remove_all(root_); }

  [[nodiscard]] const std::string& root() const { return root_; }

  void write(const std::string& path, const std::string& text, mode_t mode = 0644) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path, std::ios::binary) << text;
    ::chmod((root_ + path).c_str(), mode);
  }
  /// Creates a placeholder for a device node; only its existence matters.
  void touch(const std::string& path) const { write(path, ""); }

 private:
  std::string root_;
};

}  // namespace spc
