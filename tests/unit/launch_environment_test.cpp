#include "catch.hpp"
#include "launch/environment.hpp"

using namespace spc;
using Variables = std::map<std::string, std::string>;

namespace {

const UserIdentity kAlice{
    .uid = 2001, .gid = 2001, .name = "alice", .home = "/home/alice", .shell = "/bin/zsh", .group_entries = {}};

ImageSettings image_with(std::vector<std::string> environment) {
  return ImageSettings{.environment = std::move(environment), .workdir = ""};
}

/// What the task's environment becomes.
Variables applied(Variables job, const ImageSettings& image, const std::set<std::string>& keep = {}) {
  const auto change = merge_environment(job, image, keep, kAlice, "/work");
  for (const auto& name : change.unset) job.erase(name);
  for (const auto& [name, value] : change.set) job[name] = value;
  return job;
}

}  // namespace

TEST_CASE("the image's variables win over the job's") {
  CHECK(applied({{"CUDA_HOME", "/host"}}, image_with({"CUDA_HOME=/image"}))["CUDA_HOME"] == "/image");
}

TEST_CASE("a job variable that the image does not know stays") {
  CHECK(applied({{"SLURM_PROCID", "3"}}, image_with({}))["SLURM_PROCID"] == "3");
}

TEST_CASE("a variable named by --container-env keeps the job's value") {
  CHECK(applied({{"A", "job"}}, image_with({"A=image"}), {"A"})["A"] == "job");
  CHECK(applied({}, image_with({"A=image"}), {"A"})["A"] == "image");
  CHECK(applied({{"PATH", "/job"}}, image_with({"PATH=/image"}), {"PATH"})["PATH"] == "/job");
}

TEST_CASE("the host's language goes unless it is kept or the image sets one") {
  const Variables job{{"LANG", "de_DE.UTF-8"}, {"LC_ALL", "de_DE.UTF-8"}};
  CHECK_FALSE(applied(job, image_with({})).contains("LANG"));
  CHECK(applied(job, image_with({"LANG=C.UTF-8"}))["LANG"] == "C.UTF-8");
  CHECK(applied(job, image_with({}), {"LANG"})["LANG"] == "de_DE.UTF-8");
}

TEST_CASE("HOME, USER, SHELL, PATH and PWD are the container's") {
  auto task = applied({{"PATH", "/opt/slurm/bin"}, {"HOME", "/elsewhere"}, {"PWD", "/job"}}, image_with({}));
  CHECK(task["HOME"] == "/home/alice");
  CHECK(task["USER"] == "alice");
  CHECK(task["LOGNAME"] == "alice");
  CHECK(task["SHELL"] == "/bin/zsh");
  CHECK(task["PWD"] == "/work");
  CHECK(task["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
  CHECK(applied({}, image_with({"PATH=/image/bin"}))["PATH"] == "/image/bin");
}

TEST_CASE("a PyTorch image gets its ranks from Slurm") {
  const Variables job{{"SLURM_PROCID", "5"}, {"SLURM_LOCALID", "1"}};
  auto task = applied(job, image_with({"PYTORCH_VERSION=1.13"}));
  CHECK(task["RANK"] == "5");
  CHECK(task["LOCAL_RANK"] == "1");
  CHECK_FALSE(applied(job, image_with({})).contains("RANK"));
}

TEST_CASE("a malformed variable of the image is left out") {
  CHECK(applied({}, image_with({"=x", "novalue"})).contains("novalue") == false);
}

TEST_CASE("image settings are read record by record") {
  const std::string records("env=A=1\0env=B=\0workdir=/w\0unknown=x\0", 36);
  const auto settings = ImageSettings::parse(records);
  CHECK(settings.environment == std::vector<std::string>{"A=1", "B="});
  CHECK(settings.workdir == "/w");
}
