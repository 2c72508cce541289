#include "launch/site/enroot_compat.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

const Variables kVariables{
    {"HOME", "/home/alice"}, {"SLURM_JOB_ID", "12"}, {"EMPTY", ""}, {"SPACE", "a b"}};

/// Returns the mounts in the grammar of --container-mounts, one per line. Invalid ones begin with
/// `!`.
std::string mounts(std::string_view text) {
  std::string shown;
  for (const auto& mount : parse_enroot_fstab(text, kVariables)) {
    shown += std::to_string(mount.line) + " " +
             (mount.problem.empty() ? mount.text : "! " + mount.problem) + "\n";
  }
  return shown;
}

}  // namespace

TEST_CASE("enroot_text_variables_are_expanded") {
  CHECK(with_variables("${HOME}/x", kVariables) == "/home/alice/x");
  CHECK(with_variables("a${NOT_SET}b${EMPTY}c", kVariables) == "abc");
  CHECK(with_variables("$HOME ${HOME", kVariables) == "$HOME ${HOME");
  CHECK(with_variables("${a-b} ${}", kVariables) == "${a-b} ${}");
  CHECK(with_variables("${SLURM_JOB_ID}${SLURM_JOB_ID}", kVariables) == "1212");
}

TEST_CASE("enroot_environ_file_gives_assignments") {
  const auto found = parse_environ(
      "# comment\n\nTERM=xterm\nA=${HOME}/x\nB=\"quoted "
      "${SPACE}\"\nC='single'\nENROOT_ROOTFS=x\nno "
      "assignment\n1A=x\nD=\"'both'\"\nE=\n",
      kVariables);
  const Variables expected{{"TERM", "xterm"}, {"A", "/home/alice/x"}, {"B", "quoted a b"},
                           {"C", "single"},   {"D", "'both'"},        {"E", ""}};
  CHECK(found == expected);
}

TEST_CASE("enroot_conf_plain_values_count_others_are_reported") {
  const auto conf = parse_enroot_conf(
      "#ENROOT_REMAP_ROOT yes\nENROOT_ROOTFS_WRITABLE   yes\n  ENROOT_CONFIG_PATH "
      "${HOME}/.enroot\nENROOT_DATA_PATH /tmp/$(id "
      "-u)\n"
      "ENROOT_TEMP_PATH ${TMPDIR:-/tmp}\nENROOT_MOUNT_HOME \"no\"\nENROOT_REMAP_ROOT\nENROOT_X "
      "`id`\n",
      kVariables);
  const Variables expected{{"ENROOT_ROOTFS_WRITABLE", "yes"},
                           {"ENROOT_CONFIG_PATH", "/home/alice/.enroot"},
                           {"ENROOT_MOUNT_HOME", "no"},
                           {"ENROOT_REMAP_ROOT", ""}};
  CHECK(conf.values == expected);
  CHECK(conf.needs_shell ==
        std::vector<std::string>{"ENROOT_DATA_PATH", "ENROOT_TEMP_PATH", "ENROOT_X"});
}

TEST_CASE("enroot_fstab_missing_fields_are_guessed") {
  CHECK(mounts("/a") == "1 /a:/a\n");
  CHECK(mounts("/a /b") == "1 /a:/b\n");
  CHECK(mounts("tmpfs /t") == "1 tmpfs:/t\n");
  CHECK(mounts("# comment\n\n  /a\t/b  none") == "3 /a:/b\n");
}

TEST_CASE("enroot_fstab_options_become_flags") {
  CHECK(mounts("/a /b none x-create=dir,bind,ro,nosuid,noexec,nofail 0 -1") ==
        "1 /a:/b:x-create=dir+bind+ro+nosuid+noexec+nofail\n");
  CHECK(mounts("/a /b none rbind,rw") == "1 /a:/b:rw\n");
  CHECK(mounts("tmpfs /t tmpfs x-create=dir,size=1G,mode=755,uid=5") ==
        "1 tmpfs:/t:x-create=dir+size=1G+mode=755\n");
  CHECK(mounts("/x /opt/x none x-detach,nofail") == "1 umount:/opt/x:nofail\n");
}

TEST_CASE("enroot_fstab_escapes_and_variables_are_converted") {
  CHECK(mounts("/a\\040b /c\\054d") == "1 /a\\ b:/c\\,d\n");
  CHECK(mounts("${HOME}/.cache ${HOME}/.cache none bind") ==
        "1 /home/alice/.cache:/home/alice/.cache:bind\n");
  CHECK(mounts("/${SPACE} /x") == "1 /a\\ b:/x\n");
  CHECK(mounts("${NOT_SET} /x none bind") == "1 ! the target is not an absolute path\n");
}

TEST_CASE("enroot_fstab_default_mounts_are_skipped") {
  CHECK(mounts("/proc /proc none x-create=dir,rbind,nosuid,noexec,nodev 0 -1\n/sys /sys none "
               "rbind\n/dev /dev none rbind\n"
               "tmpfs /tmp tmpfs x-create=dir,mode=1777 0 -1\n/dev/shm /dev/shm none "
               "bind\n/etc/hosts /etc/hosts none bind\n"
               "/etc/resolv.conf /etc/resolv.conf none x-create=file,bind,ro\nproc /proc proc "
               "defaults\ntmpfs /dev/shm tmpfs\n"
               "/a /b\n") == "10 /a:/b\n");
  CHECK(mounts("/proc /host/proc none bind") == "1 /proc:/host/proc:bind\n");
}

TEST_CASE("enroot_fstab_other_file_systems_are_reported") {
  CHECK(mounts("server:/x /x nfs defaults") ==
        "1 ! file systems of type \"nfs\" are not supported\n");
  CHECK(mounts("overlay /x overlay lowerdir=/a") ==
        "1 ! file systems of type \"overlay\" are not supported\n");
  CHECK(mounts("tmpfs") == "1 ! not an fstab entry\n");
  CHECK(mounts("data /x none bind") == "1 ! the source is not an absolute path\n");
}
