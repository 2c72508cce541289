#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "hook_engine/enroot_fstab.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

using Create = EnrootFstabLine::Create;

EnrootFstabLine only(std::string_view text) {
  const auto lines = parse_enroot_mounts(text);
  REQUIRE(lines.has_value());
  REQUIRE(lines->size() == 1);
  return lines->front();
}

std::string refusal(std::string_view text) {
  const auto lines = parse_enroot_mounts(text);
  REQUIRE_FALSE(lines.has_value());
  return lines.error().message();
}

/// A root with links that point outside of it.
class Root {
 public:
  Root() : path_(std::filesystem::temp_directory_path() / "spc-root-XXXXXX") {
    REQUIRE(::mkdtemp(path_.data()) != nullptr);
    std::filesystem::create_directories(path_ + "/usr/lib");
    std::ofstream(path_ + "/usr/lib/file") << "x";
    for (const auto& [name, target] : {std::pair("absolute", "/usr/lib"),
                                       {"climbs", "../../../../../etc"},
                                       {"dangling", "/made/here"},
                                       {"loop", "loop"},
                                       {"magic", "/proc/self/root"}}) {
      std::filesystem::create_symlink(target, path_ + "/" + name);
    }
    root_.reset(::open(path_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
  ~Root() { std::filesystem::remove_all(path_); }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  /// Returns the path below the root, or the errno.
  [[nodiscard]] std::string open(const std::string& path, MakeTarget make = MakeTarget::no) const {
    const auto opened = open_in_root(root_.get(), path, make);
    if (!opened) return std::to_string(opened.error().sys_errno());
    const auto place =
        std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(opened->get())).string();
    REQUIRE(place.starts_with(path_));
    return place.size() == path_.size() ? "/" : place.substr(path_.size());
  }
  [[nodiscard]] bool is_file(const std::string& path) const {
    return std::filesystem::is_regular_file(path_ + path);
  }

 private:
  std::string path_;
  UniqueFd root_;
};

}  // namespace

TEST_CASE("enroot_fstab_line_with_all_fields_is_parsed") {
  const auto line = only(
      "/a\\040b /c\\134d none x-create=file,bind,ro,nosuid,nodev,noexec,private,nofail,silent 0 "
      "-1\n");
  CHECK(line.source == "/a b");
  CHECK(line.target == "/c\\d");
  CHECK(line.type == "none");
  CHECK(line.flags == (MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC));
  CHECK(line.propagation == MS_PRIVATE);
  CHECK(line.create == Create::file);
  CHECK(line.no_fail);
  CHECK(line.quiet);
  CHECK(line.pass == -1);
  CHECK(line.data.empty());
}

TEST_CASE("enroot_fstab_missing_fields_get_enroot_defaults") {
  const auto bind = only("/a /b");
  CHECK(bind == only("/a /b none rbind,x-create=auto"));
  CHECK((bind.source + bind.target) == "/a/b");
  CHECK(bind.flags == (MS_BIND | MS_REC));
  CHECK(bind.create == Create::as_source);
  CHECK(only("/a") == only("/a /a"));
  CHECK(only("/a x-create=dir,bind").target == "/a");
  CHECK(only("/a x-create=dir,bind").flags == MS_BIND);
  CHECK(only("/a ro").target == "/a");
  CHECK(only("/a /b ro,bind").flags == (MS_BIND | MS_RDONLY));
  CHECK(only("/a /b ro,bind").type == "none");
  CHECK(only("tmpfs /t").type == "tmpfs");
  CHECK(only("tmpfs /t size=1m,mode=711,noexec").data == "size=1m,mode=711");
  CHECK(only("tmpfs /t size=1m,x-create,x-systemd.automount").data == "size=1m");
  CHECK(only("tmpfs /t tmpfs rw,size=1m").flags == 0);
  CHECK(only("tmpfs /t tmpfs rw,size=1m").mounts());
  CHECK_FALSE(only("none / none rslave").mounts());
  CHECK(only("/a /b none bind 3").pass == 3);
  CHECK(only("/a /b none bind 3 4").pass == 4);
}

TEST_CASE("enroot_fstab_later_option_wins") {
  CHECK(only("/a /b none bind,ro,rw").flags == MS_BIND);
  CHECK(only("/a /b none bind,nosuid,suid,noexec").flags == (MS_BIND | MS_NOEXEC));
  CHECK_FALSE(only("/a /b none bind,silent,loud").quiet);
  CHECK(only("none /b none x-detach").detach);
  CHECK(only("/a /b none x-move").flags == MS_MOVE);
}

TEST_CASE("enroot_fstab_comments_are_skipped_bad_lines_refused") {
  const auto lines = parse_enroot_mounts("# x\n\n   \n\t# y\n/a /b\n/c /d");
  REQUIRE(lines.has_value());
  CHECK(lines->size() == 2);
  CHECK(refusal("word").starts_with("invalid fstab entry"));
  CHECK(refusal("/a /b\n" + std::string(4096, 'x')).starts_with("fstab entry of more than"));
  CHECK(only("/a " + std::string(4092, 'x')).target.size() == 4092);
}

TEST_CASE("enroot_fstab_targets_resolve_inside_the_root") {
  const Root root;
  CHECK(root.open("/") == "/");
  CHECK(root.open("") == "/");
  CHECK(root.open("usr//lib/./file") == "/usr/lib/file");
  CHECK(root.open("/absolute/file") == "/usr/lib/file");
  CHECK(root.open("/absolute/../lib") == "/usr/lib");
  CHECK(root.open("/climbs") == std::to_string(ENOENT));
  CHECK(root.open("/climbs/x", MakeTarget::file) == "/etc/x");
  CHECK(root.open("/../x") == std::to_string(EXDEV));
  CHECK(root.open("/usr/../../x", MakeTarget::file) == std::to_string(EXDEV));
  CHECK(root.open("/loop") == std::to_string(ELOOP));
  CHECK(root.open("/loop/x", MakeTarget::file) == std::to_string(ELOOP));
  CHECK(root.open("/usr/lib/file/x", MakeTarget::file) == std::to_string(ENOTDIR));
}

TEST_CASE("enroot_fstab_missing_target_is_created_only_on_request") {
  const Root root;
  CHECK(root.open("/new/a") == std::to_string(ENOENT));
  CHECK(root.open("/new/a", MakeTarget::file) == "/new/a");
  CHECK(root.is_file("/new/a"));
  CHECK(root.open("/new/b/c/", MakeTarget::directory) == "/new/b/c");
  CHECK(root.open("/dangling", MakeTarget::file) == "/made/here");
  CHECK(root.is_file("/made/here"));
  CHECK(root.open("/magic/etc/hostname", MakeTarget::directory) == "/proc/self/root/etc/hostname");
}
