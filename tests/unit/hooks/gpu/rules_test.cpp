#include "hooks/gpu/gpu_hooks.hpp"
#include "hooks/nvidia_driver/driver.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

TEST_CASE("nvidia_require_conditions_compare_versions") {
  const RequirementFacts facts{{"cuda", "12.4"}, {"driver", "550.54.15"}, {"brand", "Tesla"}};
  for (const char* good : {"", "cuda>=12.4", "cuda>=9.0", "cuda<12.10", "cuda=12.4", "cuda!=12.3",
                           "driver>550,driver<551", "cuda>=13 driver>=550", "arch>=9.0",
                           "brand=Tesla", "brand!=GRID", "nonsense", "cuda>=", ",,", "cuda~=99"}) {
    CHECK(unsatisfied_condition(good, facts) == "");
  }
  CHECK(unsatisfied_condition("cuda>=12.6", facts) == "cuda>=12.6");
  CHECK(unsatisfied_condition("cuda>12.4", facts) == "cuda>12.4");
  CHECK(unsatisfied_condition("cuda<=12.3", facts) == "cuda<=12.3");
  CHECK(unsatisfied_condition("cuda!=12.4", facts) == "cuda!=12.4");
  CHECK(unsatisfied_condition("brand=GRID", facts) == "brand=GRID");
  CHECK(unsatisfied_condition("brand=Tesla,driver<550", facts) == "driver<550");
  CHECK(unsatisfied_condition("driver<535 cuda>=12.6 brand=Tesla,driver>=560", facts) ==
        "cuda>=12.6");
}

TEST_CASE("nvidia_driver_branch_gives_cuda_version") {
  CHECK(cuda_version_of_driver("550.54.15") == 1204);
  CHECK(cuda_version_of_driver("535.183.01") == 1202);
  CHECK(cuda_version_of_driver("470.82.01") == 1104);
  CHECK(cuda_version_of_driver("580.65.06") == 1300);
  CHECK(cuda_version_of_driver("999.1") == 0);
  CHECK(cuda_version_of_driver("garbage") == 0);
  CHECK(cuda_version_of_driver("340.108") == 0);
}

TEST_CASE("nvidia_unknown_library_is_always_included") {
  CHECK(nvidia_library_use("libcuda.so.550.54.15") == for_compute);
  CHECK(nvidia_library_use("libnvidia-ml.so.550.54.15") == for_utility);
  CHECK(nvidia_library_use("libnvidia-brandnew.so.999.1") == for_any);
}
