#include "launch/inside/image_files.hpp"
#include "launch/site/enroot_text.hpp"

#include "unit/test.hpp"

using namespace spc;

namespace {

using Variables = std::map<std::string, std::string>;

ShellAssignments parsed(const std::string& script, const Variables& known = {}) {
  return parse_shell_assignments(script, known);
}

}  // namespace

TEST_CASE("enroot's environment file gives its assignments") {
  CHECK(parse_environment_file("# comment\nA=1\nB=\"two words\"\n C='x'\nENROOT_X=1\nno "
                               "assignment\n=3\n1X=4\nD=a=b\nE=\nF=\"open\n") ==
        std::vector<std::string>{"A=1", "B=two words", "C=x", "D=a=b", "E=", "F=\"open"});
}

TEST_CASE("enroot's rc file says the work directory") {
  CHECK(workdir_in_rc("#!/bin/sh\nmkdir -p \"/work space\" 2> /dev/null\ncd \"/work space\" && "
                      "unset OLDPWD || exit 1\n") == "/work space");
  CHECK(workdir_in_rc("#!/bin/sh\nexec \"$@\"\n").empty());
  CHECK(workdir_in_rc("cd $(mktemp)\ncd relative\n").empty());
}

TEST_CASE("Apptainer's scripts give their plain assignments") {
  CHECK(parsed("#!/bin/sh\nexport A=1\nB='two words'\nexport C=\"x y\"; export D=z\n").variables ==
        Variables{{"A", "1"}, {"B", "two words"}, {"C", "x y"}, {"D", "z"}});
  CHECK(parsed("export LC_ALL\n").left_out == 0);
  // As `apptainer build` writes what a docker image had.
  CHECK(parsed("export PATH=\"/usr/bin:/bin\"\nexport LANG=\"${LANG:-\"C.UTF-8\"}\"\n").variables ==
        Variables{{"PATH", "/usr/bin:/bin"}, {"LANG", "C.UTF-8"}});
}

TEST_CASE("assignments may refer to variables") {
  const Variables known{{"PATH", "/bin"}, {"EMPTY", ""}};
  CHECK(parsed("export PATH=/opt/bin:$PATH\nexport AGAIN=${PATH}:/x", known).variables ==
        Variables{{"PATH", "/opt/bin:/bin"}, {"AGAIN", "/opt/bin:/bin:/x"}});
  CHECK(parsed("A=[$NOTHING]\nB=${EMPTY:-full}\nC=${EMPTY-full}\nD='$PATH'\nE=\\$PATH", known)
            .variables ==
        Variables{{"A", "[]"}, {"B", "full"}, {"C", ""}, {"D", "$PATH"}, {"E", "$PATH"}});
}

TEST_CASE("what takes a shell is left out and named by its line") {
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
