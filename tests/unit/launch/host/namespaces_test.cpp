#include "launch/request/namespaces.hpp"
#include "unit/test.hpp"

using namespace spc;

TEST_CASE("namespaces are listed by their names") {
  REQUIRE(*parse_namespaces("net") == own_net);
  REQUIRE(*parse_namespaces("net,ipc,uts,pid") == (own_net | own_ipc | own_uts | own_pid));
  REQUIRE(*parse_namespaces("uts,uts,cgroup") == (own_uts | own_cgroup));
}

TEST_CASE("a list of namespaces with an empty or unknown name is refused") {
  for (const char* list : {"", ",", "net,", ",net", "net,,ipc"}) {
    REQUIRE(parse_namespaces(list).error().message().find(
                "--container-unshare: empty namespace argument") == 0);
  }
  // user is not for this option: see --container-remap-root.
  for (const char* list : {"user", "mnt", "NET", "net ", "net;ipc", "cgroups"}) {
    REQUIRE(parse_namespaces(list).error().message().find(
                "--container-unshare: unknown namespace '") == 0);
  }
}
