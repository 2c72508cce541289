#include <map>

#include "catch.hpp"
#include "spank/options.hpp"

using namespace spank_container;

namespace {

using Variables = std::map<std::string, std::string>;

std::string apply(Options& options, const Variables& variables) {
  return apply_twins(
      options,
      [](const char* name, std::string& value, void* arg) {
        const auto& all = *static_cast<const Variables*>(arg);
        const auto found = all.find(name);
        if (found != all.end()) value = found->second;
        return found != all.end();
      },
      const_cast<Variables*>(&variables));
}

const OptionRow& row(const std::string& name) {
  for (const OptionRow& candidate : option_table()) {
    if (candidate.name == name) return candidate;
  }
  FAIL("no option " << name);
  throw;
}

}  // namespace

TEST_CASE("both families of environment twins are read, ours first") {
  Options options;
  CHECK(apply(options, {{"PYXIS_CONTAINER_IMAGE", "a"}, {"PYXIS_CONTAINER_MOUNTS", "/x"}, {"SCONTAINER_IMAGE", "b"}}).empty());
  CHECK(options.image == "b");
  CHECK(options.mounts == std::vector<std::string>{"/x"});
}

TEST_CASE("the command line beats the environment, whole option by whole option") {
  Options options;
  options.mounts = {"/cli"};
  options.writable = SPC_NO;
  CHECK(apply(options, {{"SCONTAINER_MOUNTS", "/env"}, {"SCONTAINER_WRITABLE", "1"}}).empty());
  CHECK(options.mounts == std::vector<std::string>{"/cli"});
  CHECK(options.writable == SPC_NO);
}

TEST_CASE("READONLY=0 means writable") {
  Options options;
  CHECK(apply(options, {{"PYXIS_CONTAINER_READONLY", "0"}}).empty());
  CHECK(options.writable == SPC_YES);
}

TEST_CASE("a bad boolean in the environment is named, not ignored") {
  Options options;
  CHECK(apply(options, {{"SCONTAINER_MOUNT_HOME", "perhaps"}}) ==
        "SCONTAINER_MOUNT_HOME: --container-mount-home: \"perhaps\" is not a boolean (hint: 1, true, yes, 0, false or no)");
}

TEST_CASE("opposite switches are refused, the same one twice is not") {
  Options options;
  CHECK(row("container-writable").apply(options, "").empty());
  CHECK(row("container-writable").apply(options, "").empty());
  CHECK(row("container-readonly").apply(options, "") == "both --container-writable and --container-readonly were specified");
  for (const std::string name : {"mount-home", "remap-root", "entrypoint"}) {
    CHECK(row("no-container-" + name).apply(options, "").empty());
    CHECK(row("container-" + name).apply(options, "") ==
          "both --container-" + name + " and --no-container-" + name + " were specified");
  }
}

TEST_CASE("every option with a value needs one, and those that are no lists have only one") {
  for (const OptionRow& one : option_table()) {
    if (one.argument == nullptr) continue;
    Options options;
    CHECK(one.apply(options, "") == "--" + std::string(one.name) + ": argument required");
    CHECK(one.apply(options, "a").empty());
    CHECK(one.apply(options, "a").empty());
    const std::string name = one.name;
    const bool is_list =
        name == "container-mounts" || name == "container-env" || name == "container-unshare" || name == "container-device";
    CHECK(one.apply(options, "b") == (is_list ? "" : "--" + name + " specified multiple times"));
  }
}

TEST_CASE("mounts accumulate, duplicates are dropped") {
  Options options;
  for (const char* mount : {"/a", "/b", "/a"}) CHECK(row("container-mounts").apply(options, mount).empty());
  CHECK(options.mounts == std::vector<std::string>{"/a", "/b"});
}

TEST_CASE("a container is not saved to a directory") {
  Options options;
  CHECK(row("container-save").apply(options, "/home/alice/") == "--container-save: target is a directory");
}

TEST_CASE("the rows that root looks for are where it looks") {
  CHECK(option_table()[kImageRow].name == std::string("container-image"));
  CHECK(option_table()[kNameRow].name == std::string("container-name"));
}
