#include "image/user_source/answer_fetch.hpp"

#include <unistd.h>

#include <cstring>

#include "base/file.hpp"
#include "base/records.hpp"
#include "image/config/config.hpp"
#include "image/credentials/credentials.hpp"
#include "image/remote/bring_file.hpp"
#include "protocol/user_source.hpp"

namespace spc::user_source {
namespace {

/// Lines for the user who waits, by way of the leader.
class LineLog final : public Log {
 public:
  void write(LogLevel level, std::string_view line) noexcept override {
    if (level == LogLevel::debug) return;
    try {
      static_cast<void>(write_all(STDERR_FILENO, (level == LogLevel::warning ? kFetchWarning : "") +
                                                     printable(line) + "\n"));
    } catch (const std::exception&) {
      // A line is lost.
    }
  }
};

Result<BroughtFile> read_request() {
  const std::string text = SPC_TRY(read_file(STDIN_FILENO, kMostFetchRequest));
  BroughtFile wanted;
  for (Records record(text); record.next();) {
    const std::string value(record.value());
    if (record.key() == "image") wanted.image = value;
    if (record.key() == "pull") wanted.pull = parse_pull_policy(value);
    if (record.key() == "since") wanted.since = TagAge::parse_time(value);
    if (record.key() == "cache") wanted.cache = value;
    if (record.key() == "stored" && !value.empty()) wanted.stored = SPC_TRY(Digest::parse(value));
  }
  return wanted;
}

Result<std::string> fetch() {
  const BroughtFile wanted = SPC_TRY(read_request());
  const auto config = SPC_TRY(read_config(SPC_CONFIG_FILE));
  LineLog log;
  return bring_file(wanted, config, log, [&](const ImageReference& image) {
    return find_credentials(CredentialPlaces::of_user(), image, image.user, log);
  });
}

}  // namespace

int answer_fetch() {
  FetchAnswer answer;
  const auto path = fetch();
  if (path) {
    answer.path.set(*path);
  } else {
    answer.error = WireError(path.error());
  }
  const std::string_view bytes(reinterpret_cast<const char*>(&answer), sizeof answer);
  return write_all(STDOUT_FILENO, bytes) && path ? 0 : 1;
}

}  // namespace spc::user_source
