#include "launch/end_report.hpp"

#include "unit/catch2_compat.hpp"

using namespace spc;

TEST_CASE("end_report_finds_names_of_files_in_commands_and_scripts") {
  using Words = std::vector<std::string>;
  CHECK(possible_files("python3 -u train.py --config=conf/a.yaml", false) ==
        Words{"python3", "train.py", "conf/a.yaml"});
  CHECK(possible_files("cat <in.txt >out.txt 2>&1; exec \"$HOME/x\" . ./ 'a b'", false) ==
        Words{"cat", "in.txt", "2", "exec", "a", "b"});
  CHECK(possible_files("#!/bin/sh\n  # old.py\nrun new.py # now\r\n", true) ==
        Words{"run", "new.py", "#", "now"});
  CHECK(possible_files("", true).empty());
}
