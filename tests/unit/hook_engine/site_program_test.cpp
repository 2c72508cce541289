// A site's hooks: the directory, the programs and their conditions.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "hook_engine/hook_directory.hpp"
#include "hook_engine/step_hooks.hpp"
#include "hooks/hook.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

namespace fs = std::filesystem;

class Lines final : public Log {
 public:
  void write(LogLevel level, std::string_view line) noexcept override {
    text += (level == LogLevel::warning ? "warning: " : "") + std::string(line) + "\n";
  }
  std::string text;
};

/// A directory of hooks, removed by the destructor.
struct Site {
  std::string path;
  Site() {
    char name[] = "/tmp/spc-hooks-XXXXXX";
    path = ::mkdtemp(name);
    ::chmod(path.c_str(), 0755);
  }
  ~Site() { fs::remove_all(path); }
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  std::string add(const std::string& name, const std::string& text, mode_t mode = 0755) const {
    const std::string file = path + "/" + name;
    std::ofstream(file) << text;
    ::chmod(file.c_str(), mode);
    return file;
  }
  [[nodiscard]] auto files() const { return read_hook_directory(path, ::geteuid()); }
  [[nodiscard]] std::string error() const {
    const auto read = files();
    REQUIRE(!read);
    return read.error().message();
  }
};

std::string script(const std::string& body) { return "#!/bin/sh\n" + body + "\n"; }

ProgramEdit process(const std::string& program, unsigned seconds = 20) {
  return {.path = program, .args = {}, .env = {"ONLY=this"}, .timeout = seconds};
}

Result<std::string> run(const ProgramEdit& it, Lines& lines) {
  HookContext context;
  context.job = {{"HOME", "/home/alice"}, {"LD_PRELOAD", "/x"}, {"SLURM_JOB_ID", "17"}};
  return run_site_program("50-x", it, "the input\n", context, lines);
}

std::string failure(const ProgramEdit& it) {
  Lines lines;
  const auto done = run(it, lines);
  REQUIRE(!done);
  return done.error().message();
}

}  // namespace

// outcome 206 refused: a directory of hooks that is absent, empty, a file, another's, group-writable, a link
TEST_CASE("hook_directory_absent_or_empty_has_no_hooks") {
  const Site site;
  CHECK(site.files()->empty());
  CHECK(read_hook_directory(site.path + "/nowhere", ::geteuid())->empty());
}

// outcome 206 refused: a directory of hooks that is absent, empty, a file, another's, group-writable, a link
TEST_CASE("hook_directory_that_is_file_or_writable_is_refused") {
  const Site site;
  const auto file = site.add("file", "", 0644);
  auto read = read_hook_directory(file, ::geteuid());
  REQUIRE(!read);
  CHECK(read.error().message() == "directory of hooks \"" + file + "\": is not a directory");
  fs::create_directory_symlink(site.path, site.path + "/link");
  CHECK(read_hook_directory(site.path + "/link", ::geteuid()));
  ::chmod(site.path.c_str(), 0775);
  CHECK(site.error().find("is writable by others (hint: chmod go-w PATH)") != std::string::npos);
}

// outcome 206 refused: a directory of hooks that is absent, empty, a file, another's, group-writable, a link
TEST_CASE("hook_writable_by_others_or_foreign_is_refused") {
  const Site site;
  const auto file = site.add("50-a", script("true"), 0775);
  CHECK(site.error() == "hook \"" + file + "\": is writable by others (hint: chmod go-w PATH)");
  if (::geteuid() != 0) return;
  ::chmod(file.c_str(), 0755);
  REQUIRE(::chown(file.c_str(), 12345, 0) == 0);
  CHECK(site.error() == "hook \"" + file + "\": is not owned by root (hint: chown root PATH)");
}

TEST_CASE("hook_files_are_ordered_by_stem_and_kind") {
  const Site site;
  site.add("50-b.sh", "x");
  site.add("50-b", "x");
  site.add("10-a.py", "x");
  site.add("50-b.json", "{}", 0644);
  site.add("60-off", "", 0755);
  site.add("70-off.sh", "text", 0644);
  fs::create_symlink("/dev/null", site.path + "/80-off");
  for (const char* none : {".hidden", "50-b~", "50-b.bak", "50-b.rpmsave", "50-b.dpkg-old"})
    site.add(none, "x");
  fs::create_directory(site.path + "/90-directory");
  const auto files = site.files().value();
  std::string list;
  for (const HookFile& file : files) list += file.stem + (file.off ? "(off) " : " ");
  CHECK(list == "10-a 50-b 50-b 50-b 60-off(off) 70-off(off) 80-off(off) ");
  CHECK(files[1].kind == HookFile::Kind::program);
  CHECK(files[2].kind == HookFile::Kind::shell);
  CHECK(files[3].kind == HookFile::Kind::description);
}

TEST_CASE("hook_process_gets_only_given_environment_and_rights") {
  const Site site;
  Lines lines;
  const auto it = process(site.add(
      "a", script("pwd; ls /proc/self/fd | wc -l; grep -E 'CapEff|CapPrm|CapInh|CapAmb|NoNewPrivs' "
                  "/proc/self/status; "
                  "env | grep -v -E '^(PWD|_|SHLVL|OLDPWD)=' | sort; cat; echo said >&2")));
  const auto said = run(it, lines);
  REQUIRE(said);
  CHECK(*said ==
        "/\n4\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:"
        "\t0000000000000000\nCapAmb:\t0000000000000000\n"
        "NoNewPrivs:\t1\nHOME=/home/alice\nLANG=C.UTF-8\nONLY=this\n"
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nSLURM_JOB_ID=17\n"
        "the input\n");  // ls has opened the directory
  CHECK(lines.text == "hook 50-x: said\n");
}

// outcome 207 refused: a hook that fails, is killed, hangs, prints 1 GiB, binary and ESC
TEST_CASE("hook_that_fails_is_killed_or_hangs_refuses_the_start") {
  const Site site;
  const auto fails = site.add("fails", script("echo one >&2; echo two >&2; exit 3"));
  CHECK(failure(process(fails)) ==
        "run \"" + fails + "\": exited with status 3; last output: \"one\\ntwo\"");
  const auto killed = site.add("killed", script("kill -9 $$"));
  CHECK(failure(process(killed)) == "run \"" + killed + "\": was killed by signal 9");
  const auto hangs =
      site.add("hangs", script("sleep 1000 & echo $! >" + site.path + "/pid; sleep 1000"));
  CHECK(failure(process(hangs, 1)) == "run \"" + hangs + "\": did not finish within 1 s");
  // The whole process group is killed.
  pid_t child = 0;
  std::ifstream(site.path + "/pid") >> child;
  REQUIRE(child > 0);
  for (int i = 0; i < 100 && ::kill(child, 0) == 0; ++i) {
    std::ifstream status("/proc/" + std::to_string(child) + "/stat");
    std::string word;
    status >> word >> word >> word;
    if (word == "Z") break;  // not yet reaped
    ::usleep(10'000);
  }
  std::ifstream status("/proc/" + std::to_string(child) + "/stat");
  std::string word;
  status >> word >> word >> word;
  CHECK((!status || word == "Z"));
}

// outcome 207 refused: a hook that fails, is killed, hangs, prints 1 GiB, binary and ESC
TEST_CASE("hook_output_is_limited_and_escaped") {
  const Site site;
  const auto much = site.add("much", script("yes"));
  CHECK(failure(process(much)) == "run \"" + much + "\": printed more than 1 MiB");
  Lines lines;
  const auto said = site.add("said", script("printf '\\033[31mred\\n' >&2; yes | head -1000 >&2"));
  REQUIRE(run(process(said), lines));
  CHECK(lines.text.starts_with("hook 50-x: \\x1b[31mred\nhook 50-x: y\n"));
  CHECK(lines.text.ends_with("hook 50-x: prints more, which is not shown\n"));
  CHECK(std::count(lines.text.begin(), lines.text.end(), '\n') == 201);
}

// outcome 208 refused: a hook that is not executable, has no interpreter, is deleted in between
TEST_CASE("hook_missing_or_without_interpreter_is_refused") {
  const Site site;
  CHECK(failure(process(site.path + "/gone"))
            .starts_with("run \"" + site.path + "/gone\": no such file or directory"));
  const auto odd = site.add("odd", "#!/no/interpreter\n");
  CHECK(failure(process(odd)) ==
        "run \"" + odd +
            "\": no such file or directory (hint: its interpreter must exist on the node)");
  const auto text = site.add("text", "neither script nor program\n");
  CHECK(failure(process(text)).starts_with("run \"" + text + "\": exec format error"));
}

TEST_CASE("site_hook_replaces_disables_or_is_optional") {
  const Site site;
  Lines lines;
  HookContext context;
  const auto find = [&] { return StepHooks::find_in(site.path, context, lines); };
  const std::string built_in = builtin_hooks().front()->name;
  const auto origin = [&] {
    const auto hooks = find();
    std::string all;
    for (const auto& [name, from] : hooks.value().origins()) {
      if (name == built_in) all += from + ";";
    }
    return all;
  };
  CHECK(origin() == "built in;");
  context.settings.emplace("hooks_off", built_in);
  CHECK(origin() == "built in, off (hooks_off);");
  context.settings.clear();
  const auto file = site.add(built_in, "", 0644);
  CHECK(origin() == "built in, off (" + file + ");");
  site.add(built_in, script("echo '{\"notes\": [\"mine\"]}'"));
  CHECK(origin() == file + ";");
  const auto made = find().value().prepare().value();
  const auto mine = std::ranges::find(made.of_hooks, built_in, &HookEdits::OfHook::hook);
  REQUIRE(mine != made.of_hooks.end());
  CHECK(mine->edits.notes == std::vector<std::string>{"mine"});

  site.add(built_in, script("exit 1"));
  CHECK(find().value().prepare().error().message().starts_with("hook " + built_in + ": run \"" +
                                                               file + "\": exited with status 1"));
  site.add(built_in + ".json", R"({"optional": true})", 0644);
  CHECK(find().value().prepare());
  CHECK(lines.text.starts_with("warning: hook " + built_in + ": run"));
  site.add(built_in + ".json", R"({"when": {"env": {"WANTED": "^y"}}})", 0644);
  CHECK(find().value().prepare());  // the program is not started
  context.job["WANTED"] = "yes";
  CHECK(!find().value().prepare());
  fs::remove(site.path + "/" + built_in + ".json");
  site.add(built_in, script("echo '{\"refusal\": \"\\\\u001b[31mno\"}'"));
  CHECK(find().value().prepare().error().message() == "hook " + built_in + ": \\x1b[31mno");
  site.add(built_in, script("echo '{\"mounts\": [{\"source\": \"x\"}]}'"));
  CHECK(find().value().prepare().error().message() ==
        "hook " + built_in + ": what \"" + file +
            "\" printed: mounts[0].source: \"x\" is not an absolute path "
            "(hint: tell the administrator)");
  site.add(built_in + ".py", script("true"));
  CHECK(find().error().message().ends_with(
      "have the same name (hint: tell the administrator: rename one: the suffix is ignored)"));
}

TEST_CASE("hook_conditions_must_all_hold") {
  HookContext context;
  context.job = {{"SLURM_JOB_ID", "17"}, {"MODE", "fast"}};
  context.command = {"/usr/bin/python3", "x"};
  context.image_name = "docker://ubuntu";
  HookConditions when;
  CHECK((when.empty() && when.hold(context)));
  when.environment = {{"MODE", "^f"}};
  when.commands = {"^bash$", "/python3$"};
  when.annotations = {{"image$", "ubuntu"}, {"job$", "^17$"}};
  CHECK(when.hold(context));
  when.has_bind_mounts = true;
  CHECK(!when.hold(context));
  context.has_bind_mounts = true;
  CHECK(when.hold(context));
  when.environment["ABSENT"] = "";
  CHECK(!when.hold(context));
  when.environment.erase("ABSENT");
  context.command = {"bash2"};
  CHECK(!when.hold(context));
  context.command.clear();
  CHECK(!when.hold(context));
  when.commands.clear();
  when.always = false;
  CHECK(!when.hold(context));
}

TEST_CASE("hook_description_is_parsed_strictly") {
  const auto error = [](std::string_view text) {
    return HookDescription::parse(text).error().message();
  };
  CHECK(HookDescription::parse(
      R"({"version": "1.0.0", "hook": {"timeout": 5, "args": ["a", "b"], "env": ["A=b"]},
                                   "when": {"always": true}, "stages": ["prepare", "task"],
                                   "optional": true})"));
  CHECK(HookDescription::parse(
      R"({"version": "1.0.0", "hook": {"path": "/x"}, "when": {"always": true}, )"
      R"("stages": ["poststop"]})"));
  CHECK(error(R"({"version": "0.1.0"})") == "version: \"0.1.0\" is not 1.0.0");
  CHECK(error(R"({"stages": ["prestart"]})") ==
        "stages: \"prestart\" is not a stage (prepare, create, task, start, stop)");
  CHECK(error(R"({"hook": {"path": "/x"}, "when": {"always": true}, "stages": ["task"]})")
            .starts_with("stages: \"task\" is not a stage (prestart,"));
  CHECK(error(R"({"hook": {"path": "/x"}, "stages": ["poststop"]})") == "when: is missing");
  CHECK(error(R"({"hook": {"path": "x"}})") == "hook.path: \"x\" is not an absolute path");
  CHECK(error(R"({"hook": {"timeout": 0}})") == "hook.timeout: is not between 1 and 86400 seconds");
  CHECK(error(R"({"when": {"commands": ["("]}})")
            .starts_with("when.commands: \"(\" is not an extended regular expression: "));
  CHECK(error(R"({"whem": {}})") == "whem: is unknown");
}
