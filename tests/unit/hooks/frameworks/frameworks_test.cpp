#include <fcntl.h>

#include <algorithm>
#include <set>

#include "hooks/frameworks/frameworks.hpp"
#include "hooks/step/allocation.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

/// Returns the context of task 5 of 6: the second of three on the second of two nodes.
HookContext task_of_step() {
  HookContext context;
  context.job = {{"SLURM_JOB_ID", "4540"},
                 {"SLURM_STEP_ID", "0"},
                 {"SLURM_STEP_NUM_TASKS", "6"},
                 {"SLURM_STEP_NODELIST", "gpu[08-09]"},
                 {"SLURM_STEP_TASKS_PER_NODE", "3(x2)"},
                 {"SLURM_PROCID", "4"},
                 {"SLURM_NODEID", "1"},
                 {"SLURM_LOCALID", "1"}};
  context.host_root = "/nowhere";
  return context;
}

Edits of_task(const HookContext& context) {
  REQUIRE(bool(frameworks_hook.task));
  return *frameworks_hook.task(context);
}

/// Returns a context whose home is `home` on this machine.
HookContext with_home(const std::string& home) {
  HookContext context;
  context.environment = {{"HOME", home}};
  context.image_digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
  context.open_in_image = [](const char* path, int flags) {
    return UniqueFd(::open(path, flags | O_CLOEXEC));
  };
  return context;
}

}  // namespace

TEST_CASE("node_list_first_host_is_expanded_as_in_slurm") {
  CHECK(first_host("node1") == "node1");
  CHECK(first_host("node[01-04]") == "node01");
  CHECK(first_host("node[008-121,7]") == "node008");
  CHECK(first_host("node[7,9-11]-ib.example.org,other3") == "node7-ib.example.org");
  CHECK(first_host("rack[2-3]node[05-09]") == "rack2node05");
  CHECK(first_host("login-a,node[1-2]") == "login-a");
  CHECK(first_host("a[3],b") == "a3");
  for (const char* text : {"", ",a", "node[1", "node]1", "node[]", "node[a-b]"})
    CHECK_FALSE(first_host(text));
}

TEST_CASE("task_counts_per_node_are_expanded_as_in_slurm") {
  CHECK(tasks_on_node("2(x3),1", 0) == 2U);
  CHECK(tasks_on_node("2(x3),1", 2) == 2U);
  CHECK(tasks_on_node("2(x3),1", 3) == 1U);
  CHECK(tasks_on_node("1,2", 1) == 2U);
  for (const char* text : {"", "2(x3", "2(xa),1", "x"}) CHECK_FALSE(tasks_on_node(text, 0));
  CHECK_FALSE(tasks_on_node("2(x3),1", 4));
}

TEST_CASE("frameworks_task_of_many_gets_rank_variables") {
  const auto variables = of_task(task_of_step()).environment.defaults;
  CHECK(variables ==
        std::map<std::string, std::string>{{"MASTER_ADDR", "gpu08"},
                                           {"MASTER_PORT", "61004"},
                                           {"WORLD_SIZE", "6"},
                                           {"RANK", "4"},
                                           {"LOCAL_RANK", "1"},
                                           {"LOCAL_WORLD_SIZE", "3"},
                                           {"NODE_RANK", "1"},
                                           {"JAX_COORDINATOR_ADDRESS", "gpu08:63272"}});
  CHECK(of_task(task_of_step()).environment.set.empty());
}

TEST_CASE("frameworks_single_task_and_batch_script_get_nothing") {
  auto alone = task_of_step();
  alone.job["SLURM_STEP_NUM_TASKS"] = "1";
  CHECK(of_task(alone) == Edits());
  auto batch = task_of_step();
  batch.job.erase("SLURM_STEP_ID");
  CHECK(of_task(batch) == Edits());
}

TEST_CASE("frameworks_incomplete_step_gets_nothing") {
  for (const char* name :
       {"SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_NODEID"}) {
    auto context = task_of_step();
    context.job[name] = "]";
    CHECK(of_task(context) == Edits());
  }
}

TEST_CASE("frameworks_pytorch_ranks_come_from_slurm") {
  auto context = task_of_step();
  context.environment = {{"PYTORCH_VERSION", "2"}, {"RANK", "of the job"}};
  CHECK(of_task(context).environment.set ==
        std::map<std::string, std::string>{{"RANK", "4"}, {"LOCAL_RANK", "1"}});
  auto alone = context;
  alone.job["SLURM_STEP_NUM_TASKS"] = "1";
  CHECK(of_task(alone) == Edits());
  context.job.erase("SLURM_STEP_ID");
  CHECK(of_task(context) == Edits());
}

TEST_CASE("frameworks_pytorch_local_rank_with_one_gpu_each_warns") {
  HookContext context = task_of_step();
  context.environment["PYTORCH_VERSION"] = "2.9";
  context.job["SLURM_NODEID"] = "0";
  context.job["SLURM_PROCID"] = "1";
  context.job["CUDA_VISIBLE_DEVICES"] = "0,1,2";
  const auto warned = [&] {
    const auto warnings = of_task(context).warnings;
    return std::any_of(warnings.begin(), warnings.end(), [](const auto& text) {
      return text.find("each task sees one GPU (CUDA_VISIBLE_DEVICES=0)") == 0;
    });
  };
  CHECK_FALSE(warned());
  context.job["CUDA_VISIBLE_DEVICES"] = "0";
  CHECK(warned());
  context.job["SLURM_LOCALID"] = "2";  // only one of them reports it
  CHECK_FALSE(warned());
  context.job["SLURM_LOCALID"] = "1";
  context.environment.erase("PYTORCH_VERSION");
  CHECK_FALSE(warned());
}

TEST_CASE("frameworks_pytorch_threads_follow_task_cpus") {
  auto context = task_of_step();
  context.environment = {{"PYTORCH_VERSION", "2"}};
  CHECK(of_task(context).environment.defaults["OMP_NUM_THREADS"] == "1");
  context.job["SLURM_CPUS_PER_TASK"] = "7";
  CHECK(of_task(context).environment.defaults["OMP_NUM_THREADS"] == "7");
  context.job["SLURM_STEP_TASKS_PER_NODE"] = "5,1";  // alone on its node
  CHECK(of_task(context).environment.defaults.count("OMP_NUM_THREADS") == 0);
  context.environment.clear();
  context.job["SLURM_STEP_TASKS_PER_NODE"] = "3(x2)";
  CHECK(of_task(context).environment.defaults.count("OMP_NUM_THREADS") == 0);
}

TEST_CASE("frameworks_ports_differ_per_step_and_match_enroot") {
  CHECK(master_port(1, 0) == 61001);
  CHECK(master_port(4536, 0) == 61000);
  std::set<std::uint16_t> ports;
  for (std::uint32_t step = 0; step < 4536; ++step) ports.insert(master_port(77, step));
  CHECK(ports.size() == 4536);
  CHECK(*ports.begin() == 61000);
  CHECK(*ports.rbegin() == 65535);
  CHECK(master_port(4294967295U, 4294967295U) >= 61000);
}

TEST_CASE("frameworks_setting_disables_the_hook") {
  HookContext context;
  CHECK(frameworks_hook.when(context));
  context.settings.emplace("frameworks", "false");
  CHECK_FALSE(frameworks_hook.when(context));
}

TEST_CASE("python_user_base_depends_on_the_image") {
  const std::string digest =
      "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
  CHECK(python_base_name(digest, "x") == "0123456789abcdef");
  CHECK(python_base_name("", "/a.sqsh") != python_base_name("", "/b.sqsh"));
  CHECK(python_base_name("", "/a.sqsh").size() == 21);

  const auto edits =
      *python_user_base_hook.task(with_home("/sys"));  // another file system than /
  const std::string base = "/sys/.local/share/spank-container/python/0123456789abcdef";
  CHECK(edits.environment.defaults.at("PYTHONUSERBASE") == base);
  CHECK(edits.environment.prepend.at("PATH") == base + "/bin");
  CHECK(edits.environment.defaults.at("PIP_BREAK_SYSTEM_PACKAGES") == "1");
}

TEST_CASE("python_user_base_needs_a_persistent_home") {
  CHECK(*python_user_base_hook.task(with_home("/")) == Edits());
  CHECK(*python_user_base_hook.task(with_home("/etc")) ==
        Edits());  // as for an empty home: on the image's file system
  CHECK(*python_user_base_hook.task(with_home("/dev/shm")) == Edits());  // in memory
  CHECK(*python_user_base_hook.task(with_home("/not/there")) == Edits());
  auto with_his_own = with_home("/sys");
  with_his_own.environment["PYTHONUSERBASE"] = "/elsewhere";
  CHECK(*python_user_base_hook.task(with_his_own) == Edits());
}

TEST_CASE("python_user_base_of_relative_path_depends_on_workdir") {
  auto context = with_home("/sys");
  context.image_digest.clear();
  context.image_name = "./a.sqsh";
  context.job = {{"PWD", "/one"}};
  const auto one = *python_user_base_hook.task(context);
  context.job = {{"PWD", "/two"}};
  CHECK_FALSE(one == *python_user_base_hook.task(context));
}
