#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "launch/sources/named_container.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

std::string name_refusal(std::string_view text) {
  auto name = ContainerName::parse(text);
  return name ? "accepted" : name.error().message();
}

constexpr auto kNew = TaskMessage::named_new;
constexpr auto kStored = TaskMessage::named_stored;
constexpr auto kRunning = TaskMessage::named_running;

/// Returns m(ake), r(euse), j(oin), or - for a refusal.
char plan(std::string_view name, std::uint32_t state, const WantedImage& wanted = {},
          const ContainerNotes& notes = {
              .name = "x", .image = "docker.io/library/a:1", .digest = "sha256:a", .file = {}}) {
  const auto plan = plan_for(ContainerName::parse(name).value(), state,
                             state == kNew ? ContainerNotes{} : notes, wanted);
  return plan ? "mrj"[static_cast<int>(*plan)] : '-';
}

}  // namespace

TEST_CASE("container_name_flag_selects_use") {
  using Use = ContainerName::Use;
  const std::map<std::string, Use> uses{{"a", Use::automatic},       {"a:auto", Use::automatic},
                                        {"a:create", Use::create},   {"a:exec", Use::exec},
                                        {"a:no_exec", Use::no_exec}, {"a:replace", Use::replace},
                                        {"a:remove", Use::remove}};
  for (const auto& [text, use] : uses) {
    const auto name = ContainerName::parse(text).value();
    CHECK(name.text == "a");
    CHECK(name.use == use);
  }
}

// outcome 17 refused: container name of every wrong form
TEST_CASE("container_name_invalid_is_refused") {
  CHECK(name_refusal("").find("empty name") != std::string::npos);
  CHECK(name_refusal(":exec").find("empty name") != std::string::npos);
  CHECK(name_refusal("a:").find("flag must be") != std::string::npos);
  CHECK(name_refusal("a:b").find("flag must be") != std::string::npos);
  CHECK(name_refusal("a:exec:create").find("flag must be") != std::string::npos);
  CHECK(name_refusal(std::string(64, 'a')) == "accepted");
  for (const std::string& text : {std::string("a/b"), std::string("a b"), std::string("\xc3\xa4"),
                                  std::string("a\n"), std::string(65, 'a')}) {
    CHECK(name_refusal(text).find("is not a valid name") != std::string::npos);
  }
}

TEST_CASE("container_name_key_is_unique_and_stable") {
  CHECK(ContainerName::parse("a").value().key() != ContainerName::parse("b").value().key());
  CHECK(ContainerName::parse("a:exec").value().key() == ContainerName::parse("a").value().key());
  CHECK(ContainerName::parse("name").value().key().hex().substr(0, 32) ==
        "861b638ebaadbcc4df2e11a24dd25da1");
}

TEST_CASE("container_name_job_step_refers_to_step") {
  const auto key = ContainerName::parse("258.3").value().step_key();
  REQUIRE(key);
  CHECK(key->hex().substr(0, 16) == "0201000003000000");
  CHECK(ContainerName::parse("1.batch").value().step_key()->hex().substr(0, 16) ==
        "01000000fbffffff");
  for (const char* text :
       {"258", "258.", ".3", "a.3", "258.x", "258.3.4", "-1.0", "4294967296.0"}) {
    CHECK_FALSE(ContainerName::parse(text).value().step_key());
  }
}

TEST_CASE("container_plan_depends_on_state") {
  const WantedImage image{.image = "docker.io/library/a:1", .digest = {}};
  CHECK(plan("x", kNew, image) == 'm');
  CHECK(plan("x", kNew) == '-');
  CHECK(plan("x", kStored) == 'r');
  CHECK(plan("x", kStored, image) == 'r');
  CHECK(plan("x", kRunning) == 'j');
  CHECK(plan("x:create", kNew, image) == 'm');
  CHECK(plan("x:create", kStored, image) == '-');
  CHECK(plan("x:create", kRunning, image) == '-');
  CHECK(plan("x:exec", kNew, image) == '-');
  CHECK(plan("x:exec", kStored, image) == '-');
  CHECK(plan("x:exec", kRunning) == 'j');
  CHECK(plan("x:no_exec", kNew, image) == 'm');
  CHECK(plan("x:no_exec", kStored) == 'r');
  CHECK(plan("x:no_exec", kRunning) == '-');
  CHECK(plan("x:replace", kRunning, image) == '-');
  CHECK(plan("x:replace", kNew, image) == 'm');
  CHECK(plan("y", kStored) == '-');  // a hash shared by two names
}

TEST_CASE("container_of_another_image_is_not_reused") {
  CHECK(plan("x", kStored, {.image = "docker.io/library/b:1", .digest = {}}) == '-');
  CHECK(plan("x", kRunning, {.image = "docker.io/library/b:1", .digest = "sha256:b"}) == '-');
  CHECK(plan("x", kStored, {.image = "docker.io/library/b:1", .digest = "sha256:a"}) == 'r');
  CHECK(plan("x", kStored, {.image = "/x", .digest = {}},
             {.name = "x", .image = "/y", .digest = {}, .file = "1:2"}) == '-');
}

TEST_CASE("container_notes_survive_serialization") {
  const ContainerNotes notes{.name = "x",
                             .image = "/a=b\n",
                             .digest = "sha256:a",
                             .file = "1:2:3",
                             .maker = "12",
                             .made_at = 7};
  const auto again = ContainerNotes::parse(notes.serialize());
  CHECK(again.name == notes.name);
  CHECK(again.image == notes.image);
  CHECK(again.digest == notes.digest);
  CHECK(again.file == notes.file);
  CHECK(again.maker == notes.maker);
  CHECK(again.made_at == notes.made_at);
  CHECK(ContainerNotes::parse("").name.empty());
  CHECK(ContainerNotes::parse(std::string("name\0=\0image=i", 15)).image == "i");
}

TEST_CASE("container_notes_of_home_list_valid_containers_of_user") {
  std::string home = std::filesystem::temp_directory_path() / "spc-notes-XXXXXX";
  REQUIRE(::mkdtemp(home.data()) != nullptr);
  CHECK(directory_of_container_notes({}).empty());
  CHECK(directory_of_container_notes({{"HOME", home}, {"XDG_DATA_HOME", "relative"}}) ==
        home + "/.local/share/spank-container/named");
  const std::map<std::string, std::string> job{
      {"XDG_DATA_HOME", home}, {"SLURMD_NODENAME", "n1"}, {"SLURM_JOB_ID", "7"}};
  const std::string notes = directory_of_container_notes(job);
  CHECK(noted_containers(notes).empty());
  ContainerNote::open(ContainerName::parse("nobody").value(), false, {{"HOME", home}})
      .write({.name = "nobody"}, true);  // no node
  const auto note = ContainerNote::open(ContainerName::parse("tools").value(), true, job);
  note.write({.name = "tools", .image = "a:1", .digest = "sha256:1", .file = {}}, true);
  const auto found = noted_containers(notes);
  REQUIRE(found.size() == 1);
  CHECK(found[0].notes.name == "tools");
  CHECK(found[0].node == "n1");
  CHECK(found[0].job == "7");
  std::ofstream(notes + "/junk") << "no record";
  std::filesystem::create_symlink(found[0].path, notes + "/link");
  CHECK(noted_containers(notes).size() == 1);
  note.write({.name = "tools", .image = "b:1"}, false);
  CHECK(noted_containers(notes)[0].notes.image == "a:1");
  note.remove();
  CHECK(noted_containers(notes).empty());
  note.write({.name = "tools", .image = "a:1"}, false);  // it was lost
  CHECK(noted_containers(notes).size() == 1);
  std::filesystem::remove_all(home);
}
