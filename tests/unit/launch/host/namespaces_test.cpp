#include "request/options.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

TEST_CASE("namespaces_are_parsed_by_name") {
  REQUIRE(*parse_namespaces("net") == own_net);
  REQUIRE(*parse_namespaces("net,ipc,uts,pid") == (own_net | own_ipc | own_uts | own_pid));
  REQUIRE(*parse_namespaces("uts,uts,cgroup") == (own_uts | own_cgroup));
}

TEST_CASE("namespaces_empty_or_unknown_are_refused") {
  for (const char* list : {"", ",", "net,", ",net", "net,,ipc"}) {
    REQUIRE(parse_namespaces(list).error().message().find(
                "--container-unshare: empty namespace argument") == 0);
  }
  // This option does not accept user: see --container-remap-root.
  for (const char* list : {"user", "mnt", "NET", "net ", "net;ipc", "cgroups"}) {
    REQUIRE(parse_namespaces(list).error().message().find(
                "--container-unshare: unknown namespace '") == 0);
  }
}
