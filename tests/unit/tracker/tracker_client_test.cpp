#include <chrono>
#include <cstdlib>

#include "share/tracker.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
using namespace std::chrono;

namespace {

constexpr char kLaunchAddress[] = "SLURM_LAUNCH_NODE_IPADDR";

/// The step's environment, as the leader passes it to user-source.
struct StepOfNode {
  explicit StepOfNode(const TrackerAddress& srun, const char* host = "127.0.0.1",
                      const char* id = "5") {
    ::setenv(kTrackerVariable, srun.variable().c_str(), 1);
    ::setenv(kLaunchAddress, host, 1);
    ::setenv("SLURM_NODEID", id, 1);
    ::setenv("SLURMD_NODENAME", "node05", 1);
  }
  ~StepOfNode() {
    for (const char* name : {kTrackerVariable, kLaunchAddress, "SLURM_NODEID", "SLURMD_NODENAME"})
      ::unsetenv(name);
  }
};

TrackerRecord record_of(TrackerKind kind) {
  TrackerRecord record;
  record.kind = kind;
  record.addresses[0].port = 5000;
  return record;
}

milliseconds spent(const auto& what) {
  const auto begin = steady_clock::now();
  what();
  return duration_cast<milliseconds>(steady_clock::now() - begin);
}

}  // namespace

TEST_CASE("tracker_client_is_one_connection_with_node_name") {
  Tracker srun;
  const StepOfNode step(srun.open().value());
  srun.start(2, "", {});
  TrackerClient line, other;
  const auto place = line.ask(record_of(TrackerKind::join));
  REQUIRE(place.has_value());
  CHECK(place->index == 0);
  CHECK(place->node_id == 5);
  CHECK(line.tell(record_of(TrackerKind::progress)).has_value());
  CHECK(line.ask(record_of(TrackerKind::more))->count == 0);
  CHECK(other.ask(record_of(TrackerKind::join))->count == 1);
}

TEST_CASE("tracker_client_without_answer_gives_up_soon") {
  {
    const StepOfNode step({.port = 1, .token = {}});
    TrackerClient line;
    CHECK(spent([&] { CHECK_FALSE(line.ask(record_of(TrackerKind::join)).has_value()); }) < 500ms);
  }
  {
    const StepOfNode step({.port = 1, .token = {}}, "no address");
    TrackerClient line;
    CHECK_FALSE(line.tell(record_of(TrackerKind::progress)).has_value());
  }
  Tracker silent;  // listens, but its thread never starts
  const StepOfNode step(silent.open().value());
  TrackerClient line;
  const auto first =
      spent([&] { CHECK_FALSE(line.ask(record_of(TrackerKind::join)).has_value()); });
  CHECK(first >= 900ms);
  CHECK(first < 3100ms);
  CHECK(spent([&] { CHECK_FALSE(line.ask(record_of(TrackerKind::more)).has_value()); }) < 100ms);
}

TEST_CASE("tracker_client_without_variable_does_not_connect") {
  TrackerClient line;
  CHECK_FALSE(line.ask(record_of(TrackerKind::join)).has_value());
}
