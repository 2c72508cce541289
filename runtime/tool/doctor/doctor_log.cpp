#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "base/format.hpp"
#include "base/json/json.hpp"
#include "base/text.hpp"
#include "doctor/diagnose.hpp"
#include "tool/doctor/doctor.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

/// Of a longer file the end is read: what a job says about its failure it says last.
constexpr off_t kMostOfFile = off_t{64} << 20;

Result<Diagnosis> diagnose_file(const std::string& path) {
  UniqueFd opened;
  int fd = STDIN_FILENO;
  if (path != "-") {
    opened = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened) return Error::from_errno(errno, "open " + in_quotes(path));
    fd = opened.get();
    struct stat status {};
    if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > kMostOfFile) {
      if (::lseek(fd, status.st_size - kMostOfFile, SEEK_SET) < 0)
        return Error::from_errno(errno, "seek in " + in_quotes(path));
      std::fprintf(stderr, "%s: only the last %lld MiB are read; line numbers start there\n",
                   printable(path).c_str(), static_cast<long long>(kMostOfFile >> 20));
    }
  }
  Diagnosis diagnosis;
  std::array<char, 1 << 16> buffer;
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got == 0) return diagnosis;
    if (got > 0) {
      diagnosis.read({buffer.data(), static_cast<std::size_t>(got)});
    } else if (errno != EINTR) {
      return Error::from_errno(errno, "read " + in_quotes(path));
    }
  }
}

void print_recognised(const Recognised& one) {
  const Failure& failure = *one.failure;
  std::string where = "line " + std::to_string(one.line);
  if (one.times > 1)
    where += formatted(", and {}{}", one.times - 1, one.times == 2 ? " more" : " more lines");
  if (!one.task.empty()) where += ", first by task " + one.task;
  std::puts(formatted("{} ({})", coloured(failure.says, Colour::bold), where).c_str());
  std::puts(("  text:   " + one.text).c_str());
  if (one.consequence)
    std::puts("  note:   caused by the failure above; check it only if it persists");
  std::puts(("  cause:  " + std::string(failure.cause)).c_str());
  std::puts(("  fix:    " + std::string(failure.cure)).c_str());
  if (*failure.look != '\0') std::puts(("  see:    " + std::string(failure.look)).c_str());
  if (!failure.checks.empty())
    std::puts(
        ("  check:  srun scontainer doctor --job checks " + joined(failure.checks, ", ")).c_str());
  std::puts("");
}

Json in_json(const Recognised& one) {
  const Failure& failure = *one.failure;
  return {{"failure", failure.id},
          {"says", failure.says},
          {"line", one.line},
          {"times", one.times},
          {"task", one.task},
          {"text", one.text},
          {"cause", failure.cause},
          {"cure", failure.cure},
          {"look", failure.look},
          {"checks", Json::array(Json::Array(failure.checks.begin(), failure.checks.end()))},
          {"consequence", one.consequence}};
}

}  // namespace

Result<bool> explain_log(const std::string& path, bool as_json) {
  Diagnosis diagnosis = SPC_TRY(diagnose_file(path));
  const std::vector<Recognised> findings = diagnosis.findings();
  if (as_json) {
    Json list = Json::array();
    for (const Recognised& one : findings) list.push_back(in_json(one));
    std::puts(list.str(2).c_str());
  } else {
    for (const Recognised& one : findings) print_recognised(one);
    if (findings.empty()) {
      const std::string count =
          std::to_string(diagnosis.lines()) + (diagnosis.lines() == 1 ? " line" : " lines");
      std::puts(formatted("{}, no failure in {} known to doctor", count,
                          diagnosis.lines() == 1 ? "it" : "them")
                    .c_str());
    }
  }
  return !findings.empty();
}

}  // namespace spc::tool
