// The program `user-source LOCATION`, started by the first task as the job's user: answers what
// `import` asks about what only the user may read, and speaks with srun for it (see
// protocol/user_source.hpp). It opens the image when it is first asked for. `user-source fetch`
// fetches a file of a server instead.

#include <sys/prctl.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <exception>

#include "base/file.hpp"
#include "base/socket.hpp"
#include "image/credentials/credentials.hpp"
#include "image/reference/location.hpp"
#include "image/registry/manifest.hpp"
#include "image/user_source/answer_fetch.hpp"
#include "image/user_source/local_image.hpp"
#include "image/user_source/srun_line.hpp"
#include "protocol/user_source.hpp"

using namespace spc;
using namespace spc::user_source;

namespace {

constexpr std::size_t kMaxDocument = 4 << 20;

/// Lines for the user who waits, by way of `import`.
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
      // A line is lost.
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

Result<void> answer_place(const MeetingRecord& place) {
  UserSourceMessage message;
  message.kind = UserSourceKind::met;
  message.meeting = place;
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
      case UserSourceKind::meet: {
        auto place = srun_.ask(question.meeting);
        return place ? answer_place(*place) : answer_failure(place.error());
      }
      case UserSourceKind::tell: static_cast<void>(srun_.tell(question.meeting)); return {};
      default: return answer_failure(Error(ErrorKind::internal, "user-source: unknown question"));
    }
  }

 private:
  Result<std::optional<FilePart>> find_part(const UserSourceMessage& question) {
    if (!image_) image_ = SPC_TRY(LocalImage::open(location_, log_));
    if (question.kind == UserSourceKind::blob) return image_->blob(question.digest);
    return std::optional(image_->document());
  }

  /// Where the layers are that an image of the user lacks.
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
  SrunLine srun_;
  std::unique_ptr<LocalImage> image_;
};

Result<void> serve(std::string_view text) {
  UserSource source(SPC_TRY(ImageLocation::parse(text)));
  for (;;) {
    UserSourceMessage question;
    if (!receive_struct(kUserSourceSocket, question)) return {};  // nobody asks any more
    SPC_TRY(source.answer(question));
  }
}

}  // namespace

int main(int argc, char** argv) {
  // Secrets of the user pass through here.
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
