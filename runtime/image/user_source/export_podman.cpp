#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <vector>

#include "base/format.hpp"
#include "base/process/child.hpp"
#include "image/user_source/export.hpp"
#include "image/user_source/temporary_file.hpp"

namespace spc::user_source {
namespace {

constexpr std::uint64_t kUsualPodmanImage = std::uint64_t{1} << 30;
constexpr std::size_t kMaxComplaints = 1000;
constexpr int kBetweenPodmanLines = 15'000;  // milliseconds

/// A program of the user at work, its output going into a file. It does not outlive us.
class ExportProgram {
 public:
  /// ErrorKind::not_found: there is no such program along PATH.
  static Result<ExportProgram> start(const std::vector<std::string>& command, int output) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "create a pipe");
    UniqueFd reading(ends[0]);
    const UniqueFd complaints(ends[1]);
    const char* path = std::getenv("PATH");
    const auto found = find_program(command.front(), path != nullptr ? path : "/bin:/usr/bin");
    if (!found)
      return Error(ErrorKind::not_found,
                   formatted("there is no program {} along PATH", in_quotes(command.front())));
    auto child = SPC_TRY(Child::start({.path = *found,
                                       .arguments = command,
                                       .descriptors = {{output, 1}, {complaints.get(), 2}},
                                       .death_signal = 0}));
    return ExportProgram(std::move(child), std::move(reading));
  }

  enum class Heard { nothing, words, the_end };
  /// Listens for a while. The end: it has closed its error output, so it has ended.
  Heard listen() {
    pollfd one{complaints_.get(), POLLIN, 0};
    if (::poll(&one, 1, kBetweenPodmanLines) <= 0) return Heard::nothing;
    std::array<char, 1024> buffer{};
    const ssize_t got = ::read(complaints_.get(), buffer.data(), buffer.size());
    if (got <= 0) return Heard::the_end;
    text_.append(buffer.data(), static_cast<std::size_t>(got));
    if (text_.size() > kMaxComplaints) text_.erase(0, text_.size() - kMaxComplaints);
    return Heard::words;
  }
  /// Its exit status; 128 + the signal that killed it.
  int wait() { return child_.wait().code(); }
  /// The last line, which has the cause, without what logging libraries put around it.
  [[nodiscard]] std::string complaints() const {
    std::string_view line = text_;
    while (line.ends_with('\n') || line.ends_with(' ') || line.ends_with('"'))
      line.remove_suffix(1);
    line.remove_prefix(line.rfind('\n') + 1);
    for (const std::string_view before : {"msg=\"", "Error: "}) {
      if (const auto at = line.find(before); at != std::string_view::npos)
        line.remove_prefix(at + before.size());
    }
    return line.empty() ? "it does not say why" : printable(line);
  }
  /// None of these programs has a status for it.
  [[nodiscard]] bool says_there_is_none() const {
    constexpr std::string_view kWords[] = {"does not resolve to an image ID", "image not known",
                                           "unable to find", "no such image",
                                           "identifier is not an image"};
    return std::any_of(std::begin(kWords), std::end(kWords), [&](std::string_view words) {
      return text_.find(words) != std::string::npos;
    });
  }

 private:
  ExportProgram(Child child, UniqueFd complaints)
      : child_(std::move(child)), complaints_(std::move(complaints)) {}
  Child child_;
  UniqueFd complaints_;
  std::string text_;  // the end of what it wrote to standard error
};

Result<FilePart> output_of(const std::vector<std::string>& command, const std::string& what,
                           Log& log) {
  UniqueFd file = SPC_TRY(temporary_file(kUsualPodmanImage));
  auto program = SPC_TRY(ExportProgram::start(command, file.get()));
  log.write(LogLevel::info, formatted("{} writes out {}", command.front(), what));
  for (auto heard = program.listen(); heard != ExportProgram::Heard::the_end;
       heard = program.listen()) {
    if (heard == ExportProgram::Heard::words) continue;
    const off_t size = ::lseek(file.get(), 0, SEEK_END);
    log.write(LogLevel::info,
              formatted("{} writes out {}: {} MB", command.front(), what, size / 1'000'000));
  }
  if (const int status = program.wait(); status != 0) {
    if (program.says_there_is_none()) {
      return Error(ErrorKind::not_found, "your storage of podman on this node has no such image")
          .hint(
              "podman images lists them; on another node it has others: podman save --format "
              "oci-archive -o FILE");
    }
    return Error(ErrorKind::not_found,
                 formatted("run {}: it failed with status {}: {}", in_quotes(command.front()),
                           status, program.complaints()));
  }
  return ordinary_file(std::move(file), what);
}

}  // namespace

Result<FilePart> export_from_podman(const std::string& image, Log& log) {
  const std::string name = "podman://" + image;
  auto podman =
      output_of({"podman", "save", "--quiet", "--format", "docker-archive", image}, name, log);
  if (podman || podman.error().message().find("there is no program") == std::string::npos)
    return podman;
  // The same storage, read by another program of the same makers. Not /dev/stdout: where it fails,
  // skopeo removes its target.
  auto skopeo = output_of({"skopeo", "copy", "--quiet", "containers-storage:" + image,
                           "docker-archive:/proc/self/fd/1"},
                          name, log);
  if (skopeo || skopeo.error().message().find("there is no program") == std::string::npos)
    return skopeo;
  return Error(ErrorKind::not_found,
               formatted("open {}: this node has neither podman nor skopeo", in_quotes(name)))
      .hint(
          "save the image to a file where podman is installed: podman save --format oci-archive -o "
          "FILE " +
          image);
}

}  // namespace spc::user_source
