#include "launch/request/options.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "unit/test.hpp"

using namespace spc;

namespace {

std::string told(const Result<void>& result) { return result ? "" : result.error().message(); }

/// What they mean for a container of an image.
LaunchRequest meaning(const OptionTexts& texts) {
  OptionTexts with_image = texts;
  if (!texts.has("container-image")) REQUIRE(with_image.add("container-image=x").has_value());
  return with_image.parse(ReadAt::submission).value();
}

std::vector<std::string> targets(const LaunchRequest& request) {
  std::vector<std::string> all;
  for (const MountSpec& mount : request.mounts) all.push_back(mount.target);
  return all;
}

}  // namespace

TEST_CASE("both families of environment twins are read, ours first") {
  OptionTexts texts;
  CHECK(told(texts.add_twins({{"PYXIS_CONTAINER_IMAGE", "a"},
                              {"PYXIS_CONTAINER_MOUNTS", "/x"},
                              {"SCONTAINER_IMAGE", "b"}}))
            .empty());
  const auto request = meaning(texts);
  CHECK(request.image == "b");
  CHECK(targets(request) == std::vector<std::string>{"/x"});
}

TEST_CASE("the command line beats the environment, whole option by whole option") {
  OptionTexts texts;
  CHECK(told(texts.add("container-mounts=/cli")).empty());
  CHECK(told(texts.add("container-readonly")).empty());
  CHECK(
      told(texts.add_twins({{"SCONTAINER_MOUNTS", "/env"}, {"SCONTAINER_WRITABLE", "1"}})).empty());
  const auto request = meaning(texts);
  CHECK(targets(request) == std::vector<std::string>{"/cli"});
  CHECK(request.writable == false);
}

TEST_CASE("READONLY=0 means writable, and the option that it is") {
  OptionTexts texts;
  CHECK(told(texts.add_twins({{"PYXIS_CONTAINER_READONLY", "0"}, {"SCONTAINER_WRITABLE", "1"}}))
            .empty());
  CHECK(meaning(texts).writable == true);
  CHECK(texts.has("container-writable"));
  CHECK_FALSE(texts.has("container-readonly"));
}

TEST_CASE("a switch without an opposite can be turned off by its variable") {
  OptionTexts texts;
  CHECK(told(texts.add_twins({{"SCONTAINER_SLURM", "no"}})).empty());
  CHECK_FALSE(texts.has("container-slurm"));
  CHECK(meaning(texts).slurm == false);
  CHECK(meaning(texts).features.empty());
}

TEST_CASE("a bad boolean in the environment is named, not ignored") {
  OptionTexts texts;
  CHECK(told(texts.add_twins({{"SCONTAINER_MOUNT_HOME", "perhaps"}})) ==
        "SCONTAINER_MOUNT_HOME: --container-mount-home: \"perhaps\" is not a boolean (hint: 1, "
        "true, yes, 0, false or no)");
}

TEST_CASE("opposite switches are refused, the same one twice is not") {
  OptionTexts texts;
  CHECK(told(texts.add("container-writable")).empty());
  CHECK(told(texts.add("container-writable")).empty());
  CHECK(told(texts.add("container-readonly")) ==
        "both --container-writable and --container-readonly were specified");
  for (const std::string name : {"mount-home", "remap-root", "entrypoint"}) {
    CHECK(told(texts.add("no-container-" + name)).empty());
    CHECK(told(texts.add("container-" + name)) ==
          "both --container-" + name + " and --no-container-" + name + " were specified");
  }
}

TEST_CASE("every option with a value needs one, and those that are no lists have only one") {
  for (const ContainerOption& one : container_options()) {
    if (one.argument == nullptr) continue;
    OptionTexts texts;
    const std::string name = one.name;
    CHECK(told(texts.add(name)) == "--" + name + ": argument required");
    CHECK(told(texts.add(name + "=")) == "--" + name + ": argument required");
    CHECK(told(texts.add(name + "=a")).empty());
    CHECK(told(texts.add(name + "=a")).empty());
    const bool is_list = name == "container-mounts" || name == "container-env" ||
                         name == "container-unshare" || name == "container-device";
    CHECK(told(texts.add(name + "=b")) ==
          (is_list ? "" : "--" + name + " specified multiple times"));
  }
}

TEST_CASE("mounts accumulate, duplicates are dropped") {
  OptionTexts texts;
  for (const std::string mount : {"/a", "/b", "/a", "/c,/b"})
    CHECK(told(texts.add("container-mounts=" + mount)).empty());
  CHECK(targets(meaning(texts)) == std::vector<std::string>{"/a", "/b", "/c"});
}

TEST_CASE("a container is not saved to a directory") {
  OptionTexts texts;
  CHECK(told(texts.add("container-save=/home/alice/")) ==
        "--container-save: target is a directory");
}

TEST_CASE("a file of variables counts less than --container-env, and is read on the node alone") {
  const std::string path = "/tmp/options-test-" + std::to_string(::getpid());
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    OptionTexts texts;
    for (const std::string option : {"image=x", "env=KEPT,SET=option", "env-file="}) {
      REQUIRE(told(texts.add("container-" + option + (option == "env-file=" ? path : ""))).empty());
    }
    return texts.parse(ReadAt::node);
  };
  const auto request = read(
      "# comment\n\n  A=b=c # d\r\nEMPTY=\nHOSTS\nKEPT=file\nSET=file\nB=1\nB=2\nLAST=x\nLAST");
  REQUIRE(request.has_value());
  CHECK(request->environment.values ==
        std::map<std::string, std::string>{
            {"A", "b=c # d"}, {"B", "2"}, {"EMPTY", ""}, {"SET", "option"}});
  CHECK(request->environment.keep == std::vector<std::string>{"KEPT", "HOSTS", "LAST"});
  CHECK(read("A=1\nnot a name=2\n").error().message() ==
        "--container-env-file: \"" + path +
            "\", line 2: \"not a name\" is not the name of a variable");
  CHECK(read("=x").error().message().ends_with("line 1: \"\" is not the name of a variable"));
  CHECK_FALSE(read("A*\n").has_value());
  std::filesystem::remove(path);
  OptionTexts missing;
  REQUIRE(
      told(missing.add_twins({{"SCONTAINER_ENV_FILE", path}, {"SCONTAINER_IMAGE", "x"}})).empty());
  CHECK(missing.parse(ReadAt::submission).has_value());
  CHECK(missing.parse(ReadAt::node)
            .error()
            .message()
            .starts_with("SCONTAINER_ENV_FILE: --container-env-file: open \"" + path + "\": "));
}

TEST_CASE("the rows that root looks for are where it looks") {
  CHECK(container_options()[0].name == std::string("container-image"));
  CHECK(container_options()[1].name == std::string("container-name"));
}

TEST_CASE("a row is whole: an opposite has it as its own, a switch has no argument") {
  for (const ContainerOption& one : container_options()) {
    INFO(one.name);
    CHECK(one.is_switch() == (one.argument == nullptr));
    if (one.opposite == nullptr) continue;
    REQUIRE(find_option(one.opposite) != nullptr);
    CHECK(find_option(one.opposite)->opposite == std::string(one.name));
    CHECK(find_option(one.opposite)->kind != one.kind);
  }
}

TEST_CASE("every option that can be off is recognised when it is used") {
  std::set<std::string> used;
  const auto use = [&](const ContainerOption& option, const std::string& value) {
    OptionTexts texts;
    REQUIRE(told(texts.add(option, value)).empty());
    for (const std::string& feature : meaning(texts).features) used.insert(feature);
  };
  const std::map<std::string, std::string> values{{"container-image", "x"},
                                                  {"container-name", "x"},
                                                  {"container-mounts", "/x"},
                                                  {"container-workdir", "x"},
                                                  {"container-env", "X"},
                                                  {"container-device", "a.b/c=d"},
                                                  {"container-pull", "never"},
                                                  {"container-platform", "a/b"},
                                                  {"container-save", "x"},
                                                  {"container-unshare", "net"},
                                                  {"container-tmpfs-size", "10%"},
                                                  {"container-mpi", "host"},
                                                  {"container-batch", "script"},
                                                  {"container-env-file", "x"},
                                                  {"container-security", "seccomp=default"}};
  for (const ContainerOption& option : container_options())
    use(option, option.is_switch() ? "" : values.at(option.name));
  const auto names = feature_names();
  CHECK(used == std::set<std::string>(names.begin(), names.end()));
  CHECK_FALSE(used.contains("container-image"));
  CHECK_FALSE(used.contains("no-container-gpu"));
}
