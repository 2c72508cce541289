#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>

#include "base/file.hpp"
#include "base/format.hpp"
#include "image/user_source/export.hpp"
#include "image/user_source/temporary_file.hpp"

namespace spc::user_source {
namespace {

constexpr std::uint64_t kUsualImage = std::uint64_t{1} << 30;
constexpr char kUsualSocket[] = "/var/run/docker.sock";
constexpr std::size_t kMaxComplaint = 300;
constexpr long kPatienceToConnect = 10;  // seconds
constexpr std::chrono::seconds kBetweenDockerLines{15};

struct FreeCurl {
  void operator()(CURL* handle) const { ::curl_easy_cleanup(handle); }
};
struct FreeText {
  void operator()(char* text) const { ::curl_free(text); }
};

/// The answer on its way: into the file if it is the image, else into the complaint.
struct Answer {
  CURL* handle = nullptr;
  int file = -1;
  std::string what;
  Log* log = nullptr;
  std::uint64_t written = 0;
  std::string complaint;
  std::optional<Error> failed;
  std::chrono::steady_clock::time_point next_line =
      std::chrono::steady_clock::now() + kBetweenDockerLines;
};

std::size_t take(char* bytes, std::size_t, std::size_t count, void* argument) {
  auto& answer = *static_cast<Answer*>(argument);
  long status = 0;
  ::curl_easy_getinfo(answer.handle, CURLINFO_RESPONSE_CODE, &status);
  if (status != 200) {
    answer.complaint.append(
        bytes, std::min(count, kMaxComplaint - std::min(kMaxComplaint, answer.complaint.size())));
    return count;
  }
  auto done = write_all(answer.file, std::string_view(bytes, count));
  if (!done) {
    answer.failed = std::move(done).error();
    return 0;
  }
  answer.written += count;
  return count;
}

/// Called about once a second, also while nothing comes.
int tell(void* argument, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  auto& answer = *static_cast<Answer*>(argument);
  if (const auto now = std::chrono::steady_clock::now(); now >= answer.next_line) {
    answer.next_line = now + kBetweenDockerLines;
    answer.log->write(LogLevel::info, formatted("exporting from docker: {}: {} MB", answer.what,
                                                answer.written / 1'000'000));
  }
  return 0;
}

Result<std::string> socket_path() {
  const char* host = std::getenv("DOCKER_HOST");
  if (host == nullptr || *host == '\0') return std::string(kUsualSocket);
  constexpr std::string_view kUnix = "unix://";
  if (std::string_view(host).starts_with(kUnix)) return std::string(host + kUnix.size());
  return Error(ErrorKind::invalid,
               formatted("DOCKER_HOST is {}, but only a local daemon (unix://PATH) is supported",
                         in_quotes(host)));
}

}  // namespace

Result<FilePart> export_from_docker(const std::string& image, Log& log) {
  const std::string name = "dockerd://" + image;
  const std::string socket = SPC_TRY(socket_path());
  UniqueFd file = SPC_TRY(temporary_file(kUsualImage));
  const std::unique_ptr<CURL, FreeCurl> handle(::curl_easy_init());
  if (!handle)
    return Error(ErrorKind::no_space,
                 formatted("request from docker {}: out of memory", in_quotes(name)));
  const std::unique_ptr<char, FreeText> escaped(
      ::curl_easy_escape(handle.get(), image.c_str(), static_cast<int>(image.size())));
  const std::string url =
      "http://docker/images/" + std::string(escaped ? escaped.get() : "") + "/get";

  Answer answer{.handle = handle.get(), .file = file.get(), .what = name, .log = &log};
  ::curl_easy_setopt(handle.get(), CURLOPT_UNIX_SOCKET_PATH, socket.c_str());
  ::curl_easy_setopt(handle.get(), CURLOPT_URL, url.c_str());
  ::curl_easy_setopt(handle.get(), CURLOPT_PROXY, "");
  ::curl_easy_setopt(handle.get(), CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(handle.get(), CURLOPT_CONNECTTIMEOUT, kPatienceToConnect);
  ::curl_easy_setopt(handle.get(), CURLOPT_WRITEFUNCTION, take);
  ::curl_easy_setopt(handle.get(), CURLOPT_WRITEDATA, &answer);
  ::curl_easy_setopt(handle.get(), CURLOPT_NOPROGRESS, 0L);
  ::curl_easy_setopt(handle.get(), CURLOPT_XFERINFOFUNCTION, tell);
  ::curl_easy_setopt(handle.get(), CURLOPT_XFERINFODATA, &answer);
  log.write(LogLevel::info, "exporting from docker: " + name);
  const CURLcode code = ::curl_easy_perform(handle.get());
  const std::string step =
      formatted("connect to docker at {} for {}", in_quotes(socket), in_quotes(image));
  if (answer.failed) return std::move(*answer.failed).during(step);
  if (code == CURLE_COULDNT_CONNECT) {
    return Error(ErrorKind::unavailable, step + ": cannot connect")
        .hint(
            "start a docker daemon on this node and allow access to its socket, or save the image "
            "to a file: docker save");
  }
  if (code != CURLE_OK)
    return Error(ErrorKind::unavailable, formatted("{}: {}", step, ::curl_easy_strerror(code)));
  long status = 0;
  ::curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &status);
  if (status == 404)
    return Error(ErrorKind::not_found, step + ": no such image").hint("docker images lists them");
  if (status != 200) {
    return Error(ErrorKind::unavailable,
                 formatted("{}: it answers {}: {}", step, status, printable(answer.complaint)));
  }
  return ordinary_file(std::move(file), name);
}

}  // namespace spc::user_source
