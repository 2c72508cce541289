// The mounts of --container-ssh. The node is a directory with small ELF files.

#include "hooks/node/node.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/hooks/elf_maker.hpp"
#include "unit/hooks/image_root.hpp"

using namespace spc;

namespace {

using Targets = std::map<std::string, std::string>;

std::string elf(std::vector<std::string> needed) {
  return MadeElf{.needed = std::move(needed), .machine = kOwnMachine}.bytes();
}

std::string library(const std::string& name) { return kLibraries + ("/" + name); }

HookContext context_of(const ImageRoot& node) {
  HookContext context;
  context.host_root = node.path("");
  context.annotations["com.hooks.ssh.enabled"] = "true";
  return context;
}

/// Returns the sources of the mounts by the last components of their targets.
Targets mounts_of(const Edits& edits) {
  const std::string directory = "/run/spank-container/ssh/";
  Targets mounts;
  for (const MountEdit& mount : edits.mounts) {
    CHECK(mount.target.starts_with(directory));
    CHECK(mount.read_only);
    mounts[mount.target.substr(directory.size())] = mount.source;
  }
  CHECK(mounts.size() == edits.mounts.size());
  return mounts;
}

}  // namespace

TEST_CASE("ssh_hook_runs_only_if_the_annotation_is_true") {
  HookContext context;
  CHECK_FALSE(ssh_hook.when(context));
  context.annotations["com.hooks.ssh.enabled"] = "false";
  CHECK_FALSE(ssh_hook.when(context));
  context.annotations["com.hooks.ssh.enabled"] = "true";
  CHECK(ssh_hook.when(context));
}

TEST_CASE("ssh_hook_mounts_programs_and_indirect_libraries") {
  const ImageRoot node;
  node.put("/usr/sbin/sshd", elf({"liba.so.1", "libc.so.6"}));
  node.put("/usr/bin/ssh-keygen", elf({"libc.so.6", "libgone.so.1"}));
  node.put("/usr/libexec/openssh/sshd-session", elf({"libc.so.6"}));
  node.put(library("liba.so.1"), elf({"libb.so.1"}));
  node.put(library("libb.so.1"), elf({"liba.so.1"}));
  node.put(library("libc.so.6"), "no ELF file");
  node.put(library("libunused.so.1"), elf({}));
  const auto edits = ssh_hook.prepare(context_of(node));
  REQUIRE(edits);
  CHECK(mounts_of(*edits) == Targets{{"sshd", "/usr/sbin/sshd"},
                                     {"ssh-keygen", "/usr/bin/ssh-keygen"},
                                     {"sshd-session", "/usr/libexec/openssh/sshd-session"},
                                     {"liba.so.1", library("liba.so.1")},
                                     {"libb.so.1", library("libb.so.1")},
                                     {"libc.so.6", library("libc.so.6")}});
  CHECK(edits->warnings.empty());
  REQUIRE(edits->files.size() == 2);
  CHECK(edits->files.front() ==
        FileEdit{"/run/spank-container/ssh/session",
                 "#!/bin/sh\nexec /run/spank-container/ssh/ld.so --library-path "
                 "/run/spank-container/ssh/ /run/spank-container/ssh/sshd-session \"$@\"\n",
                 0755});
}

TEST_CASE("ssh_hook_mounts_the_named_server_and_key") {
  const ImageRoot node;
  node.put("/opt/sshd", elf({}));
  HookContext context = context_of(node);
  context.settings.emplace("sshd", "/opt/sshd");
  context.annotations["com.hooks.ssh.authorize_ssh_key"] = "/home/ann/key.pub";
  CHECK(mounts_of(*ssh_hook.prepare(context)) ==
        Targets{{"sshd", "/opt/sshd"}, {"keys", "/home/ann/key.pub"}});
  context.annotations["com.hooks.ssh.authorize_ssh_key"] = "key.pub";
  CHECK(ssh_hook.prepare(context)->refusal.starts_with("com.hooks.ssh.authorize_ssh_key: "));
}

TEST_CASE("ssh_hook_without_server_only_warns") {
  const ImageRoot node;
  node.put("/usr/bin/ssh-keygen", elf({}));
  const auto edits = ssh_hook.prepare(context_of(node));
  REQUIRE(edits);
  CHECK(edits->mounts.empty());
  REQUIRE(edits->warnings.size() == 1);
  CHECK(edits->warnings.front().find("hint: job-ssh take-sshd") != std::string::npos);
}
