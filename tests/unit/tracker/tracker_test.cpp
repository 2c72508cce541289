#include "share/tracker.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <vector>

#include "unit/catch2_compat.hpp"

using namespace spc;
using namespace std::chrono;

namespace {

const Digest kImage{{1, 2, 3}};

/// A node of the step.
struct Node {
  UniqueFd socket;

  explicit Node(std::uint16_t port) : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(port);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0);
  }
  Node(const TrackerAddress& srun, const char* name) : Node(srun.port) {
    TrackerHello hello;
    hello.token = srun.token;
    std::strncpy(hello.node.data(), name, hello.node.size() - 1);
    REQUIRE(send(hello));
  }

  template <typename Message>
  [[nodiscard]] bool send(const Message& message) const {
    return ::send(socket.get(), &message, sizeof message, MSG_NOSIGNAL) == sizeof message;
  }
  [[nodiscard]] std::optional<TrackerRecord> receive() const {
    TrackerRecord record;
    pollfd waiting{.fd = socket.get(), .events = POLLIN, .revents = 0};
    if (::poll(&waiting, 1, 3000) <= 0) return std::nullopt;
    const ssize_t got = ::recv(socket.get(), &record, sizeof record, MSG_WAITALL);
    return got == sizeof record ? std::optional(record) : std::nullopt;
  }
  [[nodiscard]] bool send_join(std::uint32_t node_id, std::uint16_t port = 5000,
                               const Digest& image = kImage) const {
    TrackerRecord record;
    record.kind = TrackerKind::join;
    record.image = image;
    record.node_id = node_id;
    record.addresses[0].port = port;
    return send(record);
  }
  [[nodiscard]] std::optional<TrackerRecord> join(std::uint32_t node_id,
                                                  std::uint16_t port = 5000) const {
    return send_join(node_id, port) ? receive() : std::nullopt;
  }
  [[nodiscard]] std::optional<TrackerRecord> more(std::vector<std::uint32_t> without,
                                                  TrackerKind kind = TrackerKind::more) const {
    TrackerRecord record;
    record.kind = kind;
    for (const auto index : without) record.indices[record.count++] = index;
    return send(record) ? receive() : std::nullopt;
  }
  void tell(TrackerKind kind, std::uint64_t done = 0, std::uint64_t total = 0,
            BytesFrom from = {}) const {
    TrackerRecord record;
    record.kind = kind;
    record.done = done;
    record.total = total;
    record.from = from;
    CHECK(send(record));
  }
  [[nodiscard]] bool is_dropped() const { return !receive(); }
};

struct Srun {
  Tracker tracker;
  TrackerAddress address;
  std::mutex mutex;
  std::vector<std::string> lines, statistics;

  explicit Srun(std::uint32_t nodes = 8) {
    auto opened = tracker.open();
    REQUIRE(opened.has_value());
    address = *opened;
    tracker.start(nodes, "app:1", [this](Tracker::About about, const std::string& line) {
      const std::lock_guard lock(mutex);
      (about == Tracker::About::all ? statistics : lines).push_back(line);
    });
  }
  ~Srun() { tracker.stop(); }
  std::string first_line() {
    for (int tries = 0; tries < 300; ++tries, ::usleep(10'000)) {
      const std::lock_guard lock(mutex);
      if (!lines.empty()) return lines.front();
    }
    return {};
  }
};

milliseconds took(const auto& what) {
  const auto begin = steady_clock::now();
  what();
  return duration_cast<milliseconds>(steady_clock::now() - begin);
}

milliseconds cpu_of_process() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return milliseconds(time.tv_sec * 1000 + time.tv_nsec / 1'000'000);
}

}  // namespace

TEST_CASE("tracker_nodes_take_from_earlier_nodes") {
  Srun srun;
  Node first(srun.address, "node01"), second(srun.address, "node02");
  const auto one = first.join(0), two = second.join(1, 6000);
  REQUIRE(one);
  REQUIRE(two);
  CHECK(one->kind == TrackerKind::place);
  CHECK(one->index == 0);
  CHECK(one->count == 0);
  CHECK(two->index == 1);
  REQUIRE(two->count == 1);
  CHECK(two->sources[0].index == 0);
  CHECK(two->sources[0].at.port == 5000);
  CHECK(two->image == kImage);
  CHECK(one->key == two->key);
  CHECK(one->key != PeerKey{});
}

TEST_CASE("tracker_relay_address_is_that_seen_by_srun") {
  Srun srun;
  Node first(srun.address, "node01"), second(srun.address, "node02");
  REQUIRE(first.join(0));
  const auto place = second.join(1);
  REQUIRE(place);
  const std::array<std::uint8_t, 16> loopback{0, 0, 0,    0,    0,   0, 0, 0,
                                              0, 0, 0xff, 0xff, 127, 0, 0, 1};
  CHECK(place->sources[0].at.ip == loopback);
}

TEST_CASE("tracker_images_have_separate_orders_and_keys") {
  Srun srun;
  Node first(srun.address, "node01"), second(srun.address, "node02");
  const auto one = first.join(0);
  REQUIRE(second.send_join(1, 5000, Digest{{9}}));
  const auto two = second.receive();
  REQUIRE(one);
  REQUIRE(two);
  CHECK(two->index == 0);
  CHECK(two->count == 0);
  CHECK(one->key != two->key);
}

TEST_CASE("tracker_node_gone_is_source_only_if_complete") {
  Srun srun;
  auto first = std::make_unique<Node>(srun.address, "node01");
  auto second = std::make_unique<Node>(srun.address, "node02");
  REQUIRE(first->join(0));
  REQUIRE(second->join(1));
  first->tell(TrackerKind::done);
  CHECK(first->more({})->count == 0);  // srun has read the earlier messages
  CHECK(second->more({})->count == 1);
  first.reset();
  second.reset();
  ::usleep(100'000);
  const auto place = Node(srun.address, "node03").join(2);
  REQUIRE(place);
  CHECK(place->index == 2);
  REQUIRE(place->count == 1);
  CHECK(place->sources[0].index == 0);
}

TEST_CASE("tracker_fanout_and_address_are_configurable") {
  Tracker tracker;
  const auto any = Listener::open({});
  REQUIRE(any);
  CHECK(!Tracker().open({any->port, any->port}));
  const auto address = tracker.open({any->port, static_cast<std::uint16_t>(any->port + 20)}, 3);
  REQUIRE(address);
  CHECK(address->port > any->port);
  CHECK(address->port <= any->port + 20);
  tracker.start(8, "app:1", nullptr);
  std::vector<std::unique_ptr<Node>> nodes;
  for (std::uint32_t id = 0; id < 5; ++id) {
    nodes.push_back(std::make_unique<Node>(*address, "node"));
    const auto place = nodes.back()->join(id);
    REQUIRE(place);
    if (id > 0) CHECK((place->sources[0].index == 0) == (id <= 3));
  }
}

TEST_CASE("tracker_dead_source_is_replaced_then_registry") {
  Srun srun;
  std::vector<std::unique_ptr<Node>> nodes;
  for (std::uint32_t id = 0; id < 4; ++id) {
    nodes.push_back(std::make_unique<Node>(srun.address, "node"));
    REQUIRE(nodes.back()->join(id));
  }
  const auto without = nodes[3]->more({1});
  REQUIRE(without);
  REQUIRE(without->count > 0);
  for (std::uint32_t i = 0; i < without->count; ++i) CHECK(without->sources[i].index != 1);
  const auto alone = nodes[3]->more({0, 1, 2});
  REQUIRE(alone);
  CHECK(alone->count == 0);
}

TEST_CASE("tracker_slow_source_is_replaced_if_possible") {
  Srun srun;
  Node first(srun.address, "node01"), second(srun.address, "node02"), third(srun.address, "node03"),
      fourth(srun.address, "node04");
  for (const Node* node : {&first, &second, &third})
    REQUIRE(node->join(static_cast<std::uint32_t>(node == &first ? 0 : 9)));
  const auto place = fourth.join(9);
  REQUIRE(place);
  REQUIRE(place->sources[0].index != 0);
  const auto better = fourth.more({place->sources[0].index}, TrackerKind::slow);
  REQUIRE(better);
  CHECK(better->sources[0].index != place->sources[0].index);
  const auto same = second.more({0}, TrackerKind::slow);  // there is only one node
  REQUIRE(same);
  REQUIRE(same->count == 1);
  CHECK(same->sources[0].index == 0);
}

TEST_CASE("tracker_node_with_ended_relay_is_no_source") {
  Srun srun;
  Node first(srun.address, "node01"), second(srun.address, "node02");
  REQUIRE(first.join(0));
  first.tell(TrackerKind::left);
  REQUIRE(first.more({}));
  CHECK(second.join(1)->count == 0);
}

TEST_CASE("tracker_without_token_gets_no_answer") {
  Srun srun;
  TrackerAddress wrong = srun.address;
  wrong.token[15] ^= 1;
  Node forger(wrong, "node01");
  CHECK(forger.is_dropped());
  Node nameless(srun.address, "node\n01");
  CHECK(nameless.is_dropped());
  Node noise(srun.address.port);
  const std::string text(10'000, 'x');
  CHECK(::send(noise.socket.get(), text.data(), text.size(), MSG_NOSIGNAL) > 0);
  CHECK(noise.is_dropped());
  Node silent(srun.address.port);
  CHECK(took([&] { CHECK(silent.is_dropped()); }) < 2000ms);
  CHECK(Node(srun.address, "node01").join(0));
}

TEST_CASE("tracker_invalid_record_closes_connection") {
  Srun srun;
  Node first(srun.address, "node01");
  TrackerRecord record;
  record.kind = TrackerKind::more;
  CHECK(first.send(record));  // before a join
  CHECK(first.is_dropped());
  Node second(srun.address, "node02");
  REQUIRE(second.join(0));
  record.count = 1000;
  CHECK(second.send(record));
  CHECK(second.is_dropped());
  Node third(srun.address, "node03");
  REQUIRE(third.join(0));
  record.kind = static_cast<TrackerKind>(77);
  CHECK(third.send(record));
  CHECK(third.is_dropped());
}

TEST_CASE("tracker_connections_places_and_questions_are_limited") {
  Srun srun(2);
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < 18; ++i) nodes.push_back(std::make_unique<Node>(srun.address, "node01"));
  REQUIRE(nodes.back()->join(0));
  Node late(srun.address.port);
  CHECK(late.is_dropped());
  int places = 1;
  while (places < 1000 && nodes[0]->join(0)) ++places;
  CHECK(places == 4 * 18);
  int questions = 0;
  while (questions < 1000 && nodes.back()->more({})) ++questions;
  CHECK(questions == 64);
}

TEST_CASE("tracker_progress_line_covers_all_nodes") {
  Srun srun;
  Node first(srun.address, "node01"), second(srun.address, "node02");
  REQUIRE(first.join(0));
  REQUIRE(second.join(1));
  first.tell(TrackerKind::progress, 900'000'000, 1'000'000'000, {.registry = 900'000'000});
  second.tell(TrackerKind::progress, 620'000'000, 1'000'000'000);
  CHECK(srun.first_line() == "pulling app:1 on 2 nodes, slowest node02 at 62 % of 1.0 GB");
  first.tell(TrackerKind::done, 0, 0, {.registry = 1'000'000'000});
  second.tell(TrackerKind::done, 0, 0, {.nodes = 1'000'000'000});
  REQUIRE(first.more({}));
  REQUIRE(second.more({}));
  srun.tracker.stop();
  REQUIRE(srun.lines.size() == 2);
  INFO(srun.lines.back());
  CHECK(srun.lines.back().starts_with("pulled app:1 on 2 nodes: 1.0 GB in "));
  CHECK(srun.lines.back().ends_with(" s"));
}

TEST_CASE("tracker_summary_line_lists_sources") {
  Srun srun;
  {
    Node first(srun.address, "node01"), second(srun.address, "node02"),
        third(srun.address, "node03");
    for (const Node* node : {&first, &second, &third}) REQUIRE(node->join(0));
    first.tell(TrackerKind::progress, 1'000'000, 1'000'000,
               {.registry = 600'000, .shared = 400'000});
    second.tell(TrackerKind::progress, 900'000, 1'000'000, {.nodes = 900'000});
    third.tell(TrackerKind::progress, 100'000, 1'000'000, {.nodes = 100'000});
    first.tell(TrackerKind::done, 0, 0, {.registry = 600'000, .shared = 400'000});
    second.tell(TrackerKind::done, 0, 0, {.nodes = 1'000'000});
    REQUIRE(first.more({}));
    REQUIRE(second.more({}));
    REQUIRE(third.more({}));  // srun has read the earlier messages
  }
  ::usleep(100'000);
  CHECK(srun.statistics.empty());
  srun.tracker.stop();
  REQUIRE(srun.statistics.size() == 2);
  const std::string& line = srun.statistics.front();
  INFO(line);
  CHECK(line.starts_with("app:1 came to 2 of 3 nodes in 0."));
  CHECK(line.find(" s (first 0.") != std::string::npos);
  CHECK(line.ends_with("): registry 0.60 x, nodes 1.10 x, shared store 0.40 x, 1 node failed"));
  const std::string& json = srun.statistics.back();
  INFO(json);
  CHECK(
      json.starts_with("{\"event\": \"step_pull\", \"image\": \"app:1\", \"nodes\": 3, \"ready\": "
                       "2, \"failed\": 1, \"pulled_bytes\": 1000000, "
                       "\"registry_bytes\": 600000, \"mirror_bytes\": 0, \"node_bytes\": 1100000, "
                       "\"shared_bytes\": 400000, \"first_s\": 0."));
  CHECK(json.ends_with("}"));
}

TEST_CASE("tracker_unreachable_peers_stop_referrals") {
  for (const bool some_come : {false, true}) {
    Srun srun;
    Node first(srun.address, "node01"), second(srun.address, "node02"),
        third(srun.address, "node03"), fourth(srun.address, "node04");
    for (const Node* node : {&first, &second, &third}) REQUIRE(node->join(0));
    second.tell(TrackerKind::cut_off);
    REQUIRE(second.more({}));
    Node one_more(srun.address, "node05");
    const auto yet = one_more.join(1);
    REQUIRE(yet);
    CHECK(yet->count > 0);
    if (some_come) one_more.tell(TrackerKind::progress, 1, 2, {.nodes = 1});
    REQUIRE(one_more.more({}));
    third.tell(TrackerKind::cut_off);
    REQUIRE(third.more({}));
    const auto place = fourth.join(1);
    REQUIRE(place);
    CHECK((place->count > 0) == some_come);
  }
}

TEST_CASE("tracker_ends_at_once") {
  auto srun = std::make_unique<Srun>();
  Node first(srun->address, "node01"), silent(srun->address.port);
  REQUIRE(first.join(0));
  CHECK(took([&] { srun.reset(); }) < 200ms);
  Tracker never_started;
  REQUIRE(never_started.open());
}

TEST_CASE("tracker_1024_nodes_are_answered_within_0_1_s") {
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  const rlimit before = files;
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 8192);
  ::setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 4096) return;
  {
    Srun srun(1024);
    std::vector<std::unique_ptr<Node>> nodes;
    for (int i = 0; i < 1024; ++i) nodes.push_back(std::make_unique<Node>(srun.address, "node"));
    ::usleep(50'000);  // the hellos are read
    const auto cpu = cpu_of_process();
    std::uint32_t told = 0;
    const auto whole = took([&] {
      for (std::uint32_t i = 0; i < nodes.size(); ++i) REQUIRE(nodes[i]->send_join(i));
      for (const auto& node : nodes) told += node->receive() ? 1 : 0;
    });
    WARN("1024 joins: " << whole.count() << " ms, " << (cpu_of_process() - cpu).count()
                        << " ms of CPU with the nodes' side");
    CHECK(told == 1024);
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("tracker_address_survives_serialization") {
  const TrackerAddress address{.port = 54321, .token = {0, 1, 255}};
  const auto read = TrackerAddress::parse(address.variable());
  REQUIRE(read);
  CHECK(read->port == 54321);
  CHECK(read->token == address.token);
  for (const char* text :
       {"", ":", "1:ff", "70000:00000000000000000000000000000000",
        "1:zz000000000000000000000000000000", "0:00000000000000000000000000000000",
        "x:00000000000000000000000000000000"}) {
    CHECK_FALSE(TrackerAddress::parse(text));
  }
}
