#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>

#include "spank/node_errors.hpp"
#include "unit/catch2_compat.hpp"

using namespace spank_container;
using namespace std::chrono;

namespace {

struct Line {
  std::vector<std::string> nodes;
  std::string text;
};
std::mutex mutex;
std::vector<Line> printed;

void print(const std::vector<std::string>& nodes, const std::string& text) {
  const std::lock_guard lock(mutex);
  printed.push_back({nodes, text});
}

std::vector<Line> lines() {
  const std::lock_guard lock(mutex);
  return printed;
}

struct Scene {
  ErrorCollector collector;
  ReportAddress address;
  explicit Scene(size_t nodes = 0) {
    printed.clear();
    address = collector.open();
    REQUIRE(address.port != 0);
    collector.start(nodes, print);
  }
  [[nodiscard]] bool report(const char* node, const std::string& text) const {
    return report_error("127.0.0.1", address, node, text);
  }
};

int connected(uint16_t port) {
  const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(port);
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(made, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0);
  return made;
}

milliseconds took(const auto& what) {
  const auto begin = steady_clock::now();
  what();
  return duration_cast<milliseconds>(steady_clock::now() - begin);
}

}  // namespace

TEST_CASE("errors_equal_are_printed_once_with_nodes") {
  Scene scene;
  CHECK(scene.report("node01", "no such image"));
  CHECK(scene.report("node02", "disk full"));
  CHECK(scene.report("node03", "no such image"));
  scene.collector.stop();
  REQUIRE(lines().size() == 2);
  CHECK(lines()[0].text == "no such image");
  CHECK(lines()[0].nodes == std::vector<std::string>{"node01", "node03"});
  CHECK(lines()[1].text == "disk full");
}

TEST_CASE("errors_are_printed_when_all_nodes_reported") {
  Scene scene(2);
  CHECK(scene.report("node01", "x"));
  CHECK(scene.report("node02", "x"));
  for (int tries = 0; tries < 100 && lines().empty(); ++tries) ::usleep(2000);
  CHECK(lines().size() == 1);
}

TEST_CASE("errors_are_printed_while_step_runs") {
  Scene scene;
  CHECK(scene.report("node01", "x"));
  CHECK(lines().empty());
  for (int tries = 0; tries < 300 && lines().empty(); ++tries) ::usleep(10000);
  CHECK(lines().size() == 1);
}

TEST_CASE("errors_report_with_wrong_token_is_refused") {
  Scene scene;
  ReportAddress wrong = scene.address;
  wrong.token[15] ^= 1;
  CHECK_FALSE(report_error("127.0.0.1", wrong, "node01", "forged"));
  scene.collector.stop();
  CHECK(lines().empty());
}

TEST_CASE("errors_garbage_is_dropped") {
  Scene scene;
  const int silent = connected(scene.address.port), junk = connected(scene.address.port);
  const std::string noise(10000, 'x');
  CHECK(::send(junk, noise.data(), noise.size(), MSG_NOSIGNAL) > 0);
  CHECK(scene.report("node01", "x"));
  char byte = 0;
  CHECK(::recv(silent, &byte, 1, 0) == 0);  // within its second
  ::close(silent);
  ::close(junk);
  scene.collector.stop();
  CHECK(lines().size() == 1);
}

TEST_CASE("errors_text_of_node_stays_one_line") {
  Scene scene;
  CHECK(scene.report("node01", "a\nb\x1b[31m %s\x7f"));
  CHECK_FALSE(scene.report("node\n01", "x"));
  CHECK_FALSE(scene.report("", "x"));
  CHECK_FALSE(scene.report("node01", std::string(5000, 'x')));
  scene.collector.stop();
  REQUIRE(lines().size() == 1);
  CHECK(lines()[0].text == "a?b?[31m %s?");
}

TEST_CASE("errors_without_text_make_srun_fail_and_print_nothing") {
  for (const bool fails : {false, true}) {
    Scene scene;
    CHECK(scene.report("node01", "disk full"));
    if (fails) CHECK(scene.report("node02", ""));
    CHECK_FALSE(scene.report("node\n01", ""));
    scene.collector.stop();
    CHECK(lines().size() == 1);
    CHECK(scene.collector.has_failed() == fails);
  }
}

TEST_CASE("errors_total_text_is_limited") {
  Scene scene;
  size_t taken = 0;
  for (int number = 0; number < 100; ++number) {
    taken += scene.report("node01", std::string(1000, 'x') + std::to_string(number)) ? 1 : 0;
  }
  CHECK(taken == 65);
}

TEST_CASE("errors_of_thousands_of_nodes_are_accepted") {
  Scene scene;
  // A send without an answer within a second is given up, although it may have been accepted. After
  // a stall of that length, the test repeats it.
  const auto is_taken = [&](const std::string& node) {
    return scene.report(node.c_str(), "x") || scene.report(node.c_str(), "x") ||
           scene.report(node.c_str(), "x");
  };
  for (int node = 0; node < 2000; ++node) REQUIRE(is_taken("n" + std::to_string(node)));
  scene.collector.stop();
  std::set<std::string> nodes;
  for (const auto& line : lines()) nodes.insert(line.nodes.begin(), line.nodes.end());
  CHECK(nodes.size() == 2000);
}

TEST_CASE("errors_report_without_listener_fails_in_time") {
  CHECK(took([] {
          CHECK_FALSE(report_error("127.0.0.1", {.port = 1, .token = {}}, "node01", "x"));
        }) < 500ms);
  CHECK_FALSE(report_error("no address", {.port = 1, .token = {}}, "node01", "x"));
  ErrorCollector never_started;
  const auto address = never_started.open();
  const auto waited = took([&] { CHECK_FALSE(report_error("127.0.0.1", address, "node01", "x")); });
  CHECK(waited >= 900ms);
  CHECK(waited < 1500ms);
}

TEST_CASE("errors_address_survives_serialization") {
  ReportAddress address{.port = 54321, .token = {0, 1, 255}};
  const auto read = ReportAddress::parse(address.variable());
  REQUIRE(read);
  CHECK(read->port == 54321);
  CHECK(read->token == address.token);
  for (const char* text :
       {"", ":", "1:ff", "70000:00000000000000000000000000000000",
        "1:zz000000000000000000000000000000", "x:00000000000000000000000000000000"}) {
    CHECK_FALSE(ReportAddress::parse(text));
  }
}
