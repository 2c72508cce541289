#include "launch/site/site_importer.hpp"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/trusted_file.hpp"
#include "base/unique_fd.hpp"
#include "task/entering/enter.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostOutput = 1 << 20;
constexpr int kNotExecuted = 127;

Result<UniqueFd> memory(const char* name) {
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC));
  if (!file) return Error::from_errno(errno, "make room for the importer's output");
  return file;
}

std::string content(int file) {
  std::string text(kMostOutput, '\0');
  const ssize_t got = ::pread(file, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

std::string outcome(const ExitStatus& status) {
  if (status.signalled()) return "was killed by signal " + std::to_string(status.signal());
  if (status.code() == kNotExecuted) return "cannot be executed (exit code 127)";
  return "failed with exit code " + std::to_string(status.code());
}

/// The last lines, which say why.
void show(std::string_view text, Log& log) {
  constexpr std::size_t kLines = 20;
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!line.empty()) lines.push_back(line);
  }
  for (std::size_t i = lines.size() > kLines ? lines.size() - kLines : 0; i < lines.size(); ++i) {
    log.write(LogLevel::info, "importer: " + printable(lines[i].substr(0, 1000)));
  }
}

}  // namespace

bool SiteImporter::brings(const ImageLocation& image) const {
  using Kind = ImageLocation::Kind;
  if (program_.empty()) return false;
  return image.kind == Kind::registry || image.kind == Kind::docker_daemon ||
         image.kind == Kind::podman;
}

Result<std::string> SiteImporter::get(const std::string& image, Log& log) {
  const std::string uri = image.find("://") == std::string::npos ? "docker://" + image : image;
  // It is run as each user in turn, so nobody but root may decide what it is.
  SPC_TRY(open_trusted_file(program_, "importer"));
  asked_ = true;
  const std::string printed =
      SPC_TRY_DURING("pull image " + in_quotes(image), run("get", uri.c_str(), &log));
  std::string path = printed.substr(0, printed.find('\n'));
  if (path.starts_with('/')) return path;
  return Error(ErrorKind::invalid,
               formatted("pull image {}: importer {} printed {}, which is not an absolute path",
                         in_quotes(image), in_quotes(program_), in_quotes(path)))
      .hint("error in the site's importer: contact the administrator");
}

void SiteImporter::release() {
  if (!asked_) return;
  asked_ = false;
  static_cast<void>(run("release", nullptr, nullptr));
}

Result<std::string> SiteImporter::run(const char* verb, const char* argument, Log* log) {
  const UniqueFd out = SPC_TRY(memory("spank-container importer"));
  const UniqueFd messages = SPC_TRY(memory("spank-container importer log"));
  // Its output goes to memory, since one that leaves something running must not keep us waiting.
  Program program{.path = program_,
                  .arguments = {program_, verb},
                  .environment = std::vector<std::string>(),
                  .descriptors = {{out.get(), 1}, {messages.get(), 2}},
                  .death_signal = SIGTERM};
  if (argument != nullptr) program.arguments.emplace_back(argument);
  for (const auto& [name, value] : *environment_)
    program.environment->push_back(name + "=" + value);
  if (!environment_->contains("PYXIS_RUNTIME_PATH"))
    program.environment->emplace_back("PYXIS_RUNTIME_PATH=/tmp");
  program.prepare = [] {
    if (!stay_outside()) return false;
    ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return true;
  };
  auto child = Child::start(program);
  const ExitStatus status = child ? child->wait() : ExitStatus(kNotExecuted << 8);
  if (status.success()) return content(out.get());
  if (log != nullptr) show(content(messages.get()), *log);
  return Error(ErrorKind::system, formatted("importer {} {}", in_quotes(program_), outcome(status)))
      .hint("its output is above");
}

}  // namespace spc
