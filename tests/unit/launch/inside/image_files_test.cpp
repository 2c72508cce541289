#include "launch/task/image_files.hpp"
#include "launch/site/enroot_compat.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "launch/spec/environment.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

using Variables = std::map<std::string, std::string>;

ShellAssignments parsed(const std::string& script, const Variables& known = {}) {
  return parse_shell_assignments(script, known);
}

}  // namespace

TEST_CASE("enroot_environment_file_is_parsed") {
  CHECK(parse_environment_file("# comment\nA=1\nB=\"two words\"\n C='x'\nENROOT_X=1\nno "
                               "assignment\n=3\n1X=4\nD=a=b\nE=\nF=\"open\n") ==
        std::vector<std::string>{"A=1", "B=two words", "C=x", "D=a=b", "E=", "F=\"open"});
}

TEST_CASE("enroot_rc_file_gives_workdir") {
  CHECK(workdir_in_rc("#!/bin/sh\nmkdir -p \"/work space\" 2> /dev/null\ncd \"/work space\" && "
                      "unset OLDPWD || exit 1\n") == "/work space");
  CHECK(workdir_in_rc("#!/bin/sh\nexec \"$@\"\n").empty());
  CHECK(workdir_in_rc("cd $(mktemp)\ncd relative\n").empty());
}

TEST_CASE("apptainer_scripts_give_plain_assignments") {
  CHECK(parsed("#!/bin/sh\nexport A=1\nB='two words'\nexport C=\"x y\"; export D=z\n").variables ==
        Variables{{"A", "1"}, {"B", "two words"}, {"C", "x y"}, {"D", "z"}});
  CHECK(parsed("export LC_ALL\n").left_out == 0);
  // As written by `apptainer build` for a docker image.
  CHECK(parsed("export PATH=\"/usr/bin:/bin\"\nexport LANG=\"${LANG:-\"C.UTF-8\"}\"\n").variables ==
        Variables{{"PATH", "/usr/bin:/bin"}, {"LANG", "C.UTF-8"}});
}

TEST_CASE("apptainer_assignments_expand_variables") {
  const Variables known{{"PATH", "/bin"}, {"EMPTY", ""}};
  CHECK(parsed("export PATH=/opt/bin:$PATH\nexport AGAIN=${PATH}:/x", known).variables ==
        Variables{{"PATH", "/opt/bin:/bin"}, {"AGAIN", "/opt/bin:/bin:/x"}});
  CHECK(parsed("A=[$NOTHING]\nB=${EMPTY:-full}\nC=${EMPTY-full}\nD='$PATH'\nE=\\$PATH", known)
            .variables ==
        Variables{{"A", "[]"}, {"B", "full"}, {"C", ""}, {"D", "$PATH"}, {"E", "$PATH"}});
}

TEST_CASE("apptainer_lines_needing_a_shell_are_reported") {
  for (const char* line : {"A=$(id)", "A=`id`", "export A=\"$(id)\"", "A=${B/x/y}", "source other",
                           "A=1 | cat", "A=\"open", "A=x\\"}) {
    INFO(line);
    const auto found = parsed(std::string("export GOOD=1\n") + line + "\nexport ALSO=2\n");
    CHECK(found.left_out == 2);
    CHECK(found.variables == Variables{{"GOOD", "1"}, {"ALSO", "2"}});
  }
  const auto found = parsed(
      "if [ -z \"$A\" ]; then\n  export A=1\nfi\nfor i in 1 2; do\nB=2\ndone\nf() "
      "{\nC=3\n}\nexport D=4\n");
  CHECK(found.variables == Variables{{"D", "4"}});
  CHECK(found.left_out == 1);
}

TEST_CASE("multi_prog_line_is_reported_by_its_first_rank") {
  using Words = std::vector<std::string>;
  const Words command{"mp.conf", "# comment\n0 echo one\n1,3-4 'cat' /x\n*  /opt/run %t\n"};
  CHECK(programs_told_by({0, 1}, command) == Words{"echo", "cat"});
  CHECK(programs_told_by({2, 3}, command) == Words{"/opt/run"});
  CHECK(programs_told_by({3, 4, 5}, command).empty());
  CHECK(programs_told_by({0, 1}, {"mp.conf", "0-8:2 a \\\n 1 b\n1 c"}) == Words{"a", "c"});
}

TEST_CASE("program_of_a_step_is_reported_by_rank_0") {
  using Words = std::vector<std::string>;
  CHECK(programs_told_by({0, 1}, {"sh", "-c", "0 echo\n1 echo"}) == Words{"sh"});
  CHECK(programs_told_by({0}, {"sort", "0"}) == Words{"sort"});
  CHECK(programs_told_by({0}, {"x", "0 a\nb"}) == Words{"x"});
  CHECK(programs_told_by({1}, {"x"}).empty());
  CHECK(programs_told_by({0}, {}).empty());
}

namespace {

/// A directory of programs; as the user, the host's are those of an image.
class Programs {
 public:
  Programs() { std::filesystem::create_directories(place_); }
  ~Programs() { std::filesystem::remove_all(place_); }
  Programs(const Programs&) = delete;
  Programs& operator=(const Programs&) = delete;

  void add(const std::string& name, const std::string& text, mode_t mode = 0755) const {
    std::ofstream(place_ + "/" + name) << text;
    ::chmod((place_ + "/" + name).c_str(), mode);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return place_ + "/" + name; }
  /// Returns the reason and the hint, without the program's name.
  [[nodiscard]] std::string why(const std::string& program) const {
    const std::string line = why_missing(program, place_, "base:1");
    const auto behind = line.find("\": ");
    return behind == std::string::npos ? line : line.substr(behind + 3);
  }

 private:
  std::string place_ = "/tmp/programs-test-" + std::to_string(::getpid());
};

}  // namespace

TEST_CASE("program_misspelt_gets_the_nearest_along_path") {
  const Programs programs;
  for (const char* name :
       {"python3", "python3.11", "python3-config", "nvidia-smi", "ls", "torchrun"})
    programs.add(name, "");
  programs.add("pytho", "", 0644);
  const auto hint = [&](const char* typed) {
    const std::string why = programs.why(typed);
    return why.substr(why.find("(hint: "));
  };
  CHECK(hint("python") == "(hint: did you mean \"python3\"?)");
  CHECK(hint("pyhton3") == "(hint: did you mean \"python3\"?)");
  CHECK(hint("sl") != "(hint: did you mean \"ls\"?)");
  programs.add("grep", "");
  CHECK(hint("gerp") == "(hint: did you mean \"grep\"?)");
  CHECK(hint("pyton3") == "(hint: did you mean \"python3\"?)");
  CHECK(hint("nvidia_smi") == "(hint: did you mean \"nvidia-smi\"?)");
  CHECK(hint("torch-run") == "(hint: did you mean \"torchrun\"?)");
  CHECK(hint("python2.7") != "(hint: did you mean \"python3-config\"?)");
  for (const char* far : {"lx", "perl", "ruby", "nvcc"}) {
    INFO(far);
    CHECK(hint(far).starts_with("(hint: PATH is "));
  }
}

TEST_CASE("program_missing_along_the_usual_path_needs_another_image") {
  CHECK(why_missing("qqzz-of-no-image", kDefaultPath, "x")
            .ends_with("(hint: use an image that has it, or build one: scontainer build)"));
}

TEST_CASE("program_that_cannot_be_executed_gets_reason_and_cure") {
  const Programs programs;
  const auto why = [&](const std::string& text, mode_t mode = 0755) {
    programs.add("x", text, mode);
    return programs.why("x");
  };
  CHECK(why("#!/bin/sh\n").empty());
  CHECK(why("#!/bin/sh").empty());
  CHECK(why("#! /bin/sh -e\ntrue\r\n").empty());
  const std::string windows =
      "its first line ends in a carriage return: the script has Windows line ends (hint: sed -i "
      "'s/\\r$//' x)";
  CHECK(why("#!/bin/sh\r\ntrue\r\n") == windows);
  CHECK(why("#!/usr/bin/env python3\r\n") == windows);
  CHECK(why("#!/no/such -x\n") ==
        "its interpreter \"/no/such\" is not in image \"base:1\" (hint: its first line names it)");
  CHECK(why("echo\n") ==
        "it is a text whose first line names no interpreter (hint: begin it with #!/bin/sh)");
  CHECK(why("") == "the file is empty (hint: copy it again)");
  CHECK(why("#!/bin/sh\n", 0644) == "the file is not executable (hint: chmod +x x)");
  CHECK(programs.why("/tmp") == "it is a directory (hint: name a program)");
  CHECK(programs.why(programs.path("none")) ==
        "neither in image \"base:1\" nor mounted (hint: if the host has it: --container-mounts=" +
            programs.path("none") + ")");
  CHECK(programs.why("/no/such/x")
            .ends_with("(hint: if the host has it: --container-mounts=/no/such)"));
  CHECK(programs.why("/x").ends_with("--container-mounts=/x)"));
  CHECK(why_missing("./x.sh", "", "x", true).ends_with("container (hint: check the name: ls)"));
  CHECK(programs.why("./x.sh").ends_with("(hint: --container-mount-cwd, if ./ has it)"));
}

TEST_CASE("program_of_another_processor_is_named") {
  const Programs programs;
  const auto why = [&](char order, int low, int high) {
    std::string head("\177ELF\2\1\1", 7);
    head[5] = order;
    head.resize(64);
    head[16] = 2;
    head[18] = static_cast<char>(low);
    head[19] = static_cast<char>(high);
    programs.add("x", head);
    return programs.why("x");
  };
#if defined(__x86_64__)
  CHECK(why(1, 183, 0) ==
        "it is a program for aarch64, and this node is x86-64 (hint: build it on a node, or use "
        "its build for this processor)");
  CHECK(why(2, 0, 22).starts_with("it is a program for machine 22, and"));
  CHECK(why(1, 62, 0).empty());
  CHECK(why(1, 3, 0).empty());
#else
  CHECK(why(1, 62, 0).starts_with("it is a program for x86-64, and"));
#endif
}
