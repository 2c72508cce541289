// Labels of AppArmor and SELinux: files and values written in a directory that replaces /proc/self.

#include "task/security.hpp"

#include <fcntl.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/unique_fd.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
namespace fs = std::filesystem;

namespace {

struct FakeRoot {
  fs::path path;
  FakeRoot() {
    std::string pattern = (fs::temp_directory_path() / "spc-label-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~FakeRoot() { fs::remove_all(path); }
  void put(const char* name, const char* text = "") const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text;
  }
  [[nodiscard]] std::string text(const char* name) const {
    std::ifstream file(path / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  [[nodiscard]] Result<void> write(SecurityModule module, const char* label) const {
    const UniqueFd self(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    return write_exec_label(self.get(), module, label);
  }
};

}  // namespace

TEST_CASE("security_module_of_fake_node_is_detected") {
  const FakeRoot root;
  CHECK_FALSE(has_security_module(SecurityModule::apparmor, root.path));
  CHECK_FALSE(has_security_module(SecurityModule::selinux, root.path));
  root.put("sys/module/apparmor/parameters/enabled", "N\n");
  CHECK_FALSE(has_security_module(SecurityModule::apparmor, root.path));
  root.put("sys/module/apparmor/parameters/enabled", "Y\n");
  CHECK(has_security_module(SecurityModule::apparmor, root.path));
  root.put("sys/fs/selinux/enforce", "0");
  CHECK(has_security_module(SecurityModule::selinux, root.path));
}

TEST_CASE("exec_label_is_written_to_fake_file") {
  const FakeRoot self;
  self.put("attr/exec");
  REQUIRE(self.write(SecurityModule::selinux, "system_u:system_r:container_t:s0"));
  CHECK(self.text("attr/exec") == "system_u:system_r:container_t:s0");
  self.put("attr/exec");
  REQUIRE(self.write(SecurityModule::apparmor, "jobs"));
  CHECK(self.text("attr/exec") == "exec jobs");
  self.put("attr/apparmor/exec");
  self.put("attr/exec");
  REQUIRE(self.write(SecurityModule::apparmor, "jobs"));
  CHECK(self.text("attr/apparmor/exec") == "exec jobs");
  CHECK(self.text("attr/exec").empty());
}

TEST_CASE("exec_label_refused_or_through_link_is_an_error") {
  const FakeRoot self;
  const auto missing = self.write(SecurityModule::apparmor, "jobs");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().message().find("set the AppArmor label \"jobs\"") != std::string::npos);
  self.put("other");
  fs::create_directories(self.path / "attr");
  fs::create_symlink("/dev/null", self.path / "attr/exec");
  CHECK_FALSE(self.write(SecurityModule::selinux, "x"));
}

TEST_CASE("exec_label_unknown_to_kernel_is_refused") {
  CHECK_FALSE(set_exec_label(SecurityModule::apparmor, "no-such-profile-of-anybody"));
}
