#include "image/config/config.hpp"
#include "image/config/config_example.hpp"
#include "unit/test.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "unit/image/helpers.hpp"

using namespace spc;
using namespace spc::test;

namespace {

bool config_refused(const std::string& text, const std::string& reason) {
  return refused(parse_config(text, "config.toml"), reason);
}

/// A directory that goes with the test.
struct Scratch {
  std::string directory = "/tmp/spc-config-XXXXXX";

  Scratch() { REQUIRE(::mkdtemp(directory.data()) != nullptr); }
  ~Scratch() { std::filesystem::remove_all(directory); }
  [[nodiscard]] std::string path(const std::string& name) const { return directory + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name)) << text;
  }
};

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
import_memory = "200M"
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
  CHECK(config.import_memory == 200ULL << 20U);
  CHECK(config.max_image_bytes == 8);
  CHECK(config.stall_timeout == 9);
  CHECK(config.https_proxy == "http://proxy:3128");
  CHECK(config.http_proxy == "proxy2:3128");
  CHECK(config.no_proxy == std::vector<std::string>{"localhost", ".example.org"});
  CHECK(config.registry("reg.example.org").mirrors ==
        std::vector<std::string>{"mirror:5000/hub", "[::1]:5000"});
  CHECK(config.registry("reg.example.org").mirror_tags);
  CHECK(config.registry("reg.example.org").login_servers.size() == 2);
  CHECK(config.registry("reg.example.org").require_digest);
  const RegistryRules rules = config.submit_rules().registries;
  CHECK(rules.check("node01:5000"));
  CHECK(rules.check("docker.io"));
  CHECK(rules.check("a.b.example.org"));
  CHECK_FALSE(rules.check("reg.example.org"));  // blocked
  CHECK_FALSE(rules.check("example.org"));
  CHECK_FALSE(rules.check("evilexample.org"));
  CHECK_FALSE(rules.check("node01"));
  CHECK(config.registry("node01:5000").insecure);
  CHECK(config.registry("reg.example.org").blocked);
  CHECK(config.registry("reg.example.org").ca == "/x.pem");
  CHECK_FALSE(config.registry("other").insecure);
}

TEST_CASE("what nodes have is read for all, by partition and by feature") {
  const auto config =
      parse_config(
          "[nodes]\narch = \"amd64\"\n[partitions.\"gh-200\"]\narch = \"arm64\"\ngpu = \"nvidia\"\n"
          "driver = \"550.54.15\"\nglibc = \"2.28\"\npmi = [\"pmix\", \"pmi2\"]\n[features.a100]\n",
          "c")
          .value();
  CHECK(config.nodes.arch == "amd64");
  CHECK(config.nodes.gpu == "any");
  const NodesConfig& some = config.partitions.at("gh-200");
  CHECK((some.arch == "arm64" && some.gpu == "nvidia" && some.driver == "550.54.15" &&
         some.glibc == "2.28" && some.pmi.size() == 2));
  CHECK(config.features.contains("a100"));
  for (const std::string wrong :
       {"[partitions.a]\narch = \"x86 64\"\n", "[nodes]\ndriver = \"550.x\"\n",
        "[nodes]\ngpu = \"cuda\"\n", "[features]\na = 1\n", "[partitions.a]\npmi = [\"\"]\n",
        "[partitions.a]\nunknown = 1\n", "[[nodes]]\n"}) {
    INFO(wrong);
    CHECK(!parse_config(wrong, "c"));
  }
}

TEST_CASE("a mistake is named with its line and what was probably meant") {
  CHECK(config_refused("\nwritabel = true",
                       "line 2: writabel: unknown key (hint: did you mean \"writable\"?)"));
  CHECK(config_refused("completely_different = 1", "unknown key (hint: the keys"));
  CHECK(config_refused("registrys = 1", "did you mean \"registries\"?"));
  CHECK(config_refused("writable = 1", "line 1: writable: expected true or false"));
  CHECK(config_refused("tag_ttl = -1", "expected a number from 0"));
  CHECK(config_refused("writable = true\nmpi = 'd\xe9j\xe0'", "line 2: not UTF-8"));
  CHECK(config_refused("tag_ttl = \"5\"", "expected a whole number"));
  CHECK(config_refused("max_parallel_layers = 65", "from 0 to 64"));
  CHECK(config_refused("squashfs = \"always\"",
                       "\"always\" is not allowed: expected auto, kernel, copy or fuse"));
  CHECK(config_refused("pull = \"often\"", "newer, missing, always or never"));
  CHECK(config_refused("default_registry = \"a b\"", "HOST or HOST:PORT"));
  for (const char* size : {"", "0", "0%", "101%", "5X", "5GB", "-1", "G", "9999999999999"}) {
    CHECK(config_refused("upper_size = \"" + std::string(size) + "\"", "1% to 100%"));
  }
  CHECK(config_refused("[registries.\"a:b:c\"]\ninsecure = true", "is not HOST or HOST:PORT"));
  CHECK(config_refused(
      "[registries.\"r:1\"]\ninsecur = true",
      "line 2: registries.\"r:1\".insecur: unknown key (hint: did you mean \"insecure\"?)"));
  CHECK(config_refused("[registries.\"r:1\"]\nca = \"x\"", "absolute path"));
  CHECK(config_refused("[registries.\"r:1\"]\n[registries.\"R:1\"]", "duplicate entry"));
  CHECK(config_refused("[registries.\"r:1\"]\nmirrors = \"m\"", "expected a list"));
  CHECK(config_refused("[registries.\"r:1\"]\nmirrors = [\"m:1/../x\"]", "HOST[:PORT][/PREFIX]"));
  CHECK(
      config_refused("[registries.\"r:1\"]\nmirrors = [\"https://m:1\"]", "HOST[:PORT][/PREFIX]"));
  CHECK(config_refused("[registries.\"r:1\"]\nlogin_servers = [5]", "expected text in quotes"));
  CHECK(config_refused("allowed_registries = [\"*\"]", "*.DOMAIN"));
  CHECK(config_refused("https_proxy = \"ftp://x\"", "expected http://HOST:PORT"));
  CHECK(config_refused("no_proxy = [\"a,b\"]", "one host or domain"));
  CHECK(config_refused("registries = 5", "expected tables"));
  CHECK(config_refused("a = = b", "line 1"));
  CHECK(config_refused("writable = true\nwritable = false", "config.toml"));
}

TEST_CASE("a file that others can write is refused") {
  char path[] = "/tmp/spc-config-XXXXXX";
  const int fd = ::mkstemp(path);
  REQUIRE(fd >= 0);
  REQUIRE(::write(fd, "tag_ttl = 3\n", 12) == 12);
  ::close(fd);
  CHECK(read_config(path).value().tag_ttl == 3);
  ::chmod(path, 0620);
  CHECK(read_config(path).error().message().find("is writable by others") != std::string::npos);
  ::unlink(path);
  CHECK(read_config("/tmp").error().message().find("is not a file") != std::string::npos);
}

TEST_CASE("the keys of the user's side become records") {
  const auto records = [](const std::string& text) {
    std::string shown = site_records(parse_config(text, "config.toml").value().site);
    for (char& c : shown) c = c == '\0' ? '\n' : c;
    return shown;
  };
  const std::string defaults = records("");
  CHECK(defaults.find("entrypoint=no\nentrypoint_timeout=60\n") != std::string::npos);
  CHECK(defaults.find("mounts") == std::string::npos);
  CHECK(defaults.find("importer") == std::string::npos);
  const std::string given = R"(
remap_root = true
entrypoint = "task"
entrypoint_timeout = 5
slurm = true
batch = "steps"
container_scope = "job"
messages = "pyxis"
error_report = false
task_prolog_on_host = true
mounts = ["/a:/b:ro", "tmpfs:/c"]
env = ["A=b=c", "_=",]
keep_env = ["A", "B_*"]
allowed_paths = ["/images"]
features_off = ["container-save", "container-name"]
max_tmpfs_size = "10%"
importer = "/opt/importer"
gpu = "off"
gpu_devices = "accessible"
gpu_numbers = "file"
driver_root = "/opt/driver"
prefer_cdi = true
cuda_compat = false
mpi = "host"
mpi_abi = "strict"
mpi_libraries = ["/opt/mpi/libmpi.so.40"]
mpi_dependencies = ["/opt/mpi/libopen-pal.so.40", "/opt/mpi/libucp.so.0"]
mpi_mounts = ["/opt/mpi:/opt/mpi:ro"]
mpi_env = ["LD_PRELOAD=libmpi_gtl_cuda.so.0"]
fabric = "require"
fabric_libraries = ["/opt/libnccl-net.so"]
fabric_devices = ["mlx5_[0-9]", "0000:1b:00.?"]
fallback_libraries = ["/usr/lib64/libnl-3.so.200"]
frameworks = false
python_user_base = false
hooks_off = ["50-nccl"]
hook_timeout = 7
user_hooks = true
enroot_compat = true
check_at_submit = true
)";
  std::string all;  // of what is given
  std::istringstream lines(records(given));
  for (std::string line; std::getline(lines, line);) {
    if (given.find("\n" + line.substr(0, line.find('=')) + " = ") != std::string::npos)
      all += line + "\n";
  }
  CHECK(all ==
        "remap_root=true\nentrypoint=task\nentrypoint_timeout=5\nslurm=true\nbatch="
        "steps\ncontainer_scope=job\nmessages=pyxis\n"
        "error_report=false\ntask_prolog_on_host=true\nmounts=/a:/b:ro\nmounts=tmpfs:/"
        "c\nenv=A=b=c\nenv=_=\nkeep_env=A\n"
        "keep_env=B_*\nallowed_paths=/"
        "images\nfeatures_off=container-save\nfeatures_off=container-name\nmax_tmpfs_size=10%\n"
        "importer=/opt/importer\ngpu=off\ngpu_devices=accessible\ngpu_numbers=file\ndriver_root=/"
        "opt/driver\nprefer_cdi=true\n"
        "cuda_compat=false\nmpi=host\n"
        "mpi_abi=strict\nmpi_libraries=/opt/mpi/libmpi.so.40\nmpi_dependencies=/opt/mpi/"
        "libopen-pal.so.40\n"
        "mpi_dependencies=/opt/mpi/libucp.so.0\nmpi_mounts=/opt/mpi:/opt/mpi:ro\n"
        "mpi_env=LD_PRELOAD=libmpi_gtl_cuda.so.0\nfabric=require\nfabric_libraries=/opt/"
        "libnccl-net.so\n"
        "fabric_devices=mlx5_[0-9]\nfabric_devices=0000:1b:00.?\nfallback_libraries=/usr/lib64/"
        "libnl-3.so.200\nframeworks=false\npython_user_base=false\nhooks_off=50-nccl\nhook_timeout="
        "7\n"
        "user_hooks=true\nenroot_compat=true\ncheck_at_submit=true\n");
}

TEST_CASE("what only the user's side does is checked too") {
  CHECK(config_refused("features_off = [\"container-save\",\n\"container-savee\"]",
                       "line 2: features_off: \"container-savee\" is not allowed"));
  CHECK(
      config_refused("features_off = [\"--container-save\"]", "did you mean \"container-save\"?"));
  CHECK(config_refused("entrypoint = \"nodes\"",
                       "expected no, node or task (hint: did you mean \"node\"?)"));
  CHECK(config_refused("entrypoint = true", "expected text in quotes"));
  CHECK(config_refused("mounts = [\"data:/x\"]", "SRC[:DST[:FLAGS]]"));
  CHECK(config_refused("mounts = [\"/a\\n:/x\"]", "SRC[:DST[:FLAGS]]"));
  CHECK(config_refused("env = [\"A\"]", "NAME=VALUE"));
  CHECK(config_refused("env = [\"1A=b\"]", "NAME=VALUE"));
  CHECK(config_refused("env = [\"A=\\u0000\"]", "it contains a NUL"));
  CHECK(config_refused("keep_env = [\"A B\"]", "a pattern"));
  CHECK(config_refused("allowed_paths = [\"images\"]", "an absolute path"));
  CHECK(config_refused("max_tmpfs_size = \"5GB\"", "1% to 100%"));
  CHECK(config_refused("importer = \"importer\"", "absolute path of a program"));
  CHECK(config_refused("entrypoint_timeout = 1000000", "from 0 to 86400"));
}

TEST_CASE("files of config.d count more than config.toml, later ones more than earlier ones") {
  const Scratch scratch;
  scratch.write("config.toml",
                "tag_ttl = 1\npublic_ttl = 1\nstall_timeout = 1\nenv = "
                "[\"A=1\"]\n[registries.\"r:1\"]\ninsecure = true\n");
  scratch.write("config.d/20-b.toml", "tag_ttl = 3\n[registries.\"r:1\"]\nblocked = true\n");
  scratch.write("config.d/10-a.toml", "tag_ttl = 2\npublic_ttl = 2\nenv = []\n");
  scratch.write("config.d/30-c.toml~", "nonsense");
  scratch.write("config.d/.30.toml", "nonsense");
  const Config config = read_config(scratch.path("config.toml")).value();
  CHECK(config.tag_ttl == 3);
  CHECK(config.public_ttl == 2);
  CHECK(config.stall_timeout == 1);
  CHECK(config.site.env.empty());
  CHECK(config.registry("r:1").insecure);
  CHECK(config.registry("r:1").blocked);
  scratch.write("config.d/25.toml", "\nwritabel = true\n");
  const std::string message = read_config(scratch.path("config.toml")).error().message();
  CHECK(message.find("config.d/25.toml\", line 2: writabel: unknown key") != std::string::npos);
}

TEST_CASE("config.d counts without config.toml") {
  const Scratch scratch;
  scratch.write("config.d/a.toml", "tag_ttl = 3\n");
  CHECK(read_config(scratch.path("config.toml")).value().tag_ttl == 3);
}

TEST_CASE("a directory above a configuration that others can write is refused") {
  const Scratch scratch;
  scratch.write("config.toml", "");
  scratch.write("config.d/a.toml", "");
  const auto refusal = [&] {
    const auto config = read_config(scratch.path("config.toml"));
    return config ? std::string("accepted") : config.error().message();
  };
  CHECK(refusal() == "accepted");
  ::chmod(scratch.path("config.d").c_str(), 0777);
  CHECK(refusal().find("config.d\" is writable by others (hint: chmod go-w it)") !=
        std::string::npos);
  ::chmod(scratch.path("config.d").c_str(), 0755);
  ::chmod(scratch.path("config.d/a.toml").c_str(), 0664);
  CHECK(refusal().find("config.d/a.toml\": is writable by others") != std::string::npos);
  ::chmod(scratch.path("config.d/a.toml").c_str(), 0644);
  ::chmod(scratch.path("").c_str(), 0775);
  CHECK(refusal().find("\": directory \"" + scratch.directory + "\" is writable by others") !=
        std::string::npos);
  ::chmod(scratch.path("").c_str(), 0755);
  CHECK(refusal() == "accepted");
}

TEST_CASE("a link to a configuration is as good as the directories that it leads through") {
  const Scratch site;
  const Scratch other;
  other.write("real.toml", "tag_ttl = 3\n");
  ::mkdir(other.path("loose").c_str(), 0755);
  REQUIRE(::symlink("../real.toml", other.path("loose/step.toml").c_str()) == 0);
  REQUIRE(::symlink(other.path("loose/step.toml").c_str(), site.path("config.toml").c_str()) == 0);
  CHECK(read_config(site.path("config.toml")).value().tag_ttl == 3);
  ::chmod(other.path("loose").c_str(), 0777);
  CHECK(read_config(site.path("config.toml"))
            .error()
            .message()
            .find("loose\" is writable by others") != std::string::npos);
  ::unlink(site.path("config.toml").c_str());
  REQUIRE(::symlink("config.toml", site.path("config.toml").c_str()) == 0);
  CHECK(read_config(site.path("config.toml")).error().sys_errno() == ELOOP);
}

TEST_CASE("every row has a meaning, and a default that it allows") {
  const auto check = [](const auto& rows) {
    for (const auto& row : rows) {
      INFO(row.name);
      CHECK(*row.meaning != '\0');
      if (row.check != nullptr) CHECK(row.rule != nullptr);
      const std::string text = row.default_text;
      if (row.check != nullptr && !text.empty()) CHECK(row.check(text));
      const bool has_words = std::string(row.type).find(", ") != std::string::npos;
      if (has_words)
        CHECK((", " + std::string(row.type) + ",").find(", " + text + ",") != std::string::npos);
    }
  };
  check(kConfigKeys);
  check(kSiteKeys);
  check(kStoreKeys);
  check(kSharedKeys);
  check(kPeersKeys);
  check(kNodesKeys);
  check(kRegistryKeys);
}

TEST_CASE("the example that is installed has every key with its default") {
  std::string text = config_example();
  std::size_t keys = 0;
  for (std::size_t sign = 0; (sign = text.find("\n#", sign)) != std::string::npos; ++sign) {
    if (text[sign + 2] == ' ') continue;
    text.erase(sign + 1, 1);
    keys += text[sign + 1] != '[';
  }
  CHECK(keys == std::size(kConfigKeys) + std::size(kSiteKeys) + std::size(kStoreKeys) +
                    std::size(kSharedKeys) + std::size(kPeersKeys) + std::size(kNodesKeys) +
                    std::size(kRegistryKeys));
  const auto config = parse_config(text, "config.toml.example").value();
  CHECK(config.registries.size() == 1);
  CHECK(config.site == SitePolicy());
  CHECK(config.store.max_size == StoreConfig().max_size);
  CHECK(config.shared.directory.empty());
  CHECK(config.public_ttl == Config().public_ttl);
}

namespace {

SubmitRules plain(const std::vector<std::string>& texts) {
  std::vector<ConfigFile> files;
  for (const std::string& text : texts) files.push_back({"config.toml", text});
  return SubmitRules::of(files);
}

/// What srun makes of plain texts is what all others make of them.
bool is_read_alike(const std::vector<std::string>& texts) {
  Config config;
  for (const std::string& text : texts) REQUIRE(add_config(config, text, "config.toml"));
  SubmitRules rules = plain(texts);
  std::sort(rules.registries.blocked.begin(), rules.registries.blocked.end());
  return rules == config.submit_rules();
}

}  // namespace

TEST_CASE("srun reads plain TOML as the configuration is read") {
  CHECK(is_read_alike({""}));
  CHECK(is_read_alike({config_example()}));
  CHECK(
      is_read_alike({"features_off = [\"container-save\", 'container-name']\nimporter = "
                     "\"/x\"\ncheck_at_submit = true"}));
  CHECK(is_read_alike({"pull = 'missing'\n", "pull = \"always\""}));
  CHECK(
      is_read_alike({"# a = \"\n\r\n \"features_off\" = [ # first\n\n 'container-save' , # "
                     "\"]\n]\t# last\r\ntag_ttl = 1_0\n"}));
  CHECK(
      is_read_alike({"allowed_registries = [\"a:1\", \"*.b.c\",]\ndefault_registry = "
                     "'r:5000'\n[store]\nmax_size = \"1T\"\n"
                     "[ registries . \"Node:1\" ]\nblocked = true\nca = "
                     "\"/a#b\"\n[registries.other]\nblocked = false\n"}));
  CHECK(
      is_read_alike({"features_off = [\"container-save\"]\n[registries.a]\nblocked = "
                     "true\n[registries.b]\nblocked = true\n",
                     "features_off = []\n[registries.a]\nblocked = false\n"}));
  CHECK(
      is_read_alike({"[peers]\nsrun_ports = \"61000-61099\"\nfanout = 3\nports = "
                     "'5000-5001'\n[shared]\npull_at_submit = \"/x\"",
                     "[peers]\nfanout = 4"}));
  CHECK(plain({}).known == SubmitRules::Known::none);
  CHECK(plain({""}).known == SubmitRules::Known::all);
}

TEST_CASE("what is more than plain TOML is left to scontainer") {
  for (const char* text : {"registries.\"a\".blocked = true",
                           "registries = { a = { blocked = true } }",
                           "features_off = \"\"\"container-save\"\"\"",
                           "features_off = ['''container-save''']",
                           "features_off = [\"container\\u002dsave\"]",
                           "features_off = \"container-save\"",
                           "features_off = [true]",
                           "features_off = [\"a\" \"b\"]",
                           "features_off = [\"container-save\"",
                           "check_at_submit = \"yes\"",
                           "check_at_submit = 1",
                           "pull = \"sometimes\"",
                           "pull = true",
                           "importer = /opt/x",
                           "importer = \"/opt",
                           "[registries.\"a b\"]\nblocked = true",
                           "[[registries]]",
                           "[registries.\"a\"",
                           "[registries.\"a\"]\nblocked = 1",
                           "writable",
                           "writable =",
                           "= true",
                           "writable = true false",
                           "a.b = 1",
                           "[peers]\nfanout = 0x2",
                           "[peers]\nfanout = \"2\"",
                           "[peers]\nsrun_ports = 5000",
                           "[shared]\npull_at_submit = 1",
                           "[peers]\nsrun_ports = \"5000\""}) {
    INFO(text);
    CHECK(plain({text}).known == SubmitRules::Known::some);
    CHECK(plain({"", text, ""}).known == SubmitRules::Known::some);
  }
}
