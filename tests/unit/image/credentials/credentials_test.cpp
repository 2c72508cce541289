#include "registry/credentials.hpp"
#include "unit/catch2_compat.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/hash.hpp"
#include "base/socket.hpp"
#include "unit/image/helpers.hpp"

using namespace spc;
using namespace spc::test;

namespace {

/// A temporary home, the variables that select it, and a directory of programs at the front of
/// PATH.
class Home {
 public:
  Home() {
    char name[] = "/tmp/spc-home-XXXXXX";
    path = ::mkdtemp(name);
    for (const char* variable : {"REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME",
                                 "DOCKER_CONFIG", "ENROOT_CONFIG_PATH"}) {
      ::unsetenv(variable);
    }
    ::setenv("HOME", path.c_str(), 1);
    ::setenv("XDG_RUNTIME_DIR", (path + "/run").c_str(), 1);
    old_path = std::getenv("PATH");
    ::setenv("PATH", (path + "/bin:" + old_path).c_str(), 1);
  }
  ~Home() {
    ::setenv("PATH", old_path.c_str(), 1);
    std::filesystem::remove_all(path);
  }
  std::string write(const std::string& name, const std::string& text, mode_t mode = 0600) const {
    const std::filesystem::path file = path + "/" + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
    ::chmod(file.c_str(), mode);
    return file;
  }
  void program(const std::string& name, const std::string& script) const {
    write("bin/" + name, "#!/bin/sh\n" + script, 0755);
  }
  std::string path;
  std::string old_path;
};

std::string entry(const std::string& user_and_password) {
  return "{\"auth\":\"" + base64(user_and_password) + "\"}";
}
std::string auths(const std::string& registry, const std::string& user_and_password) {
  return "{\"auths\":{\"" + registry + "\":" + entry(user_and_password) + "}}";
}

Result<std::optional<RegistrySecret>> find(const std::string& image, const std::string& user = "",
                                           Lines* lines = nullptr) {
  Lines unused;
  const auto reference = ImageReference::parse(image);
  REQUIRE(reference);
  return find_credentials(CredentialPlaces::of_user(), *reference, user,
                          lines != nullptr ? *lines : unused);
}

/// Returns USER:PASSWORD, `none`, or the message.
std::string answer(const std::string& image, const std::string& user = "", Lines* lines = nullptr) {
  const auto found = find(image, user, lines);
  if (!found) return found.error().message();
  if (!*found) return "none";
  const RegistrySecret& secret = **found;
  if (!secret.identity_token.empty()) return "identity " + secret.identity_token.text();
  if (!secret.registry_token.empty()) return "registry " + secret.registry_token.text();
  return secret.username + ":" + secret.password.text();
}

}  // namespace

TEST_CASE("base64_follows_rfc_4648") {
  for (const auto& [plain, text] : {std::pair("", ""),
                                    {"f", "Zg=="},
                                    {"fo", "Zm8="},
                                    {"foo", "Zm9v"},
                                    {"foobar", "Zm9vYmFy"}}) {
    CHECK(base64(plain) == text);
    CHECK(from_base64(text) == std::string(plain));
  }
  CHECK(base64("\xff\xfe\xfd") == "//79");
  CHECK(from_base64("Zm8") == "fo");
  CHECK_FALSE(from_base64("Z"));
  CHECK_FALSE(from_base64("Zm 8"));
}

TEST_CASE("credentials_first_matching_place_wins") {
  Home home;
  CHECK(answer("reg:5000/a/b") == "none");
  home.write(".config/enroot/.credentials",
             "# comment\nmachine other login x password y\nmachine reg login enroot password e1\n");
  CHECK(answer("reg:5000/a/b") == "enroot:e1");
  home.write(".docker/config.json", auths("reg:5000", "docker:d:1"));
  CHECK(answer("reg:5000/a/b") == "docker:d:1");
  home.write("docker/config.json", auths("reg:5000", "docker2:d"));
  ::setenv("DOCKER_CONFIG", (home.path + "/docker").c_str(), 1);
  CHECK(answer("reg:5000/a/b") == "docker2:d");
  home.write(".config/containers/auth.json", auths("reg:5000", "containers:c"));
  CHECK(answer("reg:5000/a/b") == "containers:c");
  home.write("run/containers/auth.json", auths("reg:5000", "podman:p"));
  CHECK(answer("reg:5000/a/b") == "podman:p");
  const std::string named = home.write("named", auths("reg:5000", "named:n"));
  ::setenv("REGISTRY_AUTH_FILE", named.c_str(), 1);
  CHECK(find("reg:5000/a/b").value()->source == named);
  CHECK(answer("reg:5000/a/b") == "named:n");
  CHECK(answer("reg:5000/a/b", "enroot") == "enroot:e1");
  CHECK(answer("reg:5001/a/b", "nobody") == "none");
  CHECK(answer("registry.example.org/a") == "none");
  ::setenv("REGISTRY_AUTH_FILE", "/nonexistent/auth.json", 1);
  Lines lines;
  CHECK(answer("reg:5000/a/b", "", &lines) == "podman:p");
  CHECK(has(lines.all, "$REGISTRY_AUTH_FILE names \"/nonexistent/auth.json\""));
}

TEST_CASE("credentials_key_matches_only_its_registry") {
  const auto fit = [](const char* key, const char* image) {
    return fit_of(key, ImageReference::parse(image).value());
  };
  CHECK(fit("https://index.docker.io/v1/", "ubuntu") == 1);
  CHECK(fit("docker.io", "docker.io/a/b") == 1);
  CHECK(fit("registry-1.docker.io", "ubuntu") == 1);
  CHECK(fit("https://reg:5000/v2/", "reg:5000/a") == 1);
  CHECK(fit("REG.example.org", "reg.example.org/a") == 1);
  CHECK(fit("reg:5000/a", "reg:5000/a/b") > fit("reg:5000", "reg:5000/a/b"));
  CHECK(fit("reg:5000/a/b", "reg:5000/a/b") > fit("reg:5000/a", "reg:5000/a/b"));
  CHECK(fit("reg:5000/a", "reg:5000/ab/c") == 0);
  CHECK(fit("reg:5000/a/", "reg:5000/a/b") == 0);
  CHECK(fit("reg:5000", "reg:5001/a") == 0);
  CHECK(fit("reg", "reg:5000/a") == 0);
  CHECK(fit("example.org", "reg.example.org/a") == 0);
  CHECK(fit("reg.example.org.evil.com", "reg.example.org/a") == 0);
  CHECK(fit("", "reg:5000/a") == 0);
  CHECK(fit("https://", "reg:5000/a") == 0);
}

// outcome 44 refused: credential files of every wrong form
TEST_CASE("credentials_auths_entries_are_read_in_every_form") {
  Home home;
  home.write(".docker/config.json", R"({"auths":{
    "https://index.docker.io/v1/": {"auth":")" +
                                        base64("hub:secret") + R"("},
    "reg:1": {"username":"u","password":"p"}, "reg:2": {"auth":")" +
                                        base64("<token>:") + R"(","identitytoken":"i.t"},
    "reg:3": {"registrytoken":"r.t"}, "reg:4": {}, "reg:5": {"auth":"%"}, "reg:6": 5,
    "reg:7": {"auth":5},
    "reg:8/team": {"username":"team","password":"t"}, "reg:8": {"username":"all","password":"a"}},
    "HttpHeaders": {"User-Agent": "x"}})");
  CHECK(answer("ubuntu") == "hub:secret");
  CHECK(answer("reg:1/a") == "u:p");
  CHECK(answer("reg:2/a") == "identity i.t");
  CHECK(answer("reg:3/a") == "registry r.t");
  CHECK(answer("reg:4/a") == "none");
  CHECK(has(answer("reg:5/a"),
            "/.docker/config.json\": entry \"reg:5\": \"auth\" is not USER:PASSWORD in base64"));
  CHECK(has(answer("reg:6/a"), "is not an object"));
  CHECK(has(answer("reg:7/a"), "auth"));
  CHECK(answer("reg:8/team/x") == "team:t");
  CHECK(answer("reg:8/other") == "all:a");
  CHECK(answer("reg:8/team/x", "all") == "all:a");
}

// outcome 44 refused: credential files of every wrong form
TEST_CASE("credentials_unusable_file_is_reported_and_skipped") {
  Home home;
  home.write(".docker/config.json", "{\"auths\": ");
  CHECK(has(answer("reg:5000/a"), "/.docker/config.json\": is not JSON"));
  home.write(".config/enroot/.credentials", "machine reg login u password p", 0644);
  Lines lines;
  CHECK(answer("reg:5000/a", "", &lines) == "u:p");
  CHECK(has(lines.all, "is not JSON"));
  CHECK(has(lines.all, "everyone can read the credentials in"));
  home.write(".docker/config.json", std::string((1 << 20) + 1, ' '));
  CHECK(has(answer("other:1/a"), "larger than 1 MiB"));
  std::filesystem::remove(home.path + "/.docker/config.json");
  REQUIRE(::mkfifo((home.path + "/.docker/config.json").c_str(), 0600) == 0);
  CHECK(has(answer("other:1/a"), "it is not a file"));
  std::filesystem::remove(home.path + "/.docker/config.json");
  std::filesystem::create_symlink("/dev/zero", home.path + "/.docker/config.json");
  CHECK(has(answer("other:1/a"), "it is not a file"));
}

// outcome 45 refused: credential helpers that misbehave
TEST_CASE("credential_helper_gets_one_registry_without_shell") {
  Home home;
  home.program("docker-credential-good",
               "read server; echo \"$1 $server\" >>" + home.path +
                   "/asked; echo '{\"ServerURL\":\"x\",\"Username\":\"h\",\"Secret\":\"s\"}'\n");
  home.program("docker-credential-token", "echo '{\"Username\":\"<token>\",\"Secret\":\"idt\"}'");
  home.program("docker-credential-empty",
               "echo 'credentials not found in native keychain'; exit 1");
  home.program("docker-credential-broken", "echo 'no \033[31mkeyring' >&2; exit 3");
  home.program("docker-credential-html", "echo '<html>'");
  home.program("docker-credential-endless", "exec cat /dev/zero");
  home.write(".docker/config.json", R"({"credsStore":"missing","auths":{"reg:2":{}},"credHelpers":{
    "reg:1":"good","docker.io":"good","reg:3":"token","reg:4":"empty","reg:5":"broken",
    "reg:6":"html","reg:7":"endless",
    "reg:8":"../evil","reg:9":5}})");
  CHECK(answer("reg:1/a") == "h:s");
  CHECK(find("reg:1/a").value()->source == "docker-credential-good");
  CHECK(answer("reg:1/a", "other") == "none");
  CHECK(answer("ubuntu") == "h:s");
  std::ifstream asked(home.path + "/asked");
  CHECK(std::string(std::istreambuf_iterator<char>(asked), {}) ==
        "get reg:1\nget reg:1\nget reg:1\nget https://index.docker.io/v1/\n");
  CHECK(answer("reg:3/a") == "identity idt");
  CHECK(answer("reg:4/a") == "none");
  const std::string broken = answer("reg:5/a");
  CHECK(has(broken,
            "credential helper \"docker-credential-broken\" about \"reg:5\": exited with status 3 "
            "(it says: no \\x1b[31mkeyring)"));
  CHECK(has(answer("reg:6/a"), "docker-credential-html"));
  CHECK(has(answer("reg:7/a"), "wrote more than 64 KiB"));
  CHECK(has(answer("reg:8/a"), "\"../evil\" is not the name of a credential helper"));
  CHECK(has(answer("reg:9/a"), "a helper is not a string"));
  // A missing helper for all registries matters only if docker has recorded that it has credentials
  // for the registry.
  CHECK(has(answer("reg:2/a"), "not found in PATH"));
  CHECK(answer("reg:99/a") == "none");
}

// outcome 45 refused: credential helpers that misbehave
TEST_CASE("credential_program_that_hangs_is_killed") {
  Home home;
  home.program("hangs", "sleep 60 & echo $! >" + home.path + "/pid; wait");
  const auto began = std::chrono::steady_clock::now();
  const auto hung = run_command({"hangs"}, "", std::chrono::seconds(1));
  REQUIRE_FALSE(hung);
  CHECK(has(hung.error().message(), "did not finish within 1 s"));
  pid_t pid = 0;
  std::ifstream(home.path + "/pid") >> pid;
  REQUIRE(pid > 0);
  for (int i = 0; i < 100 && std::filesystem::exists("/proc/" + std::to_string(pid) + "/exe"); ++i)
    ::usleep(10'000);
  std::error_code ignored;
  CHECK_FALSE(std::filesystem::exists(
      std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", ignored)));
  home.program("agent", "sleep 3 & echo done");
  const auto left = run_command({"agent"}, "", std::chrono::seconds(20));
  REQUIRE(left);
  CHECK(left->out.text() == "done\n");
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(3));
  home.program("descriptors", "ls /proc/self/fd | tr '\\n' ' '");
  const int extra = ::open(
      "/dev/null",
      O_RDONLY);  // not close-on-exec, like descriptor 3 of the user's reader process
  CHECK(run_command({"descriptors"}, "").value().out.text() ==
        "0 1 2 3 ");  // 3: ls reads the directory
  ::close(extra);
  CHECK_FALSE(run_command({"/nonexistent/program"}, ""));
}

TEST_CASE("credentials_of_enroot_are_read_as_enroot_does") {
  Home home;
  const auto expand = [&](const std::string& password, bool may_run = true) -> std::string {
    const auto found = secret_in_enroot(
        "machine nvcr.io login $oauthtoken password " + password + "\n", "/h/.credentials",
        ImageReference::parse("nvcr.io/nvidia/cuda").value(), "", may_run);
    if (!found) return found.error().message();
    return (*found)->username + " " + (*found)->password.text();
  };
  CHECK(expand("abc") == "$oauthtoken abc");
  CHECK(expand("abc  # trailing words") == "$oauthtoken abc");
  ::setenv("SPC_TEST_TOKEN", "from-environment", 1);
  CHECK(expand("$SPC_TEST_TOKEN") == "$oauthtoken from-environment");
  CHECK(expand("${SPC_TEST_TOKEN}") == "$oauthtoken from-environment");
  CHECK(has(expand("$SPC_TEST_NOT_SET"),
            "\"/h/.credentials\", line 1: the variable \"SPC_TEST_NOT_SET\" is not set"));
  home.program("cloud", "echo cloud-$1-$#");
  CHECK(expand("$(cloud print-access-token)") == "$oauthtoken cloud-print-access-token-1");
  CHECK(expand("$(cloud x | tr -d '\"' | tr c k)") == "$oauthtoken kloud-x-1");
  CHECK(expand("${SPC_TEST_TOKEN}$(cloud x)") == "$oauthtoken from-environmentcloud-x-1");
  home.program("fails", "echo not logged in >&2; exit 2");
  CHECK(has(expand("$(fails)"), "exited with status 2 (it says: not logged in)"));
  CHECK(has(expand("$(cloud x)", false), "other users can write the file"));
  CHECK(has(expand("$(true)"), "the password is empty"));
  CHECK(has(expand("$(no-such-program x)"), "not found in PATH"));

  const auto found = [](const std::string& text, const std::string& image,
                        const std::string& user = "") -> std::string {
    const auto secret =
        secret_in_enroot(text, "f", ImageReference::parse(image).value(), user, true);
    if (!secret) return secret.error().message();
    return *secret ? (*secret)->username : "none";
  };
  const std::string lines =
      "machine auth.docker.io login hub password p\nmachine reg login plain password p\n"
      "machine reg:5001 login ported password p\nmachine two login a password p\nmachine two login "
      "b password p";
  CHECK(found(lines, "ubuntu") == "hub");
  CHECK(found(lines, "reg:5000/x") == "plain");
  CHECK(found(lines, "reg:5001/x") == "plain");
  CHECK(found(lines, "reg:5001/x", "ported") == "ported");
  CHECK(found(lines, "two:1/x", "b") == "b");
  CHECK(found(lines, "two:1/x", "c") == "none");
  CHECK(found(lines, "three:1/x") == "none");
  CHECK(found("default login everybody password p", "reg:1/x") == "none");
  CHECK(has(found("machine reg:1 password p", "reg:1/x"),
            "machine HOST login USER password PASSWORD"));
}

TEST_CASE("credentials_for_other_registry_are_refused") {
  Home home;
  home.write(
      ".docker/config.json",
      R"({"auths":{"reg:1":{"username":"u","password":"p"},"reg:2":{"username":"v",)"
      R"("password":"q"}}})");
  const auto image = ImageReference::parse("reg:1/a").value();
  auto [import_side, user_side] = socket_pair().value();
  Lines log;
  const auto ask = [&, &asking = import_side, &answering = user_side](const std::string& registry) {
    UserSourceMessage question;
    question.kind = UserSourceKind::credentials;
    question.text.set(registry);
    REQUIRE(answer_credentials(answering.get(), question, image, log));
    UserSourceMessage answered;
    auto descriptors = receive_struct(asking.get(), answered, 1).value();
    CHECK(descriptors.size() == (answered.kind == UserSourceKind::secret ? 1 : 0));
    if (answered.kind == UserSourceKind::secret) {
      CHECK(RegistrySecret::from_file(descriptors[0].get()).value().username == "u");
    }
    return answered;
  };
  CHECK(ask("reg:1").kind == UserSourceKind::secret);
  const auto refused = ask("reg:2");
  CHECK(refused.kind == UserSourceKind::failed);
  CHECK(has(refused.error.error().message(), "are not sent"));
  home.write(".docker/config.json", "{}");
  CHECK(ask("reg:1").kind == UserSourceKind::none);
}

TEST_CASE("login_is_saved_privately_and_found_again") {
  Home home;
  Lines log;
  const auto places = [] { return CredentialPlaces::of_user(); };
  RegistrySecret secret;
  secret.username = "alice";
  secret.password = SecretText("p:1");
  CHECK(store_credentials(places(), "reg:5000", secret, log).value() ==
        home.path + "/.docker/config.json");
  CHECK(answer("reg:5000/a") == "alice:p:1");
  CHECK((std::filesystem::status(home.path + "/.docker/config.json").permissions() &
         std::filesystem::perms::all) == std::filesystem::perms(0600));
  // Keeps entries of other registries, their order and a link.
  home.write(
      "dotfiles/config.json",
      R"({"zeta":[1,2],"auths":{"other:1":{"auth":"eDp5"},)"
      R"("https://index.docker.io/v1/":{"auth":"eDp5"}},"alpha":true})");
  std::filesystem::remove(home.path + "/.docker/config.json");
  std::filesystem::create_symlink("../dotfiles/config.json", home.path + "/.docker/config.json");
  REQUIRE(store_credentials(places(), "registry-1.docker.io", secret, log));
  CHECK(std::filesystem::is_symlink(home.path + "/.docker/config.json"));
  std::ifstream file(home.path + "/dotfiles/config.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  CHECK(text.find("zeta") < text.find("alpha"));
  CHECK(answer("other:1/a") == "x:y");
  CHECK(answer("ubuntu") == "alice:p:1");
  CHECK(text.find("index.docker.io") == text.rfind("index.docker.io"));
  // An earlier location must not hide the new login.
  home.write("run/containers/auth.json", auths("reg:5000", "old:o"));
  CHECK(store_credentials(places(), "reg:5000", secret, log).value() ==
        home.path + "/run/containers/auth.json");
  CHECK(answer("reg:5000/a") == "alice:p:1");
  secret.identity_token = SecretText("idt");
  REQUIRE(store_credentials(places(), "reg:5000", secret, log));
  CHECK(answer("reg:5000/a") == "identity idt");

  home.write(".config/enroot/.credentials", "machine reg login e password e");
  const auto removed = remove_credentials(places(), "reg:5000", log).value();
  CHECK(removed == std::vector<std::string>{home.path + "/run/containers/auth.json"});
  CHECK(has(log.all, "which must be edited manually"));
  CHECK(answer("reg:5000/a") == "e:e");
  CHECK(answer("other:1/a") == "x:y");
  CHECK(remove_credentials(places(), "nowhere:1", log).value().empty());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(home.path)) {
    CHECK(entry.path().filename().string().find("json.") ==
          std::string::npos);  // no temporary file is left
  }
  home.write("dotfiles/config.json", "{broken");
  CHECK(has(store_credentials(places(), "new:1", secret, log).error().message(), "is not JSON"));
  std::ifstream unharmed(home.path + "/dotfiles/config.json");
  CHECK(std::string(std::istreambuf_iterator<char>(unharmed), {}) == "{broken");
}

TEST_CASE("login_with_helper_stores_only_there") {
  Home home;
  Lines log;
  home.program("docker-credential-store",
               "case $1 in store) cat >" + home.path + "/kept;; get) [ -e " + home.path +
                   "/kept ] && cat " + home.path +
                   "/kept || { echo credentials not found in native keychain; exit 1; };;"
                   " erase) rm " +
                   home.path + "/kept;; esac");
  const std::string path = home.write(".docker/config.json", R"({"credsStore":"store"})");
  RegistrySecret secret;
  secret.username = "alice";
  secret.password = SecretText("hidden");
  CHECK(store_credentials(CredentialPlaces::of_user(), "reg:5000", secret, log).value() ==
        "docker-credential-store");
  std::ifstream file(path);
  CHECK(std::string(std::istreambuf_iterator<char>(file), {}).find("hidden") == std::string::npos);
  CHECK(answer("reg:5000/a") == "alice:hidden");
  const auto removed = remove_credentials(CredentialPlaces::of_user(), "reg:5000", log).value();
  CHECK(removed == std::vector<std::string>{"docker-credential-store", path});
  CHECK(answer("reg:5000/a") == "none");
  home.program("docker-credential-store", "echo locked >&2; exit 1");
  CHECK(
      has(store_credentials(CredentialPlaces::of_user(), "reg:5000", secret, log).error().message(),
          "it says: locked"));
}
