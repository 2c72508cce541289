#include "catch.hpp"
#include "image/config.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

using namespace spc;

namespace {

bool refused(const std::string& text, const std::string& reason) {
  const auto config = parse_config(text, "config.toml");
  if (config) return false;
  INFO(config.error().message());
  CHECK(config.error().message().find(reason) != std::string::npos);
  CHECK(config.error().message().find('\n') == std::string::npos);
  return true;
}

}  // namespace

TEST_CASE("an empty or missing file means the defaults") {
  const Config config = parse_config("", "config.toml").value();
  CHECK(config.default_registry == "docker.io");
  CHECK(config.writable);
  CHECK(config.upper_size == "50%");
  CHECK(config.public_ttl == 3600);
  CHECK(read_config("/nonexistent/config.toml").value().pull == PullPolicy::newer);
}

TEST_CASE("every key is read") {
  const Config config = parse_config(R"(
default_registry = "reg:5000"
writable = false
mount_home = true
upper_size = "20G"
squashfs = "fuse"
pull = "missing"
public_ttl = 5
tag_ttl = 6
max_parallel_layers = 7
max_image_bytes = 8
stall_timeout = 9
https_proxy = "http://proxy:3128"
http_proxy = "proxy2:3128"
no_proxy = ["localhost", ".example.org"]
allowed_registries = ["Node01:5000", "*.example.org", "index.docker.io"]
[registries."Node01:5000"]
insecure = true
[registries."reg.example.org"]
ca = "/x.pem"
blocked = true
mirrors = ["mirror:5000/hub", "[::1]:5000"]
mirror_tags = true
login_servers = ["auth.example.com", "auth:8443"]
require_digest = true
)",
                                     "config.toml")
                            .value();
  CHECK(config.default_registry == "reg:5000");
  CHECK_FALSE(config.writable);
  CHECK(config.mount_home);
  CHECK(config.upper_size == "20G");
  CHECK(config.squashfs == "fuse");
  CHECK(config.pull == PullPolicy::missing);
  CHECK(config.public_ttl == 5);
  CHECK(config.tag_ttl == 6);
  CHECK(config.max_parallel_layers == 7);
  CHECK(config.max_image_bytes == 8);
  CHECK(config.stall_timeout == 9);
  CHECK(config.https_proxy == "http://proxy:3128");
  CHECK(config.http_proxy == "proxy2:3128");
  CHECK(config.no_proxy == std::vector<std::string>{"localhost", ".example.org"});
  CHECK(config.registry("reg.example.org").mirrors == std::vector<std::string>{"mirror:5000/hub", "[::1]:5000"});
  CHECK(config.registry("reg.example.org").mirror_tags);
  CHECK(config.registry("reg.example.org").login_servers.size() == 2);
  CHECK(config.registry("reg.example.org").require_digest);
  CHECK(config.allows("node01:5000"));
  CHECK(config.allows("docker.io"));
  CHECK(config.allows("a.b.example.org"));
  CHECK_FALSE(config.allows("reg.example.org"));  // blocked
  CHECK_FALSE(config.allows("example.org"));
  CHECK_FALSE(config.allows("evilexample.org"));
  CHECK_FALSE(config.allows("node01"));
  CHECK(config.registry("node01:5000").insecure);
  CHECK(config.registry("reg.example.org").blocked);
  CHECK(config.registry("reg.example.org").ca == "/x.pem");
  CHECK_FALSE(config.registry("other").insecure);
}

TEST_CASE("a mistake is named with its line and what was probably meant") {
  CHECK(refused("\nwritabel = true", "line 2: writabel: unknown key (hint: did you mean \"writable\"?)"));
  CHECK(refused("completely_different = 1", "unknown key (hint: the keys"));
  CHECK(refused("registrys = 1", "did you mean \"registries\"?"));
  CHECK(refused("writable = 1", "line 1: writable: needs true or false"));
  CHECK(refused("tag_ttl = -1", "needs a number from 0"));
  CHECK(refused("tag_ttl = \"5\"", "needs a whole number"));
  CHECK(refused("max_parallel_layers = 65", "from 0 to 64"));
  CHECK(refused("squashfs = \"always\"", "\"always\" is not allowed: needs auto, kernel or fuse"));
  CHECK(refused("pull = \"often\"", "newer, missing, always or never"));
  CHECK(refused("default_registry = \"a b\"", "HOST or HOST:PORT"));
  for (const char* size : {"", "0", "0%", "101%", "5X", "5GB", "-1", "G", "9999999999999"}) {
    CHECK(refused("upper_size = \"" + std::string(size) + "\"", "1% to 100%"));
  }
  CHECK(refused("[registries.\"a:b:c\"]\ninsecure = true", "is not HOST or HOST:PORT"));
  CHECK(refused("[registries.\"r:1\"]\ninsecur = true",
                "line 2: registries.\"r:1\".insecur: unknown key (hint: did you mean \"insecure\"?)"));
  CHECK(refused("[registries.\"r:1\"]\nca = \"x\"", "absolute path"));
  CHECK(refused("[registries.\"r:1\"]\n[registries.\"R:1\"]", "twice"));
  CHECK(refused("[registries.\"r:1\"]\nmirrors = \"m\"", "needs a list"));
  CHECK(refused("[registries.\"r:1\"]\nmirrors = [\"m:1/../x\"]", "HOST[:PORT][/PREFIX]"));
  CHECK(refused("[registries.\"r:1\"]\nmirrors = [\"https://m:1\"]", "HOST[:PORT][/PREFIX]"));
  CHECK(refused("[registries.\"r:1\"]\nlogin_servers = [5]", "needs text in quotes"));
  CHECK(refused("allowed_registries = [\"*\"]", "*.DOMAIN"));
  CHECK(refused("https_proxy = \"ftp://x\"", "needs http://HOST:PORT"));
  CHECK(refused("no_proxy = [\"a,b\"]", "one host or domain"));
  CHECK(refused("registries = 5", "needs tables"));
  CHECK(refused("a = = b", "line 1"));
  CHECK(refused("writable = true\nwritable = false", "config.toml"));
}

TEST_CASE("a file that others can write is refused") {
  char path[] = "/tmp/spc-config-XXXXXX";
  const int fd = ::mkstemp(path);
  REQUIRE(fd >= 0);
  REQUIRE(::write(fd, "tag_ttl = 3\n", 12) == 12);
  ::close(fd);
  CHECK(read_config(path).value().tag_ttl == 3);
  ::chmod(path, 0620);
  CHECK(read_config(path).error().message().find("can be written by others") != std::string::npos);
  ::unlink(path);
  CHECK(read_config("/tmp").error().message().find("is not a file") != std::string::npos);
}

TEST_CASE("CONFIG.md has exactly the keys the program knows") {
  std::ifstream file(SPC_CONFIG_PAGE);
  REQUIRE(file);
  std::vector<std::string> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| `")) rows.push_back(line);
  }
  std::vector<std::string> expected;
  const auto add = [&](std::span<const ConfigKey> keys) {
    for (const ConfigKey& key : keys) {
      const std::string value = *key.default_text != '\0' ? " `" + std::string(key.default_text) + "` " : " ";
      expected.push_back("| `" + std::string(key.name) + "` | " + key.type + " |" + value + "| " + key.meaning + " |");
    }
  };
  add(config_keys());
  add(store_config_keys());
  add(registry_config_keys());
  CHECK(rows == expected);
}
