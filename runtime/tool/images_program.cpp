#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "base/process/own_program.hpp"
#include "base/text.hpp"
#include "tool/command.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {

// `scontainer` starts containers, and links only libraries that a start needs: clients of
// registries and archive formats take 8 ms to load. The commands here belong to the program
// `scontainer-images`, which `scontainer` executes with the same words.

namespace {

/// Executes `scontainer-images` with the words of this process. Returns only on failure.
Result<int> execute_images_program() {
  constexpr std::size_t kMostWords = 4 << 20;
  const UniqueFd file(::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
  const std::string words =
      SPC_TRY_DURING("read the command line", read_file(file.get(), kMostWords));
  std::vector<std::string> list;
  for (const std::string_view word : split(words, '\0')) list.emplace_back(word);
  if (!list.empty()) list.pop_back();  // behind the last NUL
  std::vector<char*> arguments;
  for (std::string& word : list) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const std::string program = own_program(kImagesProgram);
  ::execv(program.c_str(), arguments.data());
  return Error::from_errno(errno, "execute " + in_quotes(program));
}

}  // namespace

Result<int> run_audit(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_build(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_catalogue(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_cdi(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_completion(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_doctor(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_env(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_export(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_gc(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_images(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_import(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_info(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_inspect(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_login(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_logout(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_metrics(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_pull(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_push(const Arguments& /*arguments*/) { return execute_images_program(); }
Result<int> run_rm(const Arguments& /*arguments*/) { return execute_images_program(); }

int print_completion(std::span<const std::string> /*words*/) {
  const auto printed = execute_images_program();
  return printed ? *printed : 1;
}

}  // namespace spc::tool
