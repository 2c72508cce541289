#include "submission.hpp"

#include <errno.h>

#include <algorithm>
#include <string_view>

extern "C" {
extern char opt[]
    __attribute__((weak));  // a slurm_opt_t, whose members differ from release to release
char* slurm_option_get(void* options, const char* name) __attribute__((weak));
}

namespace spank_container {

std::string option_of_slurm(const char* name) {
  constexpr std::string_view kPrograms[] = {"srun", "sbatch", "salloc"};
  const bool is_known =
      std::ranges::find(kPrograms, std::string_view(program_invocation_short_name)) !=
      std::end(kPrograms);
  char* const options = opt;
  if (!is_known || options == nullptr || slurm_option_get == nullptr) return {};
  const char* const value =
      slurm_option_get(options, name);  // stays: it is freed by a function of Slurm's own
  return value == nullptr || std::string_view(value) == "unset" ? std::string() : value;
}

}  // namespace spank_container
