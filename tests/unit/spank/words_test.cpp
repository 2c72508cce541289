#include <cstdlib>
#include <map>

#include "spank/job_options.hpp"
#include "unit/catch2_compat.hpp"

using namespace spank_container;

namespace {

using Variables = std::map<std::string, std::string>;

bool find(const char* name, std::string& value, void* arg) {
  const auto& all = *static_cast<const Variables*>(arg);
  const auto found = all.find(name);
  if (found != all.end()) value = found->second;
  return found != all.end();
}

GivenOption given(const std::string& name, const std::string& value = "") {
  for (size_t row = 0; row < option_table().size(); ++row) {
    if (option_table()[row].name == name) return {row, value};
  }
  FAIL("no option " << name);
  throw;
}

std::string slurm(const std::string& name) {
  return "SLURM_SPANK__SLURM_SPANK_OPTION_spank_container_container_" + name;
}

using Given = std::vector<GivenOption>;

Given what_counts(const Given& handed_over, Variables variables) {
  return without_beaten(handed_over, find, &variables);
}

}  // namespace

TEST_CASE("command_line_beats_options_of_sbatch") {
  const Variables variables{
      {slurm("image"), "old"}, {slurm("workdir"), "/w"}, {slurm("readonly"), "(null)"}};
  const auto old = given("container-image", "old");
  const auto now = given("container-image", "new");
  CHECK(what_counts({old, now}, variables) == Given{now});
  CHECK(what_counts({old}, variables) == Given{old});
  CHECK(what_counts({old, old}, variables) == Given{old});
  CHECK(what_counts({given("container-readonly"), given("container-writable")}, variables) ==
        Given{given("container-writable")});
  CHECK(what_counts({given("container-workdir", "/w"), old, now}, variables) ==
        Given{given("container-workdir", "/w"), now});
}

TEST_CASE("variable_set_in_job_overrides_option_of_sbatch") {
  const auto root = given("container-remap-root");
  const auto no_root = given("no-container-remap-root");
  Variables variables{{slurm("remap_root"), "(null)"}, {"PYXIS_CONTAINER_REMAP_ROOT", "0"}};
  CHECK(what_counts({root}, variables) == Given{root});  // submitted without this plugin
  note_variables(find, &variables);
  variables["SLURM_SPANK_SCONTAINER_VARIABLES"] = ::getenv("SLURM_SPANK_SCONTAINER_VARIABLES");
  CHECK(what_counts({root}, variables) == Given{root});  // the variable is as old as the option
  variables["PYXIS_CONTAINER_REMAP_ROOT"] = "no";
  CHECK(what_counts({root}, variables).empty());
  CHECK(what_counts({root, root}, variables) == Given{root});  // typed in the job
  CHECK(what_counts({root, no_root}, variables) == Given{no_root});
  variables["PYXIS_CONTAINER_REMAP_ROOT"] = "";
  CHECK(what_counts({root}, variables) == Given{root});
  variables["SCONTAINER_WRITABLE"] = "1";
  CHECK(what_counts({given("container-readonly")}, variables) ==
        Given{given("container-readonly")});
  variables[slurm("readonly")] = "(null)";
  CHECK(what_counts({given("container-readonly")}, variables).empty());
}

TEST_CASE("command_line_values_given_twice_stay_two") {
  const Given both{given("container-image", "a"), given("container-image", "b")};
  CHECK(what_counts(both, {}) == both);
  CHECK(what_counts(both, {{slurm("image"), "b"}}) == both);
  CHECK(what_counts({given("container-mount-home"), given("no-container-mount-home")}, {}).size() ==
        2);
}

TEST_CASE("option_list_cut_by_slurm_is_complete_on_node") {
  const Given typed{given("container-mounts", "/a"), given("container-env", "A"),
                    given("container-mounts", "/b,/c")};
  send_beside(typed, typed);
  REQUIRE(::getenv("SLURM_SPANK_SCONTAINER_MOUNTS") != nullptr);
  CHECK(::getenv("SLURM_SPANK_SCONTAINER_MOUNTS") == std::string("/a,/b,/c"));
  CHECK(::getenv("SLURM_SPANK_SCONTAINER_ENV") == nullptr);

  Variables node{{"SLURM_SPANK_SCONTAINER_MOUNTS", "/a,/b,/c"}, {slurm("mounts"), "/b,/c"}};
  const Given latest{given("container-mounts", "/b,/c")};
  const Given whole{given("container-mounts", "/a,/b,/c")};
  CHECK(whole_given(latest, find, &node) == whole);
  // In an srun of that batch job the list continues, unless the srun has mounts of its own.
  CHECK(without_beaten(latest, find, &node) == whole);
  send_beside(whole, latest);
  CHECK(::getenv("SLURM_SPANK_SCONTAINER_MOUNTS") == std::string("/a,/b,/c"));
  const Given other{given("container-mounts", "/b,/c"), given("container-mounts", "/d")};
  CHECK(without_beaten(other, find, &node) == Given{given("container-mounts", "/d")});
  send_beside(without_beaten(other, find, &node), other);
  CHECK(::getenv("SLURM_SPANK_SCONTAINER_MOUNTS") == nullptr);
  CHECK(whole_given(Given{given("container-mounts", "/d")}, find, &node) ==
        Given{given("container-mounts", "/d")});
}

TEST_CASE("option_overridden_by_command_line_is_ignored_on_node") {
  const Given handed_over{given("container-readonly"), given("container-writable")};
  send_beside(what_counts(handed_over, {{slurm("readonly"), "(null)"}}), handed_over);
  REQUIRE(::getenv("SLURM_SPANK_SCONTAINER_BEATEN") != nullptr);
  Variables node{{"SLURM_SPANK_SCONTAINER_BEATEN", ::getenv("SLURM_SPANK_SCONTAINER_BEATEN")}};
  CHECK(whole_given(handed_over, find, &node) == Given{given("container-writable")});
  send_beside(handed_over, handed_over);
  CHECK(::getenv("SLURM_SPANK_SCONTAINER_BEATEN") == nullptr);
}

TEST_CASE("plugstack_conf_pyxis_arguments_are_parsed") {
  const std::vector<std::string> words{
      "runtime_path=/run/pyxis", "execute_entrypoint=1", "container_scope=job", "sbatch_support=no",
      "use_enroot_load=0",       "importer=/opt/get",    "use_squashfuse=1",    "slurm=y"};
  const Settings settings = read_settings(words);
  CHECK(settings.refused.empty());
  CHECK_FALSE(settings.in_allocator);
  CHECK(settings.site == std::vector<std::string>{"entrypoint=node", "container_scope=job",
                                                  "importer=/opt/get", "slurm=true"});
}

TEST_CASE("plugstack_conf_unknown_argument_is_refused") {
  for (const std::string word :
       {"messages=loud", "container_scope=", "execute_entrypoint=TRUE", "runtimepath=/x",
        "nonsense", "=", "", "messages=own|pyxis", "messages=|"}) {
    const std::vector<std::string> words{"sbatch_support=1", word};
    CHECK(read_settings(words).refused == "plugstack.conf: unknown argument \"" + word +
                                              "\" (hint: the administrator must remove it)");
  }
}

TEST_CASE("switch_with_value_is_found_before_the_command") {
  using namespace std::string_literals;
  CHECK(switch_before("srun\0--container-image=x\0--container-writable\0true\0"s, "true") ==
        "container-writable");
  CHECK(switch_before("srun\0--no-container-mount-home\0no\0sh\0"s, "no") ==
        "no-container-mount-home");
  CHECK(switch_before("srun\0--container-writable\0-n1\0true\0"s, "true").empty());
  CHECK(switch_before("srun\0--container-image\0true\0"s, "true").empty());
  CHECK(switch_before("srun\0--overcommit\0true\0"s, "true").empty());
  CHECK(hint_about_switch_value(0, nullptr).empty());
}

TEST_CASE("oci_option_of_slurm_is_found_on_command_line") {
  using namespace std::string_literals;
  CHECK(oci_option_in("srun\0--container=ubuntu\0true\0"s) == "ubuntu");
  CHECK(oci_option_in("srun\0-N\0002\0--container\0ubuntu\0true\0"s) == "ubuntu");
  CHECK(oci_option_in("srun\0--mpi=none\0docker\0run\0--container=x\0"s).empty());
  CHECK(oci_option_in("srun\0-n\0001\0prog\0--container\0x\0"s).empty());
  CHECK(oci_option_in("srun\0--\0--container=x\0"s).empty());
  CHECK(oci_option_in("srun\0--container-image=x\0true\0"s).empty());
  CHECK(oci_option_in("srun\0--container\0"s).empty());
  CHECK(oci_option_in(""s).empty());
}
