#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "agent/agent.hpp"
#include "agent/node/privilege.hpp"
#include "agent/node/system_call.hpp"
#include "base/socket.hpp"
#include "protocol/image_record.hpp"
#include "protocol/layer.hpp"
#include "protocol/store_layout.hpp"

/// The agent's part in pulling an image: it starts `import`, and a publisher for each object that
/// this wants in the store.

namespace spc::agent {
namespace {

/// With an error the answer is that import's wish was refused. `when_full`: a publisher may wait
/// for import, the agent does not.
Result<void> answer(int import, ImportMessageKind kind, const Digest& digest,
                    const Result<void>& done, std::span<const int> passed = {},
                    WhenFull when_full = WhenFull::wait) {
  const ImportMessage message{.kind = done ? kind : ImportMessageKind::refused,
                              .digest = digest,
                              .error = done ? WireError() : WireError(done.error())};
  return send_struct(import, message, passed, when_full);
}

/// Starts the sealed writer of a layer and passes its other ends to import.
Result<pid_t> start_writer(const ImageStore& store, int import, const std::string& order,
                           int file) {
  int pipe[2];
  SPC_TRY(check(::pipe2(pipe, O_CLOEXEC), "create a pipe"));
  const UniqueFd input(pipe[0]), input_end(pipe[1]);
  const auto [report, report_end] = SPC_TRY(socket_pair());
  const auto [below, below_end] = SPC_TRY(socket_pair());
  ::fcntl(input_end.get(), F_SETPIPE_SZ, kLayerPipe);
  const pid_t writer =
      SPC_TRY(start_helper("layer-writer", order.c_str(), store.service_uid(), store.service_gid(),
                           {file, report.get(), below.get(), input.get()}));
  const int ends[] = {input_end.get(), report_end.get(), below_end.get()};
  SPC_TRY(answer(import, ImportMessageKind::writer, {}, {}, ends));
  return writer;
}

/// layer-verifier reads it again and accepts only what our converter writes, so that the kernel
/// never meets anything else.
Result<void> publish_verified(const ImageStore& store, const Digest& blob, int layer) {
  const pid_t verifier = SPC_TRY(
      start_helper("layer-verifier", nullptr, store.service_uid(), store.service_gid(), {layer}));
  int status = -1;  // no verdict
  ::waitpid(verifier, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
    return Error(ErrorKind::corrupt,
                 "verify layer " + blob.str() + ": not a layer written by the converter");
  if (status != 0)
    return Error(ErrorKind::unavailable, "verify layer " + blob.str() + ": the verifier failed")
        .hint("see --mem");
  return store.publish(layer, store_layout::layer_path(blob));
}

/// A publisher, until import closes the socket. Only the sealed writer has the file as well, and
/// that has ended when it is read.
Result<void> make_layer(const ImageStore& store, int import, const std::string& order) {
  UniqueFd file = SPC_TRY(store.new_object());
  const pid_t writer = SPC_TRY(start_writer(store, import, order, file.get()));
  ImportMessage message;
  SPC_TRY(receive_struct(import, message));
  int status = 0;
  ::waitpid(writer, &status, 0);
  const auto layer = SPC_TRY(store.freeze(std::move(file)));
  const int passed[] = {layer.get()};
  SPC_TRY(send_struct(
      import,
      ImportMessage{.kind = ImportMessageKind::ended, .done = static_cast<unsigned>(status)},
      passed));
  SPC_TRY(receive_struct(import, message));
  return answer(import, ImportMessageKind::published, message.digest,
                publish_verified(store, message.digest, layer.get()));
}

}  // namespace

Result<void> Agent::start_import() {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const auto [leads, imports] = SPC_TRY(socket_pair());
  const ImageStore& store = tools_->store;
  import_.pid = SPC_TRY(start_helper("import", nullptr, store.service_uid(), store.service_gid(),
                                     {theirs.get(), imports.get(), store.directory()}));
  import_.socket = std::move(ours);
  const int passed[] = {leads.get()};
  return send_struct(tasks_.front().socket.get(), TaskMessage{.kind = TaskMessageKind::import_asks},
                     passed, WhenFull::fail);
}

Result<void> Agent::on_import(int socket) {
  ImportMessage message;
  if (!receive_struct(socket, message))
    return Error(ErrorKind::unavailable, "pull the image: import exited unexpectedly");
  switch (message.kind) {
    case ImportMessageKind::progress:
      return tell_all(TaskMessageKind::progress, message.text.view());
    case ImportMessageKind::warning: return tell_all(TaskMessageKind::warning, message.text.view());
    case ImportMessageKind::object: return start_publisher(message.text.str());
    case ImportMessageKind::evict: {
      const bool held = message.digest == Digest{};
      const auto done =
          held ? remove_traces("", AT_REMOVEDIR) : tools_->store.evict(message.digest);
      return answer(socket, ImportMessageKind::obeyed, message.digest, done, {}, WhenFull::fail);
    }
    case ImportMessageKind::done: {
      auto used =
          use(message.digest,
              SPC_TRY(tools_->store.open_image(message.digest, Audience::whoever_import_admitted)));
      reap(import_);
      return used;
    }
    case ImportMessageKind::failed: return message.error.unread();
    default: return Error(ErrorKind::internal, "pull the image: unexpected message from import");
  }
}

/// Writing and verifying take their time, so a fork of the agent sees to each object; several may
/// be on their way.
Result<void> Agent::start_publisher(const std::string& order) {
  if (helpers_.size() > kMostHelpers)
    return Error(ErrorKind::internal, "pull the image: too many files at a time");
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const pid_t child = SPC_TRY(fork_child());
  if (child == 0) {
    common_.reset();  // else slurmstepd's end of the step would stay unseen
    theirs.reset();
    const auto done =
        order.empty() ? put_object(ours.get()) : make_layer(tools_->store, ours.get(), order);
    ::_exit(done || answer(ours.get(), ImportMessageKind::refused, {}, done) ? 0 : 1);
  }
  helpers_.push_back(child);
  const int passed[] = {theirs.get()};
  return answer(import_.socket.get(), ImportMessageKind::object_socket, {}, {}, passed,
                WhenFull::fail);
}

/// What names and records say only import knows. It may write the name that the leader has asked
/// for, and grants to this user.
Result<void> Agent::put_object(int import) const {
  ImportMessage message;
  SPC_TRY(receive_struct(import, message));
  UniqueFd file = SPC_TRY(tools_->store.new_object());
  if (message.total > ImageRecordHeader::kMaxBytes)
    return Error(ErrorKind::invalid, "write into the store: it is too large");
  for (std::uint64_t left = message.total; left > 0;) {
    ImportBytes piece;
    SPC_TRY(receive_struct(import, piece));
    const auto size = std::min<std::uint64_t>(left, sizeof piece.bytes);
    if (::write(file.get(), piece.bytes, size) != static_cast<ssize_t>(size))
      return Error::from_errno(errno, "write into the store");
    left -= size;
  }
  const bool name = message.kind == ImportMessageKind::name;
  const bool grant = message.kind == ImportMessageKind::grant;
  const bool foreign =
      (name && message.digest != image_name_) || (grant && message.done != step_.uid);
  if (foreign && message.total > 0)
    return Error(ErrorKind::refused, "write into the store: it is not about this image");
  const auto path = name    ? store_layout::name_path(message.digest)
                    : grant ? store_layout::grant_path(message.done, message.digest)
                            : store_layout::record_path(message.digest);
  if (!name && !grant) SPC_TRY(check(::fdatasync(file.get()), "write " + path + " to disk"));
  const auto object =
      message.total > 0 ? SPC_TRY(tools_->store.freeze(std::move(file))) : UniqueFd();
  return answer(import, ImportMessageKind::obeyed, message.digest,
                tools_->store.put(path, object.get()));
}

}  // namespace spc::agent
