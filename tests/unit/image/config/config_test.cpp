#include "config/config.hpp"
#include "base/format.hpp"
#include "base/process/supervised.hpp"
#include "unit/catch2_compat.hpp"

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

/// Returns all tables of config.toml with their keys.
const std::vector<KeyTable>& all_tables() {
  static Config config;
  static RegistryConfig registry;
  static const std::vector<KeyTable> kTables = [] {
    auto all = config.tables();
    all.push_back({"registries.\"NAME\"", "", registry.keys()});
    return all;
  }();
  return kTables;
}

bool config_refused(const std::string& text, const std::string& reason) {
  return refused(parse_config(text, "config.toml"), reason);
}

/// A temporary directory, removed by the destructor.
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

TEST_CASE("config_empty_or_missing_gives_defaults") {
  const Config config = parse_config("", "config.toml").value();
  CHECK(config.default_registry == "docker.io");
  CHECK(config.writable);
  CHECK(config.upper_size == "50%");
  CHECK(config.public_ttl == 3600);
  CHECK(read_config("/nonexistent/config.toml").value().pull == PullPolicy::newer);
}

TEST_CASE("config_keys_are_read") {
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
  CHECK(config.check_registry("node01:5000"));
  CHECK(config.check_registry("docker.io"));
  CHECK(config.check_registry("a.b.example.org"));
  CHECK_FALSE(config.check_registry("reg.example.org"));  // blocked
  CHECK_FALSE(config.check_registry("example.org"));
  CHECK_FALSE(config.check_registry("evilexample.org"));
  CHECK_FALSE(config.check_registry("node01"));
  CHECK(config.registry("node01:5000").insecure);
  CHECK(config.registry("reg.example.org").blocked);
  CHECK(config.registry("reg.example.org").ca == "/x.pem");
  CHECK_FALSE(config.registry("other").insecure);
}

TEST_CASE("config_nodes_are_read_by_partition_and_feature") {
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

TEST_CASE("config_mistake_is_reported_with_line_and_suggestion") {
  CHECK(config_refused("\nwritabel = true",
                       "line 2: writabel: unknown key (hint: did you mean \"writable\"?)"));
  CHECK(config_refused("completely_different = 1", "unknown key (hint: the keys"));
  CHECK(config_refused("registrys = 1", "did you mean \"registries\"?"));
  CHECK(config_refused("writable = 1", "line 1: writable: expected true or false"));
  CHECK(config_refused("tag_ttl = -1", "expected a number from 0"));
  CHECK(config_refused("writable = true\nmpi = 'd\xe9j\xe0'", "line 2: not UTF-8"));
  CHECK(config_refused("tag_ttl = \"5\"", "expected a whole number"));
  for (const char* name : {"[[[", "[@x]", "[[ = ]]", "[ #x ]", "[registries.@]", "= 1", "[\"]\"]",
                           "cl\u00e9 = 1", "\u00e9 = 1"})
    CHECK(config_refused(std::string("\n") + name + "\n", "line 2"));
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

TEST_CASE("config_writable_by_others_is_refused") {
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

TEST_CASE("config_user_keys_become_records") {
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
failure_hints = false
discarded_files = "2M"
task_prolog_on_host = true
mounts = ["/a:/b:ro", "tmpfs:/c"]
env = ["A=b=c", "_=",]
keep_env = ["A", "B_*"]
unsetenv = ["C", "D_*"]
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
sshd = "/opt/sshd"
hooks_off = ["50-nccl"]
hook_timeout = 7
user_hooks = true
enroot_compat = true
check_at_submit = true
)";
  std::string all;  // the given values
  std::istringstream lines(records(given));
  for (std::string line; std::getline(lines, line);) {
    if (given.find("\n" + line.substr(0, line.find('=')) + " = ") != std::string::npos)
      all += line + "\n";
  }
  CHECK(all ==
        "remap_root=true\nentrypoint=task\nentrypoint_timeout=5\nslurm=true\nbatch="
        "steps\ncontainer_scope=job\nmessages=pyxis\n"
        "error_report=false\nfailure_hints=false\ndiscarded_files=2097152\ntask_prolog_on_host="
        "true\nmounts=/a:/b:ro\nmounts=tmpfs:/"
        "c\nenv=A=b=c\nenv=_=\nkeep_env=A\n"
        "keep_env=B_*\nunsetenv=C\nunsetenv=D_*\nallowed_paths=/"
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
        "libnl-3.so.200\nframeworks=false\npython_user_base=false\nsshd=/opt/sshd\n"
        "hooks_off=50-nccl\nhook_timeout=7\n"
        "user_hooks=true\nenroot_compat=true\ncheck_at_submit=true\n");
}

TEST_CASE("config_user_keys_are_validated") {
  CHECK(config_refused("features_off = [\"container-save\",\n\"container-savee\"]",
                       "line 2: features_off: \"container-savee\" is not allowed"));
  CHECK(
      config_refused("features_off = [\"--container-save\"]", "did you mean \"container-save\"?"));
  CHECK(config_refused("entrypoint = \"nodes\"",
                       "expected no, node or task (hint: did you mean \"node\"?)"));
  CHECK(config_refused("entrypoint = true", "expected text in quotes"));
  CHECK(config_refused("mounts = [\"data:/x\"]", "SRC[:DST[:FLAGS]]"));
  CHECK(config_refused("mounts = [\"/a\\n:/x\"]", "SRC[:DST[:FLAGS]]"));
  CHECK(config_refused("mounts = [\"/a:/b:rp\"]", "line 1: mounts: \"/a:/b:rp\": unknown flag"));
  CHECK(config_refused("env = [\"A\"]", "NAME=VALUE"));
  CHECK(config_refused("env = [\"1A=b\"]", "NAME=VALUE"));
  CHECK(config_refused("env = [\"A=\\u0000\"]", "it contains a NUL"));
  CHECK(config_refused("keep_env = [\"A B\"]", "a pattern"));
  CHECK(config_refused("allowed_paths = [\"images\"]", "an absolute path"));
  CHECK(config_refused("max_tmpfs_size = \"5GB\"", "1% to 100%"));
  CHECK(config_refused("importer = \"importer\"", "absolute path of a program"));
  CHECK(config_refused("entrypoint_timeout = 1000000", "from 0 to 86400"));
}

TEST_CASE("config_d_overrides_config_in_order") {
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

TEST_CASE("config_d_is_read_without_config_toml") {
  const Scratch scratch;
  scratch.write("config.d/a.toml", "tag_ttl = 3\n");
  CHECK(read_config(scratch.path("config.toml")).value().tag_ttl == 3);
}

TEST_CASE("config_in_directory_writable_by_others_is_refused") {
  const Scratch scratch;
  scratch.write("config.toml", "");
  scratch.write("config.d/a.toml", "");
  const auto refusal = [&] {
    const auto config = read_config(scratch.path("config.toml"));
    return config ? std::string("accepted") : config.error().message();
  };
  CHECK(refusal() == "accepted");
  ::chmod(scratch.path("config.d").c_str(), 0777);
  CHECK(refusal().find("config.d\" is writable by others (hint: chmod go-w PATH)") !=
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

TEST_CASE("config_link_is_checked_along_its_path") {
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

TEST_CASE("config_rows_have_meaning_and_valid_default") {
  for (const KeyTable& table : all_tables()) {
    for (const Key& key : table.keys) {
      INFO(key.name);
      CHECK(*key.meaning != '\0');
      const std::string text = key.default_text;
      if (key.allowed.check != nullptr) {
        CHECK(key.allowed.rule != nullptr);
        if (!text.empty()) CHECK(key.allowed.check(text));
      }
      const bool has_words = std::string(key.type).find(", ") != std::string::npos;
      if (has_words)
        CHECK((", " + std::string(key.type) + ",").find(", " + text + ",") != std::string::npos);
    }
  }
}

TEST_CASE("config_example_lists_every_key_with_default") {
  const auto printed = run_supervised(
      {.path = SPC_CONFIG_EXAMPLE, .arguments = {SPC_CONFIG_EXAMPLE}, .descriptors = {}}, "",
      {.time = std::chrono::seconds(30), .output = 1 << 20}, [](std::string_view) {});
  REQUIRE(printed);
  std::string text = printed->output;
  std::size_t keys = 0;
  for (std::size_t sign = 0; (sign = text.find("\n#", sign)) != std::string::npos; ++sign) {
    if (text[sign + 2] == ' ') continue;
    text.erase(sign + 1, 1);
    keys += text[sign + 1] != '[';
  }
  std::size_t rows = 0;
  for (const KeyTable& table : all_tables()) rows += table.keys.size();
  CHECK(keys == rows);
  const auto config = parse_config(text, "config.toml.example").value();
  CHECK(config.registries.size() == 1);
  CHECK(config.site == SitePolicy());
  CHECK(config.store.max_size == StoreConfig().max_size);
  CHECK(config.shared.directory.empty());
  CHECK(config.public_ttl == Config().public_ttl);
}

TEST_CASE("config_accepts_all_forms_of_toml") {
  const auto config = parse_config(R"(registries."a".blocked = true
"features_off" = [ # first

 'container-save' , "container\u002dname", """container-mounts""", '''container-env''', # "]
]	# last
tag_ttl = 1_0
public_ttl = 0x10
private_ttl = +3
store = { max_size = "1T", high_watermark = 0b1010000 }
messages = """\
  own"""
[ peers ]
"fanout" = 0o3
[ registries . "Node:1" ]
ca = "/a#b"
)",
                                   "c")
                          .value();
  CHECK(config.registry("a").blocked);
  CHECK(config.registry("node:1").ca == "/a#b");
  CHECK(config.site.features_off == std::vector<std::string>{"container-save", "container-name",
                                                             "container-mounts", "container-env"});
  CHECK((config.tag_ttl == 10 && config.public_ttl == 16 && config.private_ttl == 3));
  CHECK((config.store.max_size == 1ULL << 40U && config.store.high_watermark == 80));
  CHECK(config.site.messages == "own");
  CHECK(config.peers.fanout == 3);
  CHECK(parse_config("registries = { b = { blocked = true } }", "c").value().registry("b").blocked);
}

TEST_CASE("config_syntax_error_is_reported_with_line") {
  for (const std::string text :
       {"importer = /opt/x", "importer = \"/opt", "[registries.\"a\"", "writable", "writable =",
        "= true", "writable = true false", "env = [\"a\" \"b\"]", "env = [\"a\"", "env = [\"\\q\"]",
        "tag_ttl = 1__0", "store = {max_size = \"1G\"", "tag_ttl = 99999999999999999999",
        "writable = true # a\nwritable = false", "[store]\n[store]"}) {
    INFO(text);
    CHECK(config_refused(text, ": not valid TOML: "));
    const bool has_two_lines = text.find('\n') != std::string::npos;
    CHECK(config_refused(
        text, has_two_lines ? "\"config.toml\", line 2: " : "\"config.toml\", line 1: "));
  }
  for (const std::string text : {"1.0", "1979-05-27", "inf", "07:32:00", "{}", "[]"}) {
    INFO(text);
    CHECK(config_refused("\ntag_ttl = " + text, "line 2: tag_ttl: expected a whole number"));
  }
  CHECK(config_refused("env = [[\"A=1\"]]", "line 1: env: expected text in quotes"));
  CHECK(config_refused("[[store]]", "line 1: store: expected to be a table [store]"));
}

TEST_CASE("config_first_of_several_errors_is_reported") {
  CHECK(config_refused("writabel = 1\ntag_ttl = -1\n[store]\nmax_size = 1", "line 1: writabel"));
  CHECK(config_refused("zzz = 1\n[registries]\nx = 1", "line 1: zzz"));
  CHECK(config_refused("tag_ttl = 1\n[registries.\"r:1\"]\nca = 1\n[peers]\nfanout = 17",
                       "line 3: registries.\"r:1\".ca"));
}

TEST_CASE("config_for_srun_has_the_valid_keys") {
  const Scratch scratch;
  const std::string path = scratch.path("config.toml");
  CHECK_FALSE(read_valid_config(path));
  scratch.write("config.toml",
                "features_off = [\"container-save\"]\nkey_of_a_later_version = 1\n"
                "pull = \"sometimes\"\n[peers]\nfanout = \"2\"\nsrun_ports = \"61000-61099\"\n"
                "[registries.\"a:1\"]\nblocked = true\n");
  scratch.write("config.d/a.toml", "[registries.\"a:1\"]\nblocked = \"no\"\ninsecure = true\n");
  scratch.write("config.d/b.toml", "writable = \n");
  const auto config = read_valid_config(path);
  REQUIRE(config);
  CHECK(config->site.features_off == std::vector<std::string>{"container-save"});
  CHECK(config->pull == PullPolicy::newer);
  CHECK((config->peers.fanout == 2 && config->peers.srun_ports == "61000-61099"));
  CHECK((config->registry("a:1").blocked && config->registry("a:1").insecure));
  CHECK_FALSE(config->check_request({"container-save"}, ""));
  CHECK_FALSE(config->check_request({}, "a:1/x"));
  CHECK(config->check_request({"container-name"}, "b:1/x"));
  ::chmod(path.c_str(), 0666);
  CHECK_FALSE(read_valid_config(path));
}

TEST_CASE("registries_conf_longest_prefix_counts") {
  const Scratch scratch;
  scratch.write("registries.conf", R"(
unqualified-search-registries = ["quay.io", "docker.io"]
short-name-mode = "enforcing"
[[registry]]
prefix = "*.example.org"
location = "cache:5000/all"
[[registry]]
location = "REG.example.org"
[[registry]]
prefix = "reg.example.org/team"
blocked = true
[[registry.mirror]]
location = "cache:5000/team"
insecure = true
[[registry.mirror]]
location = "tags:5000"
pull-from-mirror = "tag-only"
[[registry]]
prefix = "index.docker.io/library"
mirror-by-digest-only = true
[[registry.mirror]]
location = "cache:5000"
)");
  scratch.write("certs.d/cache:5000/b.crt", "");
  scratch.write("certs.d/cache:5000/a.crt", "");
  scratch.write("certs.d/cache:5000/alone.cert", "");
  scratch.write("certs.d/cache:5000/pair.cert", "");
  scratch.write("certs.d/cache:5000/pair.key", "");
  Config config;
  REQUIRE(add_containers_config(config, scratch.directory, std::nullopt));
  CHECK(config.default_registry == "docker.io");
  const auto mirrors = [&](const std::string& registry, const std::string& repository) {
    std::string text;
    for (const auto& mirror : config.mirrors_of(registry, repository).list)
      text += mirror.host + "=" + mirror.repository + " ";
    return text;
  };
  CHECK(mirrors("a.b.example.org", "x/y") == "cache:5000=all/x/y ");
  CHECK(mirrors("example.org", "x").empty());
  CHECK(mirrors("a.example.org:5000", "x").empty());
  CHECK(mirrors("reg.example.org", "x").empty());
  CHECK(mirrors("reg.example.org", "team/x") == "cache:5000=team/x ");
  CHECK(mirrors("reg.example.org", "teamwork/x").empty());
  CHECK(mirrors("docker.io", "library/debian") == "cache:5000=debian ");
  CHECK(mirrors("docker.io", "other/debian").empty());
  CHECK(config.mirrors_of("reg.example.org", "team/x").resolve_tags);
  CHECK(!config.mirrors_of("docker.io", "library/debian").resolve_tags);
  CHECK(config.check_registry("reg.example.org", "teamwork/x"));
  CHECK(refused(config.check_registry("reg.example.org", "team/x"), "does not allow"));
  const RegistryConfig& cache = config.registry("cache:5000");
  CHECK(cache.insecure);
  CHECK(cache.ca == scratch.path("certs.d/cache:5000/a.crt"));
  CHECK(cache.client_cert == scratch.path("certs.d/cache:5000/pair.cert"));
  CHECK(cache.client_key == scratch.path("certs.d/cache:5000/pair.key"));
}

TEST_CASE("registries_conf_wrong_locations_are_refused") {
  const Scratch scratch;
  for (const char* location : {"a b", "host/../x", "https://host", "host:port", "host//x", "/x"}) {
    scratch.write("registries.conf", formatted("[[registry]]\nlocation = \"{}\"\n", location));
    Config config;
    CHECK(refused(add_containers_config(config, scratch.directory, std::nullopt), "line 1"));
  }
}
