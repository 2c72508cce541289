#include "launch/inside/missing_program.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "hooks/loader/elf.hpp"

namespace spc {
namespace {

bool is_there(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

/// As Slurm and the shells look for it; empty: nowhere.
std::string found_along(const std::string& program, std::string_view path) {
  if (program.find('/') != std::string::npos) return is_there(program) ? program : "";
  for (const std::string_view directory : split(path, ':')) {
    std::string candidate = (directory.empty() ? "." : std::string(directory)) + "/" + program;
    if (is_there(candidate)) return candidate;
  }
  return {};
}

/// Of a script's first line; empty: it is none.
std::string interpreter_in(std::string_view begin) {
  if (!begin.starts_with("#!")) return {};
  begin = begin.substr(2, begin.find('\n') - 2);
  begin.remove_prefix(std::min(begin.find_first_not_of(" \t"), begin.size()));
  return std::string(begin.substr(0, begin.find_first_of(" \t\r")));
}

/// What the kernel starts in a program's place, and what it is called.
struct Starter {
  const char* what;
  std::string path;
  const char* hint;
};

Starter starter_of(int file) {
  std::array<char, 256> begin{};
  const ssize_t got = ::pread(file, begin.data(), begin.size(), 0);
  if (got < 4) return {};
  const std::string_view bytes(begin.data(), static_cast<std::size_t>(got));
  if (bytes.starts_with("#!"))
    return {"interpreter", interpreter_in(bytes), "its first line names it"};
  if (!bytes.starts_with("\177ELF")) return {};
  const auto elf = read_elf(file);
  if (!elf) return {};
  return {"loader", elf->interpreter, "it was built for another C library: build it in the image"};
}

}  // namespace

std::string why_missing(const std::string& program, std::string_view path, std::string_view image) {
  const std::string what = "execute " + in_quotes(program);
  const std::string found = found_along(program, path);
  if (found.empty() && program.find('/') == std::string::npos) {
    return formatted("{}: image {} has no such program along PATH (hint: PATH is {})", what,
                     in_quotes(image), printable(path));
  }
  if (found.empty() && !program.starts_with('/')) {
    const std::unique_ptr<char, void (*)(void*)> here(::getcwd(nullptr, 0), ::free);
    return formatted(
        "{}: not in the work directory {} of the container (hint: a directory of the host must be "
        "mounted and be the work "
        "directory)",
        what, in_quotes(here ? here.get() : "?"));
  }
  if (found.empty()) {
    return formatted(
        "{}: neither in image {} nor mounted (hint: mounts bring files of the host into the "
        "container)",
        what, in_quotes(image));
  }
  const UniqueFd file(::open(found.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  const Starter starter = starter_of(file.get());
  if (starter.path.empty() || is_there(starter.path)) return {};
  return formatted("{}: its {} {} is not in image {} (hint: {})", what, starter.what,
                   in_quotes(starter.path), in_quotes(image), starter.hint);
}

}  // namespace spc
