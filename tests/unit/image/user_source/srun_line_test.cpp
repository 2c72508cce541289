#include "image/user_source/srun_line.hpp"

#include <chrono>
#include <cstdlib>

#include "meeting/meeting.hpp"
#include "unit/test.hpp"

using namespace spc;
using namespace std::chrono;

namespace {

constexpr char kLaunchAddress[] = "SLURM_LAUNCH_NODE_IPADDR";

/// The step's environment, as the leader hands it to user-source.
struct StepOfNode {
  explicit StepOfNode(const MeetingAddress& srun, const char* host = "127.0.0.1",
                      const char* id = "5") {
    ::setenv(kMeetingVariable, srun.variable().c_str(), 1);
    ::setenv(kLaunchAddress, host, 1);
    ::setenv("SLURM_NODEID", id, 1);
    ::setenv("SLURMD_NODENAME", "node05", 1);
  }
  ~StepOfNode() {
    for (const char* name : {kMeetingVariable, kLaunchAddress, "SLURM_NODEID", "SLURMD_NODENAME"})
      ::unsetenv(name);
  }
};

MeetingRecord record_of(MeetingKind kind) {
  MeetingRecord record;
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

TEST_CASE("a node speaks with srun over one connection, and says which node it is") {
  Meeting srun;
  const StepOfNode step(srun.open().value());
  srun.start(2, "", {});
  user_source::SrunLine line, other;
  const auto place = line.ask(record_of(MeetingKind::join));
  REQUIRE(place.has_value());
  CHECK(place->index == 0);
  CHECK(place->node_id == 5);
  CHECK(line.tell(record_of(MeetingKind::progress)).has_value());
  CHECK(line.ask(record_of(MeetingKind::more))->count == 0);
  CHECK(other.ask(record_of(MeetingKind::join))->count == 1);
}

TEST_CASE("where nobody listens, or answers, a node goes alone soon and asks no more") {
  {
    const StepOfNode step({.port = 1, .token = {}});
    user_source::SrunLine line;
    CHECK(spent([&] { CHECK_FALSE(line.ask(record_of(MeetingKind::join)).has_value()); }) < 500ms);
  }
  {
    const StepOfNode step({.port = 1, .token = {}}, "no address");
    user_source::SrunLine line;
    CHECK_FALSE(line.tell(record_of(MeetingKind::progress)).has_value());
  }
  Meeting silent;  // listens, and its thread never starts
  const StepOfNode step(silent.open().value());
  user_source::SrunLine line;
  const auto first =
      spent([&] { CHECK_FALSE(line.ask(record_of(MeetingKind::join)).has_value()); });
  CHECK(first >= 900ms);
  CHECK(first < 3100ms);
  CHECK(spent([&] { CHECK_FALSE(line.ask(record_of(MeetingKind::more)).has_value()); }) < 100ms);
}

TEST_CASE("without srun's variable there is nobody to ask") {
  user_source::SrunLine line;
  CHECK_FALSE(line.ask(record_of(MeetingKind::join)).has_value());
}
