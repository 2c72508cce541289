#include "tool/images/import_run.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "image/store/store.hpp"
#include "protocol/image_record.hpp"
#include "protocol/import.hpp"
#include "protocol/layer.hpp"
#include "protocol/store_layout.hpp"
#include "protocol/user_source.hpp"
#include "tool/images/stored_images.hpp"

namespace spc::tool {

// --- helper program ---

namespace {

constexpr int kFirst = 3;

/// In the child: leaves the caller's mount namespace. A server in it would keep its own mount, and
/// so itself, alive when the caller is killed. Outside an own user namespace, leaving is not
/// permitted and not needed.
bool leave_mount_namespace() {
  ::unshare(CLONE_NEWNS);
  ::signal(SIGPIPE, SIG_DFL);
  return true;
}

}  // namespace

Result<HelperProgram> HelperProgram::start(const std::string& path,
                                           const std::vector<std::string>& arguments,
                                           const std::vector<int>& descriptors,
                                           Environment environment) {
  if (::access(path.c_str(), X_OK) != 0) {
    return Error::from_errno(errno, "start " + in_quotes(path))
        .hint("install spank-container again");
  }
  Program program{
      .path = path, .arguments = {path}, .descriptors = {{STDERR_FILENO, STDERR_FILENO}}};
  program.arguments.insert(program.arguments.end(), arguments.begin(), arguments.end());
  for (int number = kFirst; const int descriptor : descriptors)
    program.descriptors.push_back({descriptor, number++});
  if (environment == Environment::empty) program.environment.emplace();
  program.prepare = leave_mount_namespace;
  return HelperProgram(SPC_TRY(Child::start(program)));
}

// --- import run ---

namespace {

static_assert(kImportSocket == 3 && kImportSource == 4 && kImportStore == 5 &&
                  kUserSourceSocket == 3,
              "descriptors are passed in this order");

Result<void> answer(int import, ImportMessageKind kind, const Digest& digest = {},
                    std::span<const int> passed = {}) {
  return send_struct(import, ImportMessage{.kind = kind, .digest = digest}, passed);
}

Result<void> refuse(int import, const Digest& digest, const Error& why) {
  return send_struct(
      import,
      ImportMessage{.kind = ImportMessageKind::refused, .digest = digest, .error = WireError(why)});
}

/// The agent's publisher for the caller's own store, in a child of this process.
class Publisher {
 public:
  Publisher(int store, UniqueFd import) : store_(store), import_(std::move(import)) {}

  Result<void> make(const std::string& order) {
    const auto done = order.empty() ? put() : make_layer(order);
    return done ? done : refuse(import_.get(), {}, done.error());
  }

 private:
  Result<void> make_layer(const std::string& order);
  Result<void> publish(const Digest& blob, int layer) const;
  Result<void> put();

  int store_;
  UniqueFd import_;
};

Result<void> Publisher::make_layer(const std::string& order) {
  const UniqueFd layers(
      ::openat(store_, store_layout::kLayers, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  UniqueFd file(::openat(layers.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0444));
  if (!file) {
    const int err = errno;
    auto error = Error::from_errno(err, "create a layer in the user's image store");
    if (err != EOPNOTSUPP && err != EISDIR) return error;
    return std::move(error).hint(
        "its file system does not support unnamed files (NFS): set XDG_DATA_HOME to a local "
        "directory");
  }
  auto [input, input_end] = SPC_TRY(make_pipe());
  auto [report_end, report] = SPC_TRY(socket_pair());
  auto [below, below_end] = SPC_TRY(socket_pair());
  (void)::fcntl(input_end.get(), F_SETPIPE_SZ, kLayerPipe);
  auto writer = SPC_TRY(HelperProgram::start(own_program("layer-writer"), {order},
                                             {file.get(), report.get(), below.get(), input.get()},
                                             HelperProgram::Environment::empty));
  const int ends[] = {input_end.get(), report_end.get(), below_end.get()};
  SPC_TRY(answer(import_.get(), ImportMessageKind::writer, {}, ends));
  for (UniqueFd* end : {&input, &input_end, &report, &report_end, &below, &below_end}) end->reset();
  ImportMessage message;
  SPC_TRY(receive_struct(import_.get(), message));
  message = {.kind = ImportMessageKind::ended,
             .done = static_cast<std::uint64_t>(writer.wait_status().raw())};
  const UniqueFd layer(
      ::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDONLY | O_CLOEXEC));
  if (!layer) return Error::from_errno(errno, "open a layer of the user's image store");
  file.reset();
  const int passed[] = {layer.get()};
  SPC_TRY(send_struct(import_.get(), message, passed));
  SPC_TRY(receive_struct(import_.get(), message));
  SPC_TRY(publish(message.digest, layer.get()));
  return answer(import_.get(), ImportMessageKind::published, message.digest);
}

Result<void> Publisher::publish(const Digest& blob, int layer) const {
  const std::string program = own_program("layer-verifier");
  if (::access(program.c_str(), X_OK) == 0) {
    const int code =
        SPC_TRY(HelperProgram::start(program, {}, {layer}, HelperProgram::Environment::empty))
            .wait();
    if (code != 0)
      return Error(ErrorKind::corrupt, code == 1 ? "not a layer written by the converter"
                                                 : "the layer verifier failed");
  }
  const std::string itself = "/proc/self/fd/" + std::to_string(layer);
  if (::fdatasync(layer) == 0 &&
      (::linkat(AT_FDCWD, itself.c_str(), store_, store_layout::layer_path(blob).c_str(),
                AT_SYMLINK_FOLLOW) == 0 ||
       errno == EEXIST))
    return {};
  return Error::from_errno(errno, "publish layer " + blob.str());
}

Result<void> Publisher::put() {
  ImportMessage message;
  SPC_TRY(receive_struct(import_.get(), message));
  if (message.total > ImageRecordHeader::kMaxBytes)
    return Error(ErrorKind::invalid, "write into the store: it is too large");
  std::string bytes;
  for (ImportBytes piece{}; bytes.size() < message.total;) {
    SPC_TRY(receive_struct(import_.get(), piece));
    bytes.append(piece.bytes,
                 std::min<std::size_t>(sizeof piece.bytes, message.total - bytes.size()));
  }
  OwnStoreKeeper keeper(store_);
  std::optional<std::uint32_t> uid;
  if (message.kind == ImportMessageKind::grant) uid = static_cast<std::uint32_t>(message.done);
  SPC_TRY(message.kind == ImportMessageKind::record ? keeper.publish_record(message.digest, bytes)
                                                    : keeper.set_name(message.digest, uid, bytes));
  return answer(import_.get(), ImportMessageKind::obeyed, message.digest);
}

/// One run of `import` with the services that it needs from this process.
class ImportRun {
 public:
  ImportRun(int store, std::string image, PullDisplay& display)
      : store_(store), image_(std::move(image)), display_(display) {}

  Result<void> start(const ImportRequest& request);
  Result<Digest> serve();
  [[nodiscard]] const std::string& config() const { return image_config_; }

 private:
  Result<void> on_message();
  Result<void> on_question();
  Result<void> start_publisher(const std::string& order);
  Result<void> evict(const Digest& blob);

  int store_;
  std::string image_;
  std::string image_config_;
  PullDisplay& display_;
  UniqueFd socket_;
  UniqueFd questions_;
  HelperProgram import_;
  HelperProgram user_source_;
  std::vector<Child> publishers_;
  std::optional<Result<Digest>> outcome_;
};

Result<void> ImportRun::start(const ImportRequest& request) {
  if (!request.only_shared && ::faccessat(store_, store_layout::kLayers, F_OK, 0) != 0)
    return Error::from_errno(errno, "open the user's image store");
  auto [ours, theirs] = SPC_TRY(socket_pair());
  auto [questions, source] = SPC_TRY(socket_pair());
  const std::string wishes = request.serialize();
  SPC_TRY(send_message(questions.get(), std::as_bytes(std::span(wishes)), {}));
  import_ = SPC_TRY(
      HelperProgram::start(own_program("import"), {}, {theirs.get(), source.get(), store_},
                           HelperProgram::Environment::ours));  // for its proxy variables
  socket_ = std::move(ours);
  questions_ = std::move(questions);
  return {};
}

Result<Digest> ImportRun::serve() {
  while (!outcome_) {
    std::vector<pollfd> watched{{.fd = socket_.get(), .events = POLLIN}};
    if (questions_) watched.push_back({.fd = questions_.get(), .events = POLLIN});
    if (::poll(watched.data(), watched.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return Error::from_errno(errno, "wait for the image");
    }
    if (questions_ && watched[1].revents != 0) SPC_TRY(on_question());
    std::erase_if(publishers_, [](Child& one) { return one.try_wait().has_value(); });
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
    case ImportMessageKind::progress:
      display_.write(LogLevel::info, message.text.view());
      return {};
    case ImportMessageKind::warning:
      display_.write(LogLevel::warning, message.text.view());
      return {};
    case ImportMessageKind::meter: display_.meter(message.done, message.total); return {};
    case ImportMessageKind::config:
      if (!descriptors->empty())
        image_config_ =
            SPC_TRY(read_file(descriptors->front().get(), ImageRecordHeader::kMaxBytes));
      return {};
    case ImportMessageKind::object: return start_publisher(message.text.str());
    case ImportMessageKind::evict: return evict(message.digest);
    case ImportMessageKind::done: outcome_.emplace(message.digest); return {};
    case ImportMessageKind::failed: outcome_.emplace(message.error.error()); return {};
    default: return Error(ErrorKind::internal, "unexpected message from import");
  }
}

/// Handles the first request of `import` to the user's side: from then on `user-source` answers.
Result<void> ImportRun::on_question() {
  const std::string program = own_program("user-source");
  if (::access(program.c_str(), X_OK) == 0) {
    user_source_ = SPC_TRY(HelperProgram::start(program, {image_}, {questions_.get()},
                                                HelperProgram::Environment::ours));
  }
  questions_.reset();
  return {};
}

Result<void> ImportRun::start_publisher(const std::string& order) {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const auto work = [&] {
    theirs.reset();
    return Publisher(store_, std::move(ours)).make(order) ? 0 : 1;
  };
  publishers_.push_back(SPC_TRY(Child::run(work, "write into the user's image store")));
  const int passed[] = {theirs.get()};
  return answer(socket_.get(), ImportMessageKind::object_socket, {}, passed);
}

Result<void> ImportRun::evict(const Digest& blob) {
  const auto removed = remove_layer(store_, blob);
  if (!removed) return refuse(socket_.get(), blob, removed.error());
  return *removed
             ? answer(socket_.get(), ImportMessageKind::obeyed, blob)
             : refuse(socket_.get(), blob, Error(ErrorKind::unavailable, "the layer is in use"));
}

}  // namespace

Result<Digest> import_into_own_store(int store, const ImportRequest& request,
                                     PullDisplay& display) {
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
