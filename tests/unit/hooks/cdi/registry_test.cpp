#include <sys/stat.h>
#include <unistd.h>

#include "cdi_files.hpp"
#include "hooks/cdi/registry.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

std::string spec(const std::string& kind, const std::vector<std::string>& devices,
                 const std::string& variable = "A=b") {
  std::string list;
  for (const auto& name : devices) {
    list += (list.empty() ? "" : ",") + (R"({"name":")" + name) +
            R"(","containerEdits":{"env":[")" + variable + R"("]}})";
  }
  return R"({"cdiVersion":"0.5.0","kind":")" + kind + R"(","devices":[)" + list + "]}";
}

CdiRegistry read(const FakeHost& host) { return CdiRegistry::read(host.root(), ::geteuid()); }

std::string names(const std::vector<CdiEntry>& entries) {
  std::string text;
  for (const CdiEntry& entry : entries) text += (text.empty() ? "" : " ") + entry.name();
  return text;
}

std::string found(const CdiRegistry& registry, const char* name) {
  const auto entries = registry.find(CdiName::parse(name).value());
  if (!entries) return entries.error().message();
  std::string text;
  for (const CdiEntry& entry : *entries)
    text += (text.empty() ? "" : " ") + entry.name() + "@" + entry.file->path;
  return text;
}

}  // namespace

TEST_CASE("cdi_registry_reads_etc_and_run") {
  const FakeHost host;
  host.write("/etc/cdi/a.json", spec("v.com/c", {"x", "y"}));
  host.write("/run/cdi/b.yaml",
             "cdiVersion: 0.5.0\nkind: v.com/d\ndevices:\n- name: z\n  containerEdits:\n    env:\n "
             "   - A=b\n");
  host.write("/etc/cdi/README", "not one");
  host.write("/etc/cdi/c.yml", "nor this");
  host.write("/etc/cdi/below/d.json", spec("v.com/e", {"x"}));
  const auto registry = read(host);
  CHECK(registry.problems().empty());
  CHECK(names(registry.devices()) == "v.com/c=x v.com/c=y v.com/d=z");
  CHECK(found(registry, "v.com/d=z") == "v.com/d=z@/run/cdi/b.yaml");
  CHECK(found(registry, "v.com/c=all") == "v.com/c=x@/etc/cdi/a.json v.com/c=y@/etc/cdi/a.json");
}

TEST_CASE("cdi_registry_without_files_is_empty") {
  const FakeHost host;
  std::filesystem::remove_all(host.root() + "/etc");
  const auto registry = read(host);
  CHECK(registry.problems().empty());
  CHECK(registry.devices().empty());
  CHECK(found(registry, "v.com/c=x") ==
        "device \"v.com/c=x\": not in any CDI file of this node (hint: no CDI files in /etc/cdi "
        "and /run/cdi; create them with the "
        "vendor's tool, such as nvidia-ctk cdi generate)");
}

TEST_CASE("cdi_registry_unknown_device_is_refused_with_list") {
  const FakeHost host;
  host.write("/etc/cdi/a.json", spec("v.com/c", {"x", "y"}));
  host.write("/etc/cdi/b.json", spec("v.com/d", {"z"}));
  const auto registry = read(host);
  CHECK(found(registry, "v.com/c=q") ==
        "device \"v.com/c=q\": not in any CDI file of this node (hint: available: v.com/c=x, "
        "v.com/c=y)");
  CHECK(found(registry, "w.com/c=q") ==
        "device \"w.com/c=q\": not in any CDI file of this node (hint: available: v.com/c=x, "
        "v.com/c=y, v.com/d=z)");
  host.write("/etc/cdi/many.json", spec("m.com/c", {"a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7",
                                                    "a8", "a9", "b0", "b1", "b2", "b3"}));
  CHECK(found(read(host), "m.com/c=q").ends_with("m.com/c=b1 and 2 more)"));
}

TEST_CASE("cdi_registry_later_directory_wins_per_device") {
  const FakeHost host;
  host.write("/etc/cdi/a.json", spec("v.com/c", {"x", "y"}));
  host.write("/run/cdi/z.json", spec("v.com/c", {"x"}, "A=run"));
  const auto registry = read(host);
  CHECK(found(registry, "v.com/c=x") == "v.com/c=x@/run/cdi/z.json");
  CHECK(found(registry, "v.com/c=y") == "v.com/c=y@/etc/cdi/a.json");
  CHECK(registry.devices_of("v.com/c").size() == 2);
}

TEST_CASE("cdi_registry_conflict_in_one_directory_drops_device") {
  const FakeHost host;
  host.write("/etc/cdi/a.json", spec("v.com/c", {"x", "y"}));
  host.write("/etc/cdi/b.json", spec("v.com/c", {"x"}));
  auto registry = read(host);
  CHECK(found(registry, "v.com/c=x") ==
        "device \"v.com/c=x\": \"/etc/cdi/a.json\" and \"/etc/cdi/b.json\" both describe it (hint: "
        "remove one of these CDI files)");
  CHECK(found(registry, "v.com/c=y") == "v.com/c=y@/etc/cdi/a.json");
  CHECK(names(registry.devices()) == "v.com/c=y");
  CHECK(found(registry, "v.com/c=all") == "v.com/c=y@/etc/cdi/a.json");
  host.write("/run/cdi/c.json", spec("v.com/c", {"x"}));  // removes the ambiguity
  registry = read(host);
  CHECK(found(registry, "v.com/c=x") == "v.com/c=x@/run/cdi/c.json");
}

TEST_CASE("cdi_registry_var_run_is_read_once") {
  const FakeHost host;
  host.write("/run/cdi/a.json", spec("v.com/c", {"x"}));
  CHECK(names(read(host).devices()) == "v.com/c=x");
  std::filesystem::remove(host.root() + "/var/run");
  host.write("/var/run/cdi/b.json", spec("v.com/c", {"y"}));
  CHECK(names(read(host).devices()) == "v.com/c=x v.com/c=y");
}

TEST_CASE("cdi_registry_bad_file_drops_only_its_devices") {
  const FakeHost host;
  host.write("/etc/cdi/a.json", "{");
  host.write("/etc/cdi/b.json", spec("v.com/c", {"x"}));
  host.write("/etc/cdi/c.yaml", "a: &b\n");
  std::filesystem::create_directory(host.root() + "/etc/cdi/d.json");
  ::mkfifo((host.root() + "/etc/cdi/e.json").c_str(), 0644);
  std::filesystem::create_symlink("nowhere", host.root() + "/etc/cdi/f.json");
  host.write("/etc/cdi/g.json", spec("v.com/h", {"x"}) + std::string(1 << 20, ' '));
  const auto registry = read(host);
  CHECK(names(registry.devices()) == "v.com/c=x");
  REQUIRE(registry.problems().size() == 6);
  CHECK(registry.problems()[0] == "CDI file \"/etc/cdi/a.json\": is not JSON (at byte 2)");
  CHECK(registry.problems()[1] ==
        "CDI file \"/etc/cdi/c.yaml\": line 1: unsupported YAML: an anchor");
  CHECK(registry.problems()[2].ends_with("/etc/cdi/d.json\": is not a file"));
  CHECK(registry.problems()[3].ends_with("/etc/cdi/e.json\": is not a file"));
  CHECK(registry.problems()[4].ends_with("/etc/cdi/f.json\": no such file or directory"));
  CHECK(registry.problems()[5].find("/etc/cdi/g.json") != std::string::npos);
  CHECK(found(registry, "v.com/q=x")
            .find("not in any CDI file of this node; CDI file \"/etc/cdi/a.json\": is not JSON") !=
        std::string::npos);
}

TEST_CASE("cdi_registry_files_writable_by_others_are_ignored") {
  const FakeHost host;
  host.write("/etc/cdi/a.json", spec("v.com/c", {"x"}), 0664);
  host.write("/etc/cdi/b.json", spec("v.com/c", {"y"}), 0646);
  host.write("/etc/cdi/c.json", spec("v.com/c", {"z"}));
  auto registry = read(host);
  CHECK(names(registry.devices()) == "v.com/c=z");
  REQUIRE(registry.problems().size() == 2);
  CHECK(registry.problems()[0].ends_with(
      "/etc/cdi/a.json\": is writable by others (hint: chmod go-w PATH)"));
  ::chmod((host.root() + "/etc").c_str(), 0777);
  registry = read(host);
  CHECK(registry.devices().empty());
  REQUIRE(registry.problems().size() == 1);
  CHECK(registry.problems()[0].find("is writable by others") != std::string::npos);
}

TEST_CASE("cdi_registry_file_of_another_owner_is_ignored") {
  if (::geteuid() != 0) return;  // only root can change a file's owner
  const FakeHost host;
  host.write("/etc/cdi/a.json", spec("v.com/c", {"x"}));
  REQUIRE(::chown((host.root() + "/etc/cdi/a.json").c_str(), 4711, 4711) == 0);
  const auto registry = read(host);
  CHECK(registry.devices().empty());
  REQUIRE(registry.problems().size() == 1);
  CHECK(registry.problems()[0].find("is not owned by root") != std::string::npos);
}

TEST_CASE("cdi_registry_edits_keep_request_order_and_file_edits_once") {
  const FakeHost host;
  host.write(
      "/etc/cdi/a.yaml",
      "cdiVersion: 0.5.0\nkind: v.com/c\ncontainerEdits:\n  env:\n  - FILE=a\n  mounts:\n  - "
      "hostPath: /h1\n    "
      "containerPath: /x/y\n"
      "devices:\n- name: one\n  containerEdits:\n    env:\n    - ONE=1\n    - SAME=1\n    "
      "mounts:\n    - hostPath: /h2\n  "
      "    containerPath: /x\n"
      "    deviceNodes:\n    - path: /dev/n\n- name: two\n  containerEdits:\n    env:\n    - "
      "SAME=2\n    mounts:\n    - "
      "hostPath: /h3\n"
      "      containerPath: /x/y\n    deviceNodes:\n    - path: /dev/n\n      hostPath: /dev/m\n");
  const auto registry = read(host);
  REQUIRE(registry.problems().empty());
  const auto one = registry.find(CdiName::parse("v.com/c=one").value()).value().front();
  const auto two = registry.find(CdiName::parse("v.com/c=two").value()).value().front();
  const auto edits = cdi_edits_of({one, two, one});
  CHECK(edits.env == std::vector<std::string>{"FILE=a", "ONE=1", "SAME=1", "SAME=2"});
  REQUIRE(edits.mounts.size() == 2);
  CHECK(edits.mounts[0].container_path == "/x");  // fewer components, therefore first
  CHECK(edits.mounts[1].host_path == "/h3");      // the later one wins
  REQUIRE(edits.device_nodes.size() == 1);
  CHECK(edits.device_nodes[0].host_path == "/dev/m");
  CHECK(cdi_edits_of({two, one}).env ==
        std::vector<std::string>{"FILE=a", "SAME=2", "ONE=1", "SAME=1"});
}
