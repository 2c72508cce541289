#include "hooks/hook_json.hpp"

#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

Edits full_edits() {
  Edits edits;
  edits.environment.unset = {"A"};
  edits.environment.set = {{"B", "a \"quoted\" \n value"}};
  edits.environment.prepend = {{"PATH", "/opt/bin"}};
  edits.environment.defaults = {{"D", ""}};
  edits.mounts = {{"/a", "/b", false, true, true, 0}, {"", "/tmpfs", true, false, false, 4096}};
  edits.devices = {{"/dev/x", "/dev/y", true}};
  edits.denied_devices = {"/dev/z"};
  edits.symlinks = {{"/l", "../target"}};
  edits.files = {{"/etc/x", "text\n", 0755}};
  edits.directories = {"/d"};
  edits.libraries = {{"libx.so.1", "/usr/lib/libx.so.1.2", false}};
  edits.library_directories = {{"/usr/local/lib", false}};
  edits.limits = {{"memlock", UINT64_MAX}, {"stack", 8}};
  edits.programs = {{"/usr/bin/x", {"x", "y"}, {"A=b"}, 5}};
  edits.notes = {"a note"};
  edits.warnings = {"a warning"};
  edits.remembered = {{"version", "550"}};
  edits.refusal = "because";
  return edits;
}

HookCall full_call() {
  HookCall call;
  call.stage = "create";
  HookContext& context = call.context;
  context.job = {{"SLURM_JOB_ID", "1"}};
  context.image = {{"LD_LIBRARY_PATH", "/x"}};
  context.environment = {{"HOME", "/root"}};
  context.image_name = "ubuntu";
  context.image_digest = "sha256:00";
  context.settings = {{"gpu", "auto"}, {"hooks_off", "a"}, {"hooks_off", "b"}};
  context.uid = 1000;
  context.gid = 1001;
  context.user = "alice";
  context.home = "/home/alice";
  context.gpu = false;
  context.devices = {"nvidia.com/gpu=all"};
  context.command = {"python", "train.py"};
  context.has_bind_mounts = true;
  context.mpi = "host";
  context.annotations = {{"com.example.tool", "yes"}};
  context.remap_root = context.own_net = context.own_ipc = context.own_pid = context.own_uts =
      context.own_container = context.mounts_home = true;
  context.writable = false;
  context.host_root = "/fake";
  context.granted_devices = {"/dev/nvidia0"};
  call.prepared = full_edits();
  call.image_root = "/image";
  return call;
}

std::string edits_refusal(std::string_view text) {
  const auto read = edits_from_json(text);
  REQUIRE(!read);
  return read.error().message();
}

}  // namespace

TEST_CASE("hook_edits_survive_json") {
  for (const Edits& edits : {full_edits(), Edits()}) {
    const auto text = edits_to_json(edits);
    REQUIRE(text);
    const auto read = edits_from_json(*text);
    REQUIRE(read);
    CHECK(*read == edits);
  }
  CHECK(*edits_to_json(Edits()) == "{}");
  CHECK(*edits_from_json(" \n") == Edits());
}

TEST_CASE("hook_edits_json_has_every_member") {
  // A new member breaks this compilation: write and read it in hooks/json, and set it in
  // full_edits().
  const Edits edits = full_edits();
  const auto& [environment, mounts, devices, denied, links, files, directories, libraries,
               library_directories, limits, programs, notes, warnings, remembered, refusal, found] =
      edits;
  CHECK(environment != Edits::Environment());
  CHECK(!(mounts.empty() || devices.empty() || denied.empty() || links.empty() || files.empty() ||
          directories.empty()));
  CHECK(!(libraries.empty() || library_directories.empty() || limits.empty() || notes.empty() ||
          warnings.empty()));
  CHECK(!(programs.empty() || remembered.empty() || refusal.empty()));
  CHECK(found == nullptr);  // valid in the same process only
}

TEST_CASE("hook_context_survives_json") {
  const HookCall call = full_call();
  const std::string text = context_to_json(call);
  const auto read = context_from_json(text);
  REQUIRE(read);
  // A new member breaks this compilation: write and read it in hooks/hook_json.cpp, and set it
  // above.
  const auto& [job, image, environment, image_name, image_digest, settings, uid, gid, user, home,
               gpu, devices, command, has_bind_mounts, mpi, annotations, remap_root, own_net,
               own_ipc, own_pid, own_uts, own_container, writable, mounts_home, host_root, granted,
               open_in_image] = read->context;
  const HookContext& was = call.context;
  CHECK((job == was.job && image == was.image && environment == was.environment &&
         settings == was.settings));
  CHECK((image_name == was.image_name && image_digest == was.image_digest && user == was.user &&
         home == was.home));
  CHECK((uid == was.uid && gid == was.gid && gpu == was.gpu && devices == was.devices &&
         mpi == was.mpi && annotations == was.annotations));
  CHECK((command == was.command && has_bind_mounts));
  CHECK((remap_root && own_net && own_ipc && own_pid && own_uts && own_container && mounts_home &&
         !writable));
  CHECK((host_root == was.host_root && granted == was.granted_devices && open_in_image != nullptr));
  CHECK(
      (read->stage == "create" && read->prepared == call.prepared && read->image_root == "/image"));
}

// outcome 209 refused: a hook's plan with garbage: unknown key, relative path
TEST_CASE("hook_edits_with_garbage_are_refused_by_key") {
  CHECK(edits_refusal("hello") == "is not JSON (at byte 1)");
  CHECK(edits_refusal("[]") == "is not a JSON object");
  CHECK(edits_refusal("{} {}").starts_with("is not JSON"));
  CHECK(edits_refusal(R"({"mount": []})") == "mount: is unknown");
  CHECK(edits_refusal(R"({"mounts": [{"source": "/a", "target": "/b", "readonly": true}]})") ==
        "mounts[0].readonly: is unknown");
  CHECK(edits_refusal(R"({"mounts": [{"source": "a", "target": "/b"}]})") ==
        "mounts[0].source: \"a\" is not an absolute path");
  CHECK(edits_refusal(R"({"mounts": [{"source": "/a", "target": "b"}]})") ==
        "mounts[0].target: \"b\" is not an absolute path");
  CHECK(edits_refusal(R"({"mounts": [{"source": "/a", "target": "/x/../y"}]})") ==
        "mounts[0].target: \"/x/../y\" has a part \"..\"");
  CHECK(edits_refusal(R"({"mounts": [{"source": "/a", "target": "/"}]})") ==
        "mounts[0].target: cannot be the root");
  CHECK(edits_refusal(R"({"mounts": {}})") == "mounts: is not an array");
  CHECK(edits_refusal(R"({"environment": {"set": {"A": 1}}})") ==
        "environment.set.A: is not a string");
  CHECK(edits_refusal(R"({"environment": {"set": {"A=B": ""}}})") ==
        "environment.set: \"A=B\" is not a variable name");
  CHECK(edits_refusal(R"({"environment": {"set": {"A": "x\u0000y"}}})") ==
        "environment.set: has a NUL character");
  CHECK(edits_refusal(R"({"environment": {"unset": [""]}})") ==
        "environment.unset: \"\" is not a variable name");
  CHECK(edits_refusal(R"({"files": [{"path": "/x", "mode": "4755"}]})")
            .starts_with("files[0].mode: \"4755\" is not between"));
  CHECK(edits_refusal(R"({"files": [{"path": "/x", "mode": "rwx"}]})")
            .starts_with("files[0].mode: \"rwx\" is not between"));
  CHECK(edits_refusal(R"({"limits": [{"name": "memlok", "soft": 1}]})")
            .starts_with("limits[0].name: \"memlok\" is not a limit"));
  CHECK(edits_refusal(R"({"limits": [{"name": "memlock", "soft": -1}]})")
            .starts_with("limits[0].soft: is not a number"));
  CHECK(edits_refusal(R"({"limits": [{"name": "memlock", "soft": "much"}]})") ==
        "limits[0].soft: is neither a number nor \"unlimited\"");
  CHECK(edits_refusal(R"({"libraries": [{"soname": "a/b", "path": "/b"}]})") ==
        "libraries[0].soname: \"a/b\" is not a library name");
  CHECK(edits_refusal(R"({"directories": ["x"]})") == "directories: \"x\" is not an absolute path");
  CHECK(edits_refusal(R"({"notes": ["a"], "notes": []})") == "key \"notes\" is given twice");
  CHECK(edits_refusal(std::string(100, '[')).starts_with("is nested more than 32 levels deep"));
}

TEST_CASE("hook_edits_error_escapes_control_characters") {
  const std::string why = edits_refusal("{\"a\\u001b[31m\": 1}");
  CHECK(why == "a\\x1b[31m: is unknown");
}

TEST_CASE("hook_stage_may_only_add_later_edits") {
  const Edits prepared = full_edits();
  CHECK(check_stage(prepared, "prepare", {}));
  CHECK(check_stage(prepared, "create", prepared));
  Edits moved = prepared;
  moved.mounts[0].target = "";
  moved.mounts[1].target = "/elsewhere";
  CHECK(check_stage(moved, "create", prepared));
  CHECK(check_stage(moved, "prepare", {}).error().message() == "mounts[0].target: is missing");
  moved.mounts.pop_back();
  CHECK(!check_stage(moved, "create", prepared));
  moved = prepared;
  moved.mounts[0].source = "/other";
  CHECK(!check_stage(moved, "create", prepared));
  CHECK(!check_stage(prepared, "task", {}));
  Edits words;
  words.environment = prepared.environment;
  words.limits = prepared.limits;
  words.warnings = prepared.warnings;
  CHECK(check_stage(words, "task", {}));
}

TEST_CASE("hook_context_with_unknown_stage_or_key_is_refused") {
  CHECK(context_from_json("{}").error().message().starts_with("stage: \"\" is not a stage"));
  CHECK(context_from_json(R"({"stage": "task", "jobs": {}})").error().message() ==
        "jobs: is unknown");
  CHECK(context_from_json(R"({"stage": "task", "version": 2})").error().message() ==
        "version: is not 1");
  CHECK(context_from_json(R"({"stage": "task", "user": {"uid": 4294967296}})").error().message() ==
        "user.uid: is too large");
}
