#include "tool/images/import_run.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <optional>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "image/store/store_keeper.hpp"
#include "protocol/image_record.hpp"
#include "protocol/import.hpp"
#include "protocol/store_layout.hpp"
#include "protocol/user_source.hpp"
#include "tool/images/helper_program.hpp"
#include "tool/images/stored_images.hpp"

namespace spc::tool {
namespace {

static_assert(kImportSocket == 3 && kImportSource == 4 && kImportStore == 5 &&
                  kUserSourceSocket == 3,
              "descriptors are passed in this order");

/// One run of `import`, and of what it needs of us.
class ImportRun {
 public:
  ImportRun(int store, std::string image, PullDisplay& display) : store_(store), keeper_(store), image_(std::move(image)), display_(display) {}

  Result<void> start(const ImportRequest& request);
  Result<Digest> serve();
  [[nodiscard]] const std::string& config() const { return image_config_; }

 private:
  /// A layer that is being read once more before it gets its name.
  struct Verification {
    Digest blob;
    UniqueFd file;
    HelperProgram verifier;
  };

  Result<void> on_message();
  Result<void> on_question();
  Result<void> make_layer();
  Result<void> verify(const Digest& blob, UniqueFd file);
  Result<void> publish(const Digest& blob, const UniqueFd& file);
  Result<void> evict(const Digest& blob);
  Result<void> put(const ImportMessage& message, const std::vector<UniqueFd>& file);
  Result<void> answer(ImportMessageKind kind, const Digest& digest = {}, int descriptor = -1);
  Result<void> refuse(const Digest& digest, const Error& why);

  int store_;
  OwnStoreKeeper keeper_;
  std::string image_;
  std::string image_config_;
  PullDisplay& display_;
  UniqueFd layers_;
  UniqueFd socket_;
  UniqueFd questions_;
  HelperProgram import_;
  HelperProgram user_source_;
  std::list<Verification> verifications_;
  std::optional<Result<Digest>> outcome_;
};

Result<void> ImportRun::start(const ImportRequest& request) {
  layers_ = UniqueFd(::openat(store_, store_layout::kLayers, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!layers_ && !request.only_shared) return Error::from_errno(errno, "open the user's image store");
  auto [ours, theirs] = SPC_TRY(socket_pair());
  auto [questions, source] = SPC_TRY(socket_pair());
  const std::string wishes = request.serialize();
  SPC_TRY(send_message(questions.get(), std::as_bytes(std::span(wishes)), {}));
  import_ = SPC_TRY(
      HelperProgram::start(own_program("import"), {}, {theirs.get(), source.get(), store_},
                           HelperProgram::Environment::ours));  // of which it takes the proxies
  socket_ = std::move(ours);
  questions_ = std::move(questions);
  return {};
}

Result<Digest> ImportRun::serve() {
  while (!outcome_) {
    std::vector<pollfd> watched{{.fd = socket_.get(), .events = POLLIN}};
    if (questions_) watched.push_back({.fd = questions_.get(), .events = POLLIN});
    const std::size_t first = watched.size();
    for (const auto& one : verifications_) watched.push_back({.fd = one.verifier.watch(), .events = POLLIN});
    if (::poll(watched.data(), watched.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return Error::from_errno(errno, "wait for the image");
    }
    if (questions_ && watched[1].revents != 0) SPC_TRY(on_question());
    std::size_t index = first;
    for (auto one = verifications_.begin(); one != verifications_.end(); ++index) {
      const bool ended = watched[index].revents != 0;
      auto current = one++;
      if (!ended) continue;
      const int status = current->verifier.wait();
      if (status == 0) {
        SPC_TRY(publish(current->blob, current->file));
      } else {
        SPC_TRY(refuse(current->blob, Error(ErrorKind::corrupt, status == 1 ? "not a layer written by the converter"
                                                                            : "the layer verifier failed")));
      }
      verifications_.erase(current);
    }
    if (watched[0].revents != 0) SPC_TRY(on_message());
  }
  return *std::move(outcome_);
}

Result<void> ImportRun::on_message() {
  ImportMessage message;
  auto descriptors = receive_struct(socket_.get(), message, 1);
  if (!descriptors) {
    return Error(ErrorKind::unavailable,
                 formatted("pull {}: import exited unexpectedly", in_quotes(image_)))
        .hint("try again; run scontainer doctor to find the reason");
  }
  switch (message.kind) {
    case ImportMessageKind::progress: display_.write(LogLevel::info, message.text.view()); return {};
    case ImportMessageKind::warning: display_.write(LogLevel::warning, message.text.view()); return {};
    case ImportMessageKind::meter: display_.meter(message.done, message.total); return {};
    case ImportMessageKind::config:
      if (!descriptors->empty()) image_config_ = SPC_TRY(read_file(descriptors->front().get(), ImageRecordHeader::kMaxBytes));
      return {};
    case ImportMessageKind::new_layer: return make_layer();
    case ImportMessageKind::publish:
      if (descriptors->size() != 1) return Error(ErrorKind::internal, "publish a layer: no file");
      return verify(message.digest, std::move(descriptors->front()));
    case ImportMessageKind::record:
    case ImportMessageKind::name:
    case ImportMessageKind::grant: {
      const auto done = put(message, *descriptors);
      return done ? answer(ImportMessageKind::obeyed, message.digest) : refuse(message.digest, done.error());
    }
    case ImportMessageKind::evict: return evict(message.digest);
    case ImportMessageKind::done: outcome_.emplace(message.digest); return {};
    case ImportMessageKind::failed: outcome_.emplace(message.error.error()); return {};
    default: return Error(ErrorKind::internal, "unexpected message from import");
  }
}

/// `import` asks something of the user's side for the first time: from now on `user-source` answers.
Result<void> ImportRun::on_question() {
  const std::string program = own_program("user-source");
  if (::access(program.c_str(), X_OK) == 0) {
    user_source_ = SPC_TRY(HelperProgram::start(program, {image_}, {questions_.get()}, HelperProgram::Environment::ours));
  }
  questions_.reset();
  return {};
}

Result<void> ImportRun::make_layer() {
  const UniqueFd file(::openat(layers_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0444));
  if (!file) {
    const int err = errno;
    auto error = Error::from_errno(err, "create a layer in the user's image store");
    if (err == EOPNOTSUPP || err == EISDIR) {
      error =
          std::move(error).hint("its file system does not support unnamed files (NFS): set XDG_DATA_HOME to a local directory");
    }
    return refuse({}, error);
  }
  return answer(ImportMessageKind::layer_file, {}, file.get());
}

Result<void> ImportRun::verify(const Digest& blob, UniqueFd file) {
  const std::string program = own_program("layer-verifier");
  if (::access(program.c_str(), X_OK) != 0) return publish(blob, file);
  auto verifier = SPC_TRY(HelperProgram::start(program, {}, {file.get()}, HelperProgram::Environment::empty));
  verifications_.push_back({blob, std::move(file), std::move(verifier)});
  return {};
}

Result<void> ImportRun::publish(const Digest& blob, const UniqueFd& file) {
  const std::string itself = "/proc/self/fd/" + std::to_string(file.get());
  if (::linkat(AT_FDCWD, itself.c_str(), layers_.get(), store_layout::layer_file(blob).c_str(), AT_SYMLINK_FOLLOW) != 0 &&
      errno != EEXIST) {
    return refuse(blob, Error::from_errno(errno, "publish layer " + blob.str()));
  }
  return answer(ImportMessageKind::published, blob);
}

Result<void> ImportRun::evict(const Digest& blob) {
  const auto removed = remove_layer(store_, blob);
  if (!removed) return refuse(blob, removed.error());
  return *removed ? answer(ImportMessageKind::obeyed, blob) : refuse(blob, Error(ErrorKind::unavailable, "the layer is in use"));
}

Result<void> ImportRun::put(const ImportMessage& message, const std::vector<UniqueFd>& file) {
  std::string bytes;
  if (!file.empty()) bytes = SPC_TRY(read_file(file.front().get(), ImageRecordHeader::kMaxBytes));
  if (message.kind == ImportMessageKind::record) {
    return bytes.empty() ? keeper_.remove_record(message.digest) : keeper_.publish_record(message.digest, bytes);
  }
  std::optional<std::uint32_t> uid;
  if (message.kind == ImportMessageKind::grant) uid = static_cast<std::uint32_t>(message.done);
  return keeper_.set_name(message.digest, uid, bytes);
}

Result<void> ImportRun::answer(ImportMessageKind kind, const Digest& digest, int descriptor) {
  ImportMessage message;
  message.kind = kind;
  message.digest = digest;
  return send_struct(socket_.get(), message, std::span(&descriptor, descriptor < 0 ? 0U : 1U));
}

Result<void> ImportRun::refuse(const Digest& digest, const Error& why) {
  ImportMessage message;
  message.kind = ImportMessageKind::refused;
  message.digest = digest;
  message.error = WireError(why);
  return send_struct(socket_.get(), message);
}

}  // namespace

Result<Digest> import_into_own_store(int store, const ImportRequest& request, PullDisplay& display) {
  ImportRun run(store, request.image, display);
  SPC_TRY(run.start(request));
  return run.serve();
}

Result<SourceImage> look_at_source(int store, const ImportRequest& request, PullDisplay& display) {
  ImportRun run(store, request.image, display);
  SPC_TRY(run.start(request));
  const Digest digest = SPC_TRY(run.serve());
  return SourceImage{digest, run.config()};
}

Result<Digest> import_into_shared_store(const ImportRequest& request, PullDisplay& display) {
  const UniqueFd no_store(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  return import_into_own_store(no_store.get(), request, display);
}

}  // namespace spc::tool
