#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "config/config.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

/// A directory with environment files.
class Files {
 public:
  Files() : directory_(std::filesystem::temp_directory_path() / "environment-XXXXXX") {
    REQUIRE(::mkdtemp(directory_.data()) != nullptr);
    places_.directories = {directory_};
    places_.variables = {{"USER", "ann"}, {"SCRATCH", "/scratch/ann"}, {"EMPTY", ""}};
    places_.paths.home = "/home/ann";
  }
  ~Files() { std::filesystem::remove_all(directory_); }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ + "/" + name + ".toml") << text;
  }
  [[nodiscard]] std::string path(const std::string& name) const {
    return directory_ + "/" + name + ".toml";
  }
  [[nodiscard]] const EnvironmentPlaces& places() const { return places_; }

  /// Returns the options of an environment, `NAME=VALUE` or `NAME`.
  [[nodiscard]] std::vector<std::string> options(const std::string& name) const {
    const auto environment = places_.read(name);
    INFO((environment ? std::string() : environment.error().message()));
    REQUIRE(environment);
    std::vector<std::string> all;
    for (const EnvironmentValue& value : environment->values) {
      if (!value.option.empty())
        all.push_back(value.option + (value.value.empty() ? "" : "=" + value.value));
    }
    return all;
  }
  /// Returns the error, with DIR for the directory.
  [[nodiscard]] std::string refused(const std::string& name) const {
    const auto environment = places_.read(name);
    REQUIRE_FALSE(environment);
    std::string message = environment.error().message();
    for (auto at = message.find(directory_); at != std::string::npos; at = message.find(directory_))
      message.replace(at, directory_.size(), "DIR");
    return message;
  }
  [[nodiscard]] std::string refused_text(const std::string& text) const {
    write("x", text);
    return refused("x");
  }

 private:
  std::string directory_;
  EnvironmentPlaces places_;
};

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("environment_file_keys_become_options") {
  const Files files;
  files.write("all", R"(
description = "for all"
image = "nvcr.io#nvidia/pytorch:24.01-py3"
mounts = ["/capstor", "${SCRATCH}:/scratch:ro,private", "/a b:/c"]
workdir = "$SCRATCH/run"
writable = false
entrypoint = "true"
devices = ["nvidia.com/gpu=all", "/dev/gdrdrv"]
[env]
NCCL_DEBUG = "INFO"
LIST = "1,2"
THREADS = 4
LD_PRELOAD = ""
[annotations]
com.hooks.aws_ofi_nccl.enabled = "true"
com.pyxis.entrypoint_log = "true"
com.hooks.ssh.enabled = "true"
com.hooks.ssh.authorize_ssh_key = "/home/ann/key.pub"
)");
  CHECK(files.options("all") ==
        Texts{"container-image=nvcr.io#nvidia/pytorch:24.01-py3", "container-mounts=/capstor",
              "container-mounts=/scratch/ann:/scratch:ro+private", "container-mounts=/a\\ b:/c",
              "container-workdir=/scratch/ann/run", "container-readonly", "container-entrypoint",
              "container-device=nvidia.com/gpu=all", "container-mounts=/dev/gdrdrv",
              "container-env=NCCL_DEBUG=INFO", "container-env=LIST=1\\,2",
              "container-env=THREADS=4", "container-unsetenv=LD_PRELOAD",
              "annotation=com.hooks.aws_ofi_nccl.enabled=true", "container-entrypoint-log",
              "container-ssh", "annotation=com.hooks.ssh.authorize_ssh_key=/home/ann/key.pub"});
  CHECK(files.places().read("all")->foreign_annotations().empty());
  CHECK(files.places().read("all")->values[2].origin == files.path("all") + ":4");
}

TEST_CASE("environment_file_variables_are_expanded") {
  const Files files;
  const auto value = [&](const std::string& text) {
    files.write("v", "workdir = '" + text + "'");
    return files.options("v").at(0).substr(18);
  };
  CHECK(value("/${USER}/$USER/x") == "/ann/ann/x");
  CHECK(value("/${NONE:-a${USER}b}") == "/aannb");
  CHECK(value("/${EMPTY:-a}${EMPTY-b}${NONE-}") == "/a");
  CHECK(value("/$${USER}$$1$") == "/${USER}$1$");
  CHECK(
      files.refused_text("image = \"${NONE}\"") ==
      "environment \"DIR/x.toml\", line 1: image: the variable NONE is not set (hint: export NONE, "
      "or write ${NONE:-DEFAULT})");
  CHECK(files.refused_text("image = '${USER%n}'").find("is not expanded") != std::string::npos);
  CHECK(files.refused_text("image = '${USER'").find("${ without }") != std::string::npos);
}

TEST_CASE("environment_file_adds_to_variables_of_the_container") {
  const Files files;
  files.write("a", R"([env]
PATH = "${PATH}:/a,${USER}"
LD_LIBRARY_PATH = "/l:$LD_LIBRARY_PATH"
USER = "$USER"
SCRATCH = "$SCRATCHY${SCRATCH}"
)");
  CHECK(files.refused("a").find("the variable SCRATCHY is not set") != std::string::npos);
  files.write("a", R"([env]
PATH = "${PATH}:/a,${USER}"
LD_LIBRARY_PATH = "/l:$LD_LIBRARY_PATH"
USER = "$USER"
A = "$A_B${A}"
)");
  CHECK(files.refused("a").find("the variable A_B is not set") != std::string::npos);
  files.write("a", R"([env]
PATH = "${PATH}:/a,${USER}"
LD_LIBRARY_PATH = "/l:$LD_LIBRARY_PATH"
USER = "$USER"
)");
  CHECK(files.options("a") ==
        Texts{"container-env=PATH+=:/a\\,ann",
              "container-env=+LD_LIBRARY_PATH=/l:", "container-env=USER=ann"});
  CHECK(files.places().read("a")->values[0].text == "${PATH}:/a,ann");
}

TEST_CASE("environment_file_inherits_from_base_environments") {
  const Files files;
  files.write("common", "image = 'a'\nmounts = ['/one', '/two']\nenv.A = '1'\nenv.B = '1'\n");
  files.write("second", "base_environment = 'common'\nmounts = ['/three', '/one']\nenv.B = '2'\n");
  files.write("last", "base_environment = ['common', 'second']\nimage = 'b'\nenv.A = ''\n");
  CHECK(files.options("last") == Texts{"container-mounts=/two", "container-mounts=/three",
                                       "container-mounts=/one", "container-env=B=2",
                                       "container-image=b", "container-unsetenv=A"});
}

TEST_CASE("environment_file_cycles_and_depth_are_refused") {
  const Files files;
  files.write("a", "base_environment = 'b'\n");
  files.write("b", "\nbase_environment = ['a']\n");
  CHECK(files.refused("a") ==
        "environment \"DIR/b.toml\", line 2: base_environment: is a cycle: \"DIR/a.toml\" > "
        "\"DIR/b.toml\" > \"DIR/a.toml\" (hint: remove \"a\" from base_environment)");
  for (int i = 0; i < 12; ++i)
    files.write("l" + std::to_string(i), "base_environment = 'l" + std::to_string(i + 1) + "'\n");
  files.write("l12", "image = 'a'");
  CHECK(files.options("l2") == Texts{"container-image=a"});
  CHECK(files.refused("l1").find("more than 10 levels") != std::string::npos);
}

TEST_CASE("environment_file_mistakes_name_file_and_line") {
  const Files files;
  const std::string begin = "environment \"DIR/x.toml\", line 2: ";
  CHECK(files.refused_text("\nmount = ['/a']") ==
        begin + "mount: unknown key (hint: did you mean \"mounts\"?)");
  CHECK(files.refused_text("\nzzzzzzzzzzzz = 1").find("described in spank-container(7)") !=
        std::string::npos);
  CHECK(files.refused_text("\nwritable = 'on'") == begin + "writable: expected true or false");
  CHECK(files.refused_text("\nmounts = 1") ==
        begin + "mounts: expected a list: [\"...\", \"...\"]");
  CHECK(files.refused_text("\nmounts = ['/a', 1]") ==
        begin + "mounts: expected a list: [\"...\", \"...\"]");
  CHECK(files.refused_text("\nimage = ['a']") == begin + "image: expected text in quotes");
  CHECK(files.refused_text("\nenv = 'a'").find("env: unknown key") != std::string::npos);
  CHECK(files.refused_text("\nenv.A = [1]") == begin + "env.A: expected text in quotes");
  CHECK(files.refused_text("\nenv.'A B' = '1'") ==
        begin + "env.A B: is not the name of a variable");
  CHECK(files.refused_text("[env]\nA = 'x',\n").find("line 2: not valid TOML") !=
        std::string::npos);
  files.write("pytorch", "image = 'a'");
  CHECK(files.refused("pytorhc").find("(hint: did you mean \"pytorch\"?)") != std::string::npos);
  CHECK(files.refused("./none.toml") ==
        "read environment \"./none.toml\": no such file or directory");
  CHECK(files.places().list() == std::map<std::string, std::string>{
                                     {"pytorch", files.path("pytorch")}, {"x", files.path("x")}});
}

TEST_CASE("environment_annotations_of_others_are_named") {
  const Files files;
  files.write("a", R"(
[annotations.com.hooks.ssh]
enabled = true
port = 15263
[annotations.com.hooks.cxi]
enabled = "false"
[annotations.com.hooks.dcgm]
enabled = "false"
)");
  CHECK(files.places().read("a")->foreign_annotations() ==
        Texts{"com.hooks.ssh.port", "com.hooks.cxi.enabled"});
}

TEST_CASE("environment_passes_through_a_variable") {
  const Files files;
  files.write("a", "image = 'a,b;c'\nwritable = true\nenv.A = \"1\\n%2 \"\n");
  files.write("b", "image = 'b'\n");
  const auto record = [&](const char* name) {
    const auto one = files.places().read(name)->record();
    return one ? *one : one.error().message();
  };
  const std::string variable = record("b") + ";" + record("a") + ";" + record("b");
  CHECK(variable.find_first_of(" \n") == std::string::npos);
  const auto found = NamedEnvironment::find(variable, "a");
  REQUIRE(found);
  CHECK(found->file == files.path("a"));
  REQUIRE(found->values.size() == 3);
  CHECK(found->values[0].option == "container-image");
  CHECK(found->values[0].value == "a,b;c");
  CHECK(found->values[1].value.empty());
  CHECK(found->values[2].value == "A=1\n%2 ");
  CHECK(found->values[2].origin == files.path("a") + ":3");
  CHECK(NamedEnvironment::find(variable, "b")->values.size() == 1);
  CHECK_FALSE(NamedEnvironment::find(variable, "c"));
  CHECK_FALSE(NamedEnvironment::find("", "a"));
  files.write("large", "image = 'a'\nenv.A = '" + std::string(100'000, 'x') + "'\n");
  CHECK(record("large").find("is too large (hint: ") != std::string::npos);
}
