#include "launch/site/submit.hpp"
#include "request/options.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

std::string told(const Result<void>& result) { return result ? "" : result.error().message(); }

/// Returns the resulting request for a container of an image.
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

TEST_CASE("option_variables_of_both_families_are_read") {
  OptionTexts texts;
  CHECK(told(texts.add_twins({{"PYXIS_CONTAINER_IMAGE", "a"},
                              {"PYXIS_CONTAINER_MOUNTS", "/x"},
                              {"SCONTAINER_IMAGE", "b"}}))
            .empty());
  const auto request = meaning(texts);
  CHECK(request.image == "b");
  CHECK(targets(request) == std::vector<std::string>{"/x"});
}

TEST_CASE("option_on_command_line_beats_environment") {
  OptionTexts texts;
  CHECK(told(texts.add("container-mounts=/cli")).empty());
  CHECK(told(texts.add("container-readonly")).empty());
  CHECK(
      told(texts.add_twins({{"SCONTAINER_MOUNTS", "/env"}, {"SCONTAINER_WRITABLE", "1"}})).empty());
  const auto request = meaning(texts);
  CHECK(targets(request) == std::vector<std::string>{"/cli"});
  CHECK(request.writable == false);
}

TEST_CASE("option_readonly_0_means_writable") {
  OptionTexts texts;
  CHECK(told(texts.add_twins({{"PYXIS_CONTAINER_READONLY", "0"}, {"SCONTAINER_WRITABLE", "1"}}))
            .empty());
  CHECK(meaning(texts).writable == true);
  CHECK(texts.has("container-writable"));
  CHECK_FALSE(texts.has("container-readonly"));
}

TEST_CASE("option_switch_is_turned_off_by_variable") {
  OptionTexts texts;
  CHECK(told(texts.add_twins({{"SCONTAINER_SLURM", "no"}})).empty());
  CHECK_FALSE(texts.has("container-slurm"));
  CHECK(meaning(texts).slurm == false);
  CHECK(meaning(texts).features.empty());
}

TEST_CASE("option_bad_boolean_variable_is_reported") {
  OptionTexts texts;
  CHECK(told(texts.add_twins({{"SCONTAINER_MOUNT_HOME", "perhaps"}})) ==
        "SCONTAINER_MOUNT_HOME: --container-mount-home: \"perhaps\" is not a boolean (hint: 1, "
        "true, yes, 0, false or no)");
}

TEST_CASE("option_opposite_switches_are_refused") {
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

TEST_CASE("option_values_are_required_and_unique") {
  for (const ContainerOption& one : container_options()) {
    if (one.has_argument() != 1) continue;
    OptionTexts texts;
    const std::string name = one.name;
    CHECK(told(texts.add(name)) == "--" + name + ": argument required");
    CHECK(told(texts.add(name + "=")) == "--" + name + ": argument required");
    CHECK(told(texts.add(name + "=a")).empty());
    CHECK(told(texts.add(name + "=a")).empty());
    const bool is_list = name == "container-mounts" || name == "container-env" ||
                         name == "container-unshare" || name == "container-device" ||
                         name == "container-unsetenv";
    CHECK(told(texts.add(name + "=b")) ==
          (is_list ? "" : "--" + name + " specified multiple times"));
  }
}

TEST_CASE("option_environment_yields_to_given_options") {
  NamedEnvironment environment{.name = "e", .file = "/e.toml", .values = {}};
  const auto add = [&](const std::string& option, const std::string& value) {
    const std::string line = std::to_string(environment.values.size() + 1);
    environment.values.push_back(
        {.key = {}, .text = {}, .option = option, .value = value, .origin = "/e.toml:" + line});
  };
  add("container-image", "of-file:1");
  add("container-readonly", "");
  add("container-mounts", "/a:/a");
  add("container-env", "A=1");
  add("container-env", "B=1");
  add("container-env", "C=1");
  add("container-unsetenv", "D");
  add("container-workdir", "/${not a variable}");
  OptionTexts texts;
  for (const char* given :
       {"environment=e", "container-image=typed:1", "container-writable", "container-mounts=/b:/b",
        "container-env=A,B=2,D", "container-unsetenv=C"})
    CHECK(told(texts.add(given)).empty());
  CHECK(told(texts.add_environment(environment)).empty());
  CHECK(told(texts.add_twins({{"SCONTAINER_IMAGE", "of-variable:1"}})).empty());
  CHECK(texts.environment({{"SCONTAINER_ENVIRONMENT", "f"}}) == "e");
  const auto request = meaning(texts);
  CHECK(request.image == "typed:1");
  CHECK(request.writable == true);
  REQUIRE(request.mounts.size() == 2);
  CHECK(request.mounts[0].target == "/a");
  CHECK(request.mounts[1].target == "/b");
  CHECK(request.environment.values == std::map<std::string, std::string>{{"B", "2"}});
  CHECK(request.environment.unset == std::vector<std::string>{"C"});
  CHECK(request.workdir == "/${not a variable}");
  const auto given = texts.given([](const ContainerOption& one) { return std::string(one.name); });
  using Given = std::pair<std::string, std::string>;
  for (const Given& one :
       {Given{"container-image=typed:1", "option"}, Given{"container-mounts=/a:/a", "/e.toml:3"},
        Given{"container-mounts=/b:/b", "option"},
        Given{"container-workdir=/${not a variable}", "/e.toml:8"}}) {
    INFO(one.first);
    CHECK(std::find(given.begin(), given.end(), one) != given.end());
  }
}

TEST_CASE("option_environment_mistakes_name_file_and_line") {
  OptionTexts texts;
  CHECK(told(texts.add_environment({.name = "e",
                                    .file = "/e.toml",
                                    .values = {{.key = {},
                                                .text = {},
                                                .option = "container-mounts",
                                                .value = "relative:x",
                                                .origin = "/e.toml:7"}}}))
            .empty());
  const auto parsed = texts.parse(ReadAt::submission);
  REQUIRE_FALSE(parsed);
  CHECK(parsed.error().message().starts_with(
      "environment \"/e.toml\", line 7: --container-mounts: "));
  OptionTexts none;
  CHECK(told(none.add("environment=e")).empty());
  CHECK(none.parse(ReadAt::submission).error().message() ==
        "environment \"e\": has no image (hint: add image = \"...\" to the file, or "
        "--container-image)");
}

TEST_CASE("option_value_with_carriage_return_is_refused") {
  OptionTexts texts;
  const std::string why =
      ": the value ends in a carriage return (hint: the script has Windows line ends: sed -i "
      "'s/\\r$//' SCRIPT)";
  for (const char* text : {"container-image=a:1\r", "container-mounts=/a:/b\r",
                           "container-env=A \r", "container-writable=yes\r"}) {
    const std::string name = text;
    CHECK(told(texts.add(name)) == "--" + name.substr(0, name.find('=')) + why);
  }
  CHECK(told(texts.add("container-mounts=/a\rb:/c")).empty());
}

TEST_CASE("option_mounts_accumulate_without_duplicates") {
  OptionTexts texts;
  for (const std::string mount : {"/a", "/b", "/a", "/c,/b"})
    CHECK(told(texts.add("container-mounts=" + mount)).empty());
  CHECK(targets(meaning(texts)) == std::vector<std::string>{"/a", "/b", "/c"});
}

TEST_CASE("option_save_to_directory_is_refused") {
  OptionTexts texts;
  CHECK(told(texts.add("container-save=/home/alice/")) ==
        "--container-save: target is a directory");
}

TEST_CASE("option_env_file_yields_to_container_env") {
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

TEST_CASE("option_variable_misspelt_gets_its_name") {
  const auto meant = [](const char* variable) {
    const char* const environment[] = {"PATH=/bin", variable, nullptr};
    const auto lines = misspelt_variables(environment);
    if (lines.empty()) return std::string();
    const auto begin = lines[0].find("did you mean ") + 13;
    return lines[0].substr(begin, lines[0].find('?') - begin);
  };
  const char* const environment[] = {"SCONTAINER_IMGE=x", "SCONTAINER_MOUNTS=/a", nullptr};
  CHECK(misspelt_variables(environment) ==
        std::vector<std::string>{"the variable SCONTAINER_IMGE has no effect (hint: did you mean "
                                 "SCONTAINER_IMAGE?)"});
  CHECK(meant("SCONTAINER_MOUNT=") == "SCONTAINER_MOUNTS");
  CHECK(meant("SCONTAINER_WORK_DIR=") == "SCONTAINER_WORKDIR");
  CHECK(meant("PYXIS_CONTAINER_IMAGES=") == "PYXIS_CONTAINER_IMAGE");
  CHECK(meant("PYXIS_IMAGE=") == "PYXIS_CONTAINER_IMAGE");
  CHECK(meant("SPANK_CONTAINER_IMAGE=") == "SCONTAINER_IMAGE");
  CHECK(meant("SBATCH_CONTAINER_IMAGE=") == "SCONTAINER_IMAGE");
  CHECK(meant("SRUN_CONTAINER_MOUTNS=") == "SCONTAINER_MOUNTS");
  CHECK(meant("SCONTAINER_CONTAINER_IMAGE=") == "SCONTAINER_IMAGE");
  CHECK(meant("SCONTANER_IMAGE=") == "SCONTAINER_IMAGE");
  CHECK(meant("scontainer_image=") == "SCONTAINER_IMAGE");
  for (const char* other : {"SCONTAINER_IMAGE=",
                            "SCONTAINER_NAME=",
                            "SCONTAINER_ENV=",
                            "PYXIS_CONTAINER_MOUNTS=",
                            "SCONTAINER_IMAGE_NAME=",
                            "SCONTAINER_IMAGE_DIGEST=",
                            "SCONTAINER_CONTAINER_NAME=",
                            "SCONTAINER_DIGEST=",
                            "PYXIS_RUNTIME_PATH=",
                            "SLURM_CONTAINER=",
                            "SBATCH_CONTAINER_ID=",
                            "SLURM_CONTAINER_ID=",
                            "CONTAINER_IMAGE=",
                            "SLURM_SPANK_SCONTAINER_SINCE=",
                            "SHELL=",
                            "SPANK_CONTAINER_STARTED_BY_ENROOT=",
                            "SSH_CLIENT=",
                            "SINGULARITY_IMAGE=",
                            "S=",
                            "PWD=",
                            "SCONTAINER_OUR_OWN=",
                            "SLURM_SPANK__SLURM_SPANK_OPTION_spank_container_container_image="}) {
    INFO(other);
    CHECK(meant(other).empty());
  }
  for (const ContainerOption& option : container_options()) {
    if (option.twin != nullptr)
      CHECK(meant(("SCONTAINER_" + std::string(option.twin)).c_str()).empty());
  }
}

TEST_CASE("option_paths_share_one_reading") {
  const UserPaths paths{
      .home = "/home/alice", .here = "/srv/dir", .variables = UserPaths::Variables::slurm};
  const auto read = [&](const std::string& option) {
    OptionTexts texts;
    CHECK(told(texts.add("container-image=x")).empty());
    CHECK(told(texts.add(option)).empty());
    return texts.parse(ReadAt::submission, paths);
  };
  CHECK(read("container-save=~/x.sqsh")->save == "/home/alice/x.sqsh");
  CHECK(read("container-save=oci-layer:~/x.tar")->save == "oci-layer:/home/alice/x.tar");
  CHECK(read("container-save=x.sqsh")->save == "x.sqsh");
  CHECK(read("container-workdir=~")->workdir == "/home/alice");
  CHECK(read("container-workdir=./sub/")->workdir == "/srv/dir/sub");
  CHECK(read("container-workdir=..")->workdir == "/srv");
  CHECK(read("container-workdir=/opt")->workdir == "/opt");
  CHECK(read("container-security=seccomp=~/p.json")->seccomp == "/home/alice/p.json");
  CHECK(read("container-mounts=~/data")->mounts[0].target == "/home/alice/data");
  for (const std::string option :
       {"save=$HOME/x.sqsh", "workdir=/scratch/$USER", "env-file=${HOME}/env", "name=$USER-dev",
        "security=seccomp=$HOME/p", "mounts=$HOME/x", "tmpfs-size=$SIZE",
        "save=./x-$(date).sqsh"}) {
    INFO(option);
    const auto refused = read("container-" + option);
    REQUIRE(!refused);
    CHECK(refused.error().message().starts_with("--container-" +
                                                option.substr(0, option.find('=')) + ": "));
    CHECK(refused.error().message().find("Slurm expands no variables in #SBATCH lines: write ") !=
          std::string::npos);
  }
  for (const std::string option : {"save=~bob/x.sqsh", "workdir=~bob", "env-file=~bob/env"})
    CHECK(read("container-" + option).error().message().find("only ~/ (the user's own home") !=
          std::string::npos);
  CHECK(read("container-env=A=$HOME")->environment.values.at("A") == "$HOME");
}

TEST_CASE("option_image_in_the_home_is_absolute") {
  const auto read = [](const std::string& image) {
    OptionTexts texts;
    REQUIRE(told(texts.add("container-image=" + image)).empty());
    auto request =
        texts.parse(ReadAt::submission,
                    {.home = "/home/alice", .here = {}, .variables = UserPaths::Variables::slurm});
    return request ? request->image : request.error().message();
  };
  CHECK(read("~/x.sqsh") == "/home/alice/x.sqsh");
  CHECK(read("oci-archive:~/x.tar:1") == "oci-archive:/home/alice/x.tar:1");
  CHECK(read("./x.sqsh") == "./x.sqsh");
  CHECK(read("~").find("is the home directory, not an image") != std::string::npos);
  CHECK(read("~bob/x").find("use the absolute path") != std::string::npos);
  CHECK(read("$HOME/x.sqsh").starts_with("--container-image: \"$HOME/x.sqsh\": \"$HOME\" is not"));
  CHECK(read("registry:5000/$NAME:1").find("\"$NAME\" is not expanded") != std::string::npos);
  CHECK(read("https://host/x.sif?a=$b") == "https://host/x.sif?a=$b");
}

TEST_CASE("option_rows_for_root_are_first") {
  CHECK(container_options()[0].name == std::string("container-image"));
  CHECK(container_options()[1].name == std::string("container-name"));
}

TEST_CASE("option_rows_are_consistent") {
  for (const ContainerOption& one : container_options()) {
    INFO(one.name);
    CHECK(one.is_switch() == (one.has_argument() != 1));
    if (one.opposite == nullptr) continue;
    REQUIRE(find_option(one.opposite) != nullptr);
    CHECK(find_option(one.opposite)->opposite == std::string(one.name));
    CHECK(find_option(one.opposite)->kind != one.kind);
  }
}

TEST_CASE("option_features_are_recognised_when_used") {
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
                                                  {"container-unsetenv", "X"},
                                                  {"container-device", "a.b/c=d"},
                                                  {"container-pull", "never"},
                                                  {"container-platform", "a/b"},
                                                  {"container-save", "x"},
                                                  {"container-unshare", "net"},
                                                  {"container-tmpfs-size", "10%"},
                                                  {"container-mpi", "host"},
                                                  {"container-batch", "script"},
                                                  {"container-env-file", "x"},
                                                  {"container-security", "seccomp=default"},
                                                  {"environment", "x"}};
  for (const ContainerOption& option : container_options())
    use(option, option.is_switch() ? "" : values.at(option.name));
  const auto names = feature_names();
  CHECK(used == std::set<std::string>(names.begin(), names.end()));
  CHECK_FALSE(used.contains("container-image"));
  CHECK_FALSE(used.contains("no-container-gpu"));
}
