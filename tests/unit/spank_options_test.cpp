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
  CHECK_FALSE(row("container-readonly").apply(options, "").empty());
  CHECK(row("container-mount-home").apply(options, "").empty());
  CHECK_FALSE(row("no-container-mount-home").apply(options, "").empty());
}

TEST_CASE("mounts accumulate, the image is replaced") {
  Options options;
  for (const char* mount : {"/a", "/b", "/a"}) CHECK(row("container-mounts").apply(options, mount).empty());
  CHECK(options.mounts == std::vector<std::string>{"/a", "/b"});
  CHECK(row("container-image").apply(options, "x").empty());
  CHECK(row("container-image").apply(options, "y").empty());
  CHECK(options.image == "y");
  CHECK(row("container-image").apply(options, "") == "--container-image: argument required");
}
