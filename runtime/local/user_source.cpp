#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <exception>

#include "base/file.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "config/config.hpp"
#include "local/local_image.hpp"
#include "local/remote_file.hpp"
#include "protocol/user_source.hpp"
#include "reference/location.hpp"
#include "registry/credentials.hpp"
#include "registry/manifest.hpp"
#include "share/tracker.hpp"

namespace spc::user_source {

// --- fetch of a file ---

namespace {

/// Log whose lines reach the waiting user through the leader.
class LineLog final : public Log {
 public:
  void write(LogLevel level, std::string_view line) noexcept override {
    if (level == LogLevel::debug) return;
    try {
      static_cast<void>(write_all(STDERR_FILENO, (level == LogLevel::warning ? kFetchWarning : "") +
                                                     printable(line) + "\n"));
    } catch (const std::exception&) {
      // Out of memory: the line is lost.
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

/// Runs `user-source fetch` (protocol/user_source.hpp) and returns its exit status.
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

}  // namespace

}  // namespace spc::user_source

// --- main ---

// The program `user-source LOCATION`, started by the first task as the job's user. It answers the
// importer's requests for files that only the user can read, and talks to srun on its behalf (see
// protocol/user_source.hpp). It opens the image at the first request for it. `user-source fetch`
// fetches a file of a server instead.

using namespace spc;
using namespace spc::user_source;

namespace {

constexpr std::size_t kMaxDocument = 4 << 20;

/// Log whose lines reach the waiting user through `import`.
class ProgressLog final : public Log {
 public:
  void write(LogLevel level, std::string_view line) noexcept override {
    if (level == LogLevel::debug) return;
    try {
      UserSourceMessage message;
      message.kind = UserSourceKind::progress;
      message.text.set(printable(line));
      static_cast<void>(send_struct(kUserSourceSocket, message));
    } catch (const std::exception&) {
      // Out of memory: the line is lost.
    }
  }
};

Result<void> answer_failure(const Error& error) {
  UserSourceMessage message;
  message.kind = UserSourceKind::failed;
  message.error = WireError(error);
  return send_struct(kUserSourceSocket, message);
}

Result<void> answer_part(const std::optional<FilePart>& part) {
  UserSourceMessage message;
  message.kind = UserSourceKind::none;
  if (!part) return send_struct(kUserSourceSocket, message);
  message.kind = UserSourceKind::file;
  message.offset = part->offset;
  message.size = part->size;
  message.text.set(printable(part->media_type));
  const int passed[] = {part->file->get()};
  return send_struct(kUserSourceSocket, message, passed);
}

Result<void> answer_place(const TrackerRecord& place) {
  UserSourceMessage message;
  message.kind = UserSourceKind::tracker_answer;
  message.tracker = place;
  return send_struct(kUserSourceSocket, message);
}

class UserSource {
 public:
  explicit UserSource(ImageLocation location) : location_(std::move(location)) {}

  Result<void> answer(const UserSourceMessage& question) {
    switch (question.kind) {
      case UserSourceKind::document:
      case UserSourceKind::blob: {
        auto part = find_part(question);
        return part ? answer_part(*part) : answer_failure(part.error());
      }
      case UserSourceKind::credentials:
        if (location_.kind == ImageLocation::Kind::registry)
          return answer_credentials(kUserSourceSocket, question, location_.name, log_);
        if (const auto below = image_below())
          return answer_credentials(kUserSourceSocket, question, *below, log_);
        return answer_part(std::nullopt);
      case UserSourceKind::ask_tracker: {
        auto place = tracker_.ask(question.tracker);
        return place ? answer_place(*place) : answer_failure(place.error());
      }
      case UserSourceKind::tell_tracker:
        static_cast<void>(tracker_.tell(question.tracker));
        return {};
      default: return answer_failure(Error(ErrorKind::internal, "user-source: unknown question"));
    }
  }

 private:
  Result<std::optional<FilePart>> find_part(const UserSourceMessage& question) {
    if (!image_) image_ = SPC_TRY(LocalImage::open(location_, log_));
    if (question.kind == UserSourceKind::blob) return image_->blob(question.digest);
    return std::optional(image_->document());
  }

  /// Returns the image that has the layers missing in the user's image.
  std::optional<ImageReference> image_below() {
    const auto text = image_ ? read_part(image_->document(), kMaxDocument, "manifest")
                             : Error(ErrorKind::not_found, "no image");
    const auto manifest = text ? parse_manifest(*text, "", "manifest") : text.error();
    const auto* image = manifest ? std::get_if<Manifest>(&*manifest) : nullptr;
    const auto below = ImageReference::parse(image != nullptr ? image->layers_of : "");
    return below ? std::optional(*below) : std::nullopt;
  }

  ImageLocation location_;
  ProgressLog log_;
  TrackerClient tracker_;
  std::unique_ptr<LocalImage> image_;
};

Result<void> serve(std::string_view text) {
  UserSource source(SPC_TRY(ImageLocation::parse(text)));
  for (;;) {
    UserSourceMessage question;
    // an error or the end of file: the importer has closed the socket
    if (!receive_struct(kUserSourceSocket, question)) return {};
    SPC_TRY(source.answer(question));
  }
}

}  // namespace

int main(int argc, char** argv) {
  // The process handles the user's secrets: no core dumps.
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    if (argc != 2) return 2;
    if (argv[1] == std::string_view(kFetch)) return answer_fetch();
    const auto served = serve(argv[1]);
    if (!served) static_cast<void>(answer_failure(served.error()));
    return served ? 0 : 1;
  } catch (const std::exception& error) {  // out of memory
    static_cast<void>(
        answer_failure(Error(ErrorKind::internal, std::string("user-source: ") + error.what())));
    return 1;
  }
}
