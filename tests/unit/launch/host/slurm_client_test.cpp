#include "launch/sources/slurm_client.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

TEST_CASE("slurm_libraries_are_found_in_maps_once_per_directory") {
  const auto mapped = mapped_libraries(
      "55d0-55d1 r-xp 00000000 fe:00 1   /usr/sbin/slurmstepd\n"
      "7f00-7f01 r-xp 00000000 fe:00 2   /usr/lib/x/libc.so.6\n"
      "7f01-7f02 r--p 00000000 fe:00 2   /usr/lib/x/libc.so.6\n"
      "7f02-7f03 r-xp 00000000 fe:00 3   /usr/lib/x/slurm-wlm/auth_munge.so\n"
      "7f03-7f04 r-xp 00000000 fe:00 4   /usr/lib/x/ld-linux-x86-64.so.2\n"
      "7f04-7f05 rw-p 00000000 00:00 0   [stack]\n"
      "7f05-7f06 rw-s 00000000 fe:00 5   /home/alice.so/data\n");
  CHECK(mapped.loader == "/usr/lib/x/ld-linux-x86-64.so.2");
  CHECK(mapped.plugins == "/usr/lib/x/slurm-wlm");
  CHECK(mapped.directories == std::vector<std::string>{"/usr/lib/x", "/usr/lib/x/slurm-wlm"});
}

TEST_CASE("slurm_libraries_in_empty_maps_are_none") {
  const auto mapped = mapped_libraries("7f04-7f05 rw-p 00000000 00:00 0   [stack]\n\n/x");
  CHECK(mapped.loader.empty());
  CHECK(mapped.directories.empty());
}
