#include "launch/spec/environment.hpp"
#include "protocol/wire_error.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
using Values = std::map<std::string, std::string>;

namespace {

const UserIdentity kAlice{.uid = 2001,
                          .gid = 2001,
                          .name = "alice",
                          .home = "/home/alice",
                          .shell = "/bin/zsh",
                          .group_entries = {}};

ImageSettings image_with(std::vector<std::string> environment) {
  return ImageSettings{.environment = std::move(environment), .workdir = ""};
}

EnvironmentWishes wishes(std::string_view list) {
  EnvironmentWishes parsed;
  if (!list.empty()) REQUIRE(parsed.add(list));
  return parsed;
}

Environment merged(const Values& job, const ImageSettings& image, std::string_view user = "",
                   std::string_view site = "") {
  return merge_environment(job, image, wishes(site), wishes(user), kAlice, "/work");
}

/// Returns the task's resulting environment.
Values applied(Values job, const ImageSettings& image, std::string_view user = "",
               std::string_view site = "") {
  const auto change = change_to(merged(job, image, user, site), job);
  for (const auto& name : change.unset) job.erase(name);
  for (const auto& [name, value] : change.set) job[name] = value;
  return job;
}

}  // namespace

// outcome 71 accepted: Env with loader variables
TEST_CASE("environment_image_variable_wins_over_job") {
  CHECK(applied({{"CUDA_HOME", "/host"}}, image_with({"CUDA_HOME=/image"}))["CUDA_HOME"] ==
        "/image");
}

TEST_CASE("environment_job_variable_unknown_to_image_is_kept") {
  CHECK(applied({{"SLURM_PROCID", "3"}}, image_with({}))["SLURM_PROCID"] == "3");
}

TEST_CASE("environment_container_env_keeps_job_value") {
  CHECK(applied({{"A", "job"}}, image_with({"A=image"}), "A")["A"] == "job");
  CHECK(applied({}, image_with({"A=image"}), "A")["A"] == "image");
  CHECK(applied({{"PATH", "/job"}}, image_with({"PATH=/image"}), "PATH")["PATH"] == "/job");
}

TEST_CASE("environment_host_language_is_dropped_unless_kept") {
  const Values job{{"LANG", "de_DE.UTF-8"}, {"LC_ALL", "de_DE.UTF-8"}};
  CHECK_FALSE(applied(job, image_with({})).contains("LANG"));
  CHECK(applied(job, image_with({"LANG=C.UTF-8"}))["LANG"] == "C.UTF-8");
  CHECK(applied(job, image_with({}), "LANG")["LANG"] == "de_DE.UTF-8");
}

TEST_CASE("environment_language_of_host_is_dropped") {
  const Values job{{"LC_CTYPE", "UTF-8"}, {"LC_TIME", "de_DE"}, {"LCD", "1"}};
  CHECK(applied(job, image_with({"LC_TIME=C"})) ==
        applied({{"LCD", "1"}}, image_with({"LC_TIME=C"})));
  CHECK(applied(job, image_with({}), "LC_CTYPE")["LC_CTYPE"] == "UTF-8");
}

TEST_CASE("environment_user_is_never_the_images") {
  const auto image = image_with(
      {"HOME=/home/jovyan", "USER=jovyan", "LOGNAME=jovyan", "SHELL=/bin/fish", "PWD=/image"});
  auto task = applied({{"HOME", "/elsewhere"}}, image);
  CHECK(task["HOME"] == "/home/alice");
  CHECK(task["USER"] == "alice");
  CHECK(task["LOGNAME"] == "alice");
  CHECK(task["SHELL"] == "/bin/zsh");
  CHECK(task["PWD"] == "/work");
  CHECK(applied({}, image, "", "HOME=/site")["HOME"] == "/site");
  CHECK(applied({{"HOME", "/job"}}, image, "HOME")["HOME"] == "/job");
  CHECK(merge_environment({}, image, {}, {}, UserIdentity{}, "/").contains("USER") == false);
}

TEST_CASE("environment_slurm_is_never_the_images") {
  const Values job{{"SLURM_JOB_ID", "7"}, {"SLURMD_NODENAME", "node01"}};
  auto task = applied(job, image_with({"SLURM_JOB_ID=999", "SLURM_PROCID=7", "SLURMD_NODENAME=x",
                                       "PMIX_RANK=3", "PMIX_MCA_gds=hash"}));
  CHECK(task["SLURM_JOB_ID"] == "7");
  CHECK(task["SLURMD_NODENAME"] == "node01");
  CHECK_FALSE(task.contains("SLURM_PROCID"));
  CHECK_FALSE(task.contains("PMIX_RANK"));
  CHECK(task["PMIX_MCA_gds"] == "hash");
}

TEST_CASE("environment_launch_variables_are_one_set") {
  const auto image =
      image_with({"RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=localhost", "LOCAL_RANK=0"});
  const auto alone = applied({{"SLURM_STEP_NUM_TASKS", "1"}}, image);
  CHECK(alone.at("RANK") == "0");
  CHECK(alone.at("MASTER_ADDR") == "localhost");
  const auto several = applied({{"SLURM_STEP_NUM_TASKS", "2"}}, image);
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK"})
    CHECK_FALSE(several.contains(name));
  auto given = applied({{"SLURM_STEP_NUM_TASKS", "1"}, {"MASTER_ADDR", "node01"}}, image);
  CHECK(given["MASTER_ADDR"] == "node01");
  CHECK_FALSE(given.contains("RANK"));
  CHECK(applied({{"SLURM_STEP_NUM_TASKS", "2"}}, image, "RANK=5", "WORLD_SIZE=6")["RANK"] == "5");
}

TEST_CASE("environment_gpus_are_the_jobs_if_set") {
  const auto image = image_with({"CUDA_VISIBLE_DEVICES=0", "ZE_AFFINITY_MASK=0"});
  auto task = applied({{"CUDA_VISIBLE_DEVICES", "2,3"}}, image);
  CHECK(task["CUDA_VISIBLE_DEVICES"] == "2,3");
  CHECK(task["ZE_AFFINITY_MASK"] == "0");
}

TEST_CASE("environment_origin_names_the_class") {
  const auto task = merged({{"SLURM_JOB_ID", "7"}, {"RANK", "1"}, {"CUDA_VISIBLE_DEVICES", "1"}},
                           image_with({"SLURM_JOB_ID=9", "HOME=/x"}));
  CHECK(name_of(task.at("SLURM_JOB_ID").origin) == std::string("slurm"));
  CHECK(task.at("SLURM_JOB_ID").over_image);
  CHECK(name_of(task.at("HOME").origin) == std::string("user"));
  CHECK(task.at("HOME").over_image);
  CHECK(name_of(task.at("RANK").origin) == std::string("launch"));
  CHECK(name_of(task.at("CUDA_VISIBLE_DEVICES").origin) == std::string("gpu"));
  CHECK_FALSE(task.at("RANK").over_image);
  CHECK(name_of(Origin::job) == std::string("job"));
}

TEST_CASE("environment_user_variables_are_the_containers") {
  auto task = applied({{"PATH", "/opt/slurm/bin"}, {"HOME", "/elsewhere"}, {"PWD", "/job"}},
                      image_with({}));
  CHECK(task["HOME"] == "/home/alice");
  CHECK(task["USER"] == "alice");
  CHECK(task["LOGNAME"] == "alice");
  CHECK(task["SHELL"] == "/bin/zsh");
  CHECK(task["PWD"] == "/work");
  CHECK(task["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
  CHECK(applied({}, image_with({"PATH=/image/bin"}))["PATH"] == "/image/bin");
}

// outcome 72 accepted: Env malformed, huge, of 5000 entries
TEST_CASE("environment_malformed_image_variable_is_skipped") {
  CHECK(applied({}, image_with({"=x", "novalue"})).contains("novalue") == false);
}

TEST_CASE("image_settings_are_parsed_by_record") {
  const std::string records("env=A=1\0env=B=\0workdir=/w\0unknown=x\0", 36);
  const auto settings = ImageSettings::parse(records);
  CHECK(settings.environment == std::vector<std::string>{"A=1", "B="});
  CHECK(settings.workdir == "/w");
}

TEST_CASE("image_entrypoint_of_one_empty_word_is_none") {
  const auto blank = ImageSettings::parse(std::string("entrypoint=\0cmd=\0", 17));
  CHECK((blank.entrypoint.empty() && blank.command.empty()));
  const auto words =
      ImageSettings::parse(std::string("entrypoint=\0entrypoint=x\0cmd=\0cmd=\0", 35));
  CHECK(words.entrypoint == std::vector<std::string>{"", "x"});
  CHECK(words.command == std::vector<std::string>{"", ""});
}

TEST_CASE("environment_container_env_accepts_patterns") {
  const Values job{{"NCCL_DEBUG", "job"}, {"NCCL", "job"}, {"A1", "job"}, {"A12", "job"}};
  auto task = applied(job, image_with({"NCCL_DEBUG=image", "NCCL=image", "A1=image", "A12=image"}),
                      "NCCL_*,A?");
  CHECK(task["NCCL_DEBUG"] == "job");
  CHECK(task["NCCL"] == "image");
  CHECK(task["A1"] == "job");
  CHECK(task["A12"] == "image");
}

TEST_CASE("environment_pattern_matches_as_in_shell") {
  CHECK(matches_pattern("*", ""));
  CHECK(matches_pattern("*_TOKEN", "MY_TOKEN"));
  CHECK(matches_pattern("A*B*C", "AxxBBxC"));
  CHECK(matches_pattern("**", "x"));
  CHECK_FALSE(matches_pattern("A*B*C", "AxxBB"));
  CHECK_FALSE(matches_pattern("A?", "A"));
  CHECK_FALSE(matches_pattern("", "A"));
}

TEST_CASE("environment_container_env_sets_values") {
  auto task = applied({{"A", "job"}, {"HOME", "/job"}}, image_with({"A=image"}),
                      "A=1,HOME=/mine,NEW=,EQ=a=b");
  CHECK(task["A"] == "1");
  CHECK(task["HOME"] == "/mine");
  CHECK(task["NEW"].empty());
  CHECK(task["EQ"] == "a=b");
}

TEST_CASE("environment_values_with_commas_are_quoted") {
  CHECK(wishes("A=1\\,2,B=\"x,\\\"y\\\"\",C=C:\\d").values ==
        Values{{"A", "1,2"}, {"B", "x,\"y\""}, {"C", "C:\\d"}});
  CHECK(wishes("\"A=1,2\",B").values == Values{{"A", "1,2"}});
}

TEST_CASE("environment_invalid_container_env_is_refused") {
  for (const char* list : {"", ",", "A,", ",A", "A,,B", "=x", "1A", "A B", "A*=x", "A=\"x",
                           "A=\"x\"y", "A=1,\"b\":2}", "\"A*=1\""}) {
    INFO(list);
    EnvironmentWishes parsed;
    CHECK_FALSE(parsed.add(list));
  }
  EnvironmentWishes parsed;
  CHECK(parsed.add("A,,B").error().message() ==
        "invalid format: \"A,,B\" (hint: NAME, PATTERN, NAME=VALUE or -NAME, joined by commas)");
}

TEST_CASE("environment_site_values_rank_between_image_and_user") {
  const Values job{{"A", "job"}, {"B", "job"}, {"C", "job"}};
  const auto image = image_with({"A=image", "B=image", "C=image"});
  auto task = applied(job, image, "C", "A=site,B=site,C=site,B");
  CHECK(task["A"] == "site");
  CHECK(task["B"] == "job");  // a default that the job may change
  CHECK(task["C"] == "job");
  CHECK(applied(job, image, "A=user", "A=site,A")["A"] == "user");
}

TEST_CASE("environment_unset_variables_are_not_given") {
  const Values job{{"LD_PRELOAD", "/x.so"}, {"CONDA_A", "1"}, {"CONDA_B", "2"}, {"MINE", "job"}};
  EnvironmentWishes wishes;
  REQUIRE(wishes.add_unset("LD_PRELOAD,CONDA_*"));
  REQUIRE(wishes.add_unset("MINE"));
  REQUIRE(wishes.add("MINE=given,CONDA_B"));
  const auto task =
      merge_environment(job, image_with({"LD_PRELOAD=/y.so", "B=1"}), EnvironmentWishes::parse(""),
                        EnvironmentWishes::parse(wishes.serialize()), {}, "/");
  CHECK_FALSE(task.contains("LD_PRELOAD"));
  CHECK_FALSE(task.contains("CONDA_A"));
  CHECK_FALSE(task.contains("CONDA_B"));
  CHECK(task.at("MINE").value == "given");
  CHECK(task.at("B").value == "1");
  CHECK_FALSE(wishes.add_unset("A=1"));
  CHECK_FALSE(wishes.add_unset("A,,B"));
  CHECK_FALSE(wishes.add_unset(""));
}

TEST_CASE("environment_site_unset_variables_are_given_only_when_kept") {
  const Values job{{"LD_PRELOAD", "/monitor.so"}, {"XALT_A", "1"}, {"XALT_B", "2"}};
  SitePolicy policy;
  policy.unsetenv = {"LD_PRELOAD", "XALT_*"};
  EnvironmentWishes user;
  REQUIRE(user.add("XALT_B"));
  const auto task =
      merge_environment(job, image_with({}), EnvironmentWishes::of_site(policy), user, {}, "/");
  CHECK_FALSE(task.contains("LD_PRELOAD"));
  CHECK_FALSE(task.contains("XALT_A"));
  CHECK(task.at("XALT_B").value == "2");
}

TEST_CASE("environment_minus_unsets_variables_and_patterns") {
  EnvironmentWishes wishes;
  REQUIRE(wishes.add("A=1,-LD_PRELOAD,-XALT_*,B"));
  CHECK(wishes.unset == std::vector<std::string>{"LD_PRELOAD", "XALT_*"});
  CHECK(wishes.keep == std::vector<std::string>{"B"});
  CHECK_FALSE(wishes.add("-"));
  CHECK_FALSE(wishes.add("-A=1"));
  const Values job{{"LD_PRELOAD", "1"}, {"XALT_A", "1"}, {"KEPT", "1"}};
  const auto task = merged(job, image_with({"XALT_B=1"}), "-LD_PRELOAD,-XALT_*", "");
  CHECK_FALSE(task.contains("LD_PRELOAD"));
  CHECK_FALSE(task.contains("XALT_A"));
  CHECK_FALSE(task.contains("XALT_B"));
  CHECK(task.contains("KEPT"));
}

TEST_CASE("environment_plus_adds_to_the_containers_value") {
  const Values job{{"PATH", "/job"}, {"A", "1"}};
  const auto image = image_with({"PATH=/image"});
  const auto task = merged(job, image, "+PATH=/front:,PATH+=:/end\\,1,A+=2,B+=3,+C=4");
  CHECK(task.at("PATH").value == "/front:/image:/end,1");
  CHECK(task.at("A").value == "12");
  CHECK(task.at("B").value == "3");
  CHECK(task.at("C").value == "4");
  CHECK(task.at("PATH").origin == Origin::option);
  EnvironmentWishes wishes;
  REQUIRE(wishes.add("+A=1,A+=2,A+=3,B=+4"));
  const auto again = EnvironmentWishes::parse(wishes.serialize());
  CHECK(again.before == Values{{"A", "1"}});
  CHECK(again.behind == Values{{"A", "23"}});
  CHECK(again.values == Values{{"B", "+4"}});
  for (const char* list : {"+=1", "+", "-A+=1", "A*+=1"}) CHECK_FALSE(wishes.add(list));
}

TEST_CASE("environment_variables_have_an_origin") {
  const Values job{{"OF_JOB", "1"}, {"SLURM_PROCID", "0"}, {"KEPT", "1"}, {"LANG", "de"}};
  const auto task = merged(job, image_with({"OF_IMAGE=1", "KEPT=2"}), "KEPT,MINE=1", "OF_SITE=1");
  CHECK(task.at("OF_JOB").origin == Origin::job);
  CHECK(task.at("SLURM_PROCID").origin == Origin::slurm);
  CHECK(task.at("KEPT").origin == Origin::kept);
  CHECK(task.at("OF_IMAGE").origin == Origin::image);
  CHECK(task.at("HOME").origin == Origin::user);
  CHECK(task.at("OF_SITE").origin == Origin::site);
  CHECK(task.at("MINE").origin == Origin::option);
  CHECK_FALSE(task.contains("LANG"));
}

TEST_CASE("environment_change_lists_only_differences") {
  const Values job{{"SAME", "1"}, {"OTHER", "1"}, {"GONE", "1"}};
  const Environment task{
      {"SAME", {"1", Origin::job}}, {"OTHER", {"2", Origin::image}}, {"NEW", {"3", Origin::image}}};
  const auto change = change_to(task, job);
  CHECK(change.set == Values{{"OTHER", "2"}, {"NEW", "3"}});
  CHECK(change.unset == std::set<std::string>{"GONE"});
}

TEST_CASE("environment_user_reaches_followers") {
  UserIdentity leader;
  leader.name = "ann";
  leader.home = "/home/ann";
  leader.shell = "/bin/zsh";
  Text<600> text;
  text.set(leader.for_other_tasks());
  const auto follower = UserIdentity::from_first_task(text.view());
  CHECK(follower.name == "ann");
  CHECK(follower.home == "/home/ann");
  CHECK(follower.shell == "/bin/zsh");
}

TEST_CASE("image_scripts_run_before_the_command") {
  ImageSettings image;
  CHECK(image.after_scripts({"true"}) == std::vector<std::string>{"true"});
  image.environment_scripts = {"/env/10.sh", "/env/it's.sh"};
  const auto words = image.after_scripts({"echo", "a b"}, {{"SET", "'"}, {"NO-NAME", "x"}});
  const std::string text = R"(. '/env/10.sh'; . '/env/it'\''s.sh'; export SET=''\'''; exec "$@")";
  CHECK(words == std::vector<std::string>{"/bin/sh", "-c", text, "sh", "echo", "a b"});
}
