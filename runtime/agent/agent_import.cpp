#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent.hpp"
#include "agent/node/privilege.hpp"
#include "base/socket.hpp"
#include "protocol/store_layout.hpp"

/// The agent's part in pulling an image: it starts `import`, hands it files for new layers, and gives these their names.

namespace spc::agent {
namespace {

/// layer-verifier reads it again and accepts only what our converter writes, so that the kernel never meets anything else.
Result<void> publish_verified(const ImageStore& store, const Digest& blob, UniqueFd file) {
  const auto layer = SPC_TRY(store.freeze(std::move(file)));
  const pid_t verifier = SPC_TRY(start_helper("layer-verifier", nullptr, store.service_uid(), store.service_gid(), {layer.get()}));
  int status = -1;  // no verdict
  ::waitpid(verifier, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
    return Error(ErrorKind::corrupt, "verify layer " + blob.str() + ": not a layer written by the converter");
  if (status != 0) return Error(ErrorKind::unavailable, "verify layer " + blob.str() + ": the verifier failed").hint("see --mem");
  return store.publish(layer.get(), store_layout::layer_path(blob));
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
  return send_struct(tasks_.front().socket.get(), TaskMessage{.kind = TaskMessageKind::import_asks}, passed, WhenFull::fail);
}

Result<void> Agent::on_import(int socket) {
  ImportMessage message;
  auto descriptors = receive_struct(socket, message, 1);
  if (!descriptors) return Error(ErrorKind::unavailable, "pull the image: import exited unexpectedly");
  switch (message.kind) {
    case ImportMessageKind::progress: return tell_all(TaskMessageKind::progress, message.text.view());
    case ImportMessageKind::warning: return tell_all(TaskMessageKind::warning, message.text.view());
    case ImportMessageKind::new_layer: {
      const auto file = tools_->store.new_layer();
      const auto done = file ? Result<void>() : file.error();
      return answer_import(ImportMessageKind::layer_file, message.digest, done, file ? file->get() : -1);
    }
    case ImportMessageKind::publish:
      if (descriptors->size() != 1) return Error(ErrorKind::internal, "pull the image: layer without file");
      return publish(message.digest, std::move(descriptors->front()));
    case ImportMessageKind::evict:
    case ImportMessageKind::record:
    case ImportMessageKind::name:
    case ImportMessageKind::grant:
      return answer_import(ImportMessageKind::obeyed, message.digest, obey(message, *std::move(descriptors)));
    case ImportMessageKind::done: {
      auto used = use(message.digest, SPC_TRY(tools_->store.open_image(message.digest, Audience::whoever_import_admitted)));
      reap(import_);  // last: its end takes longer than its answer
      return used;
    }
    case ImportMessageKind::failed: return message.error.unread();
    default: return Error(ErrorKind::internal, "pull the image: unexpected message from import");
  }
}

/// Reading a whole layer takes its time, so a fork of the agent sees to it and answers import; several may be on their way.
Result<void> Agent::publish(const Digest& blob, UniqueFd file) {
  const pid_t child = SPC_TRY(fork_child());
  if (child > 0) {
    publishers_.push_back(child);
    return {};
  }
  common_.reset();  // else slurmstepd's end of the step would stay unseen
  const auto done = publish_verified(tools_->store, blob, std::move(file));
  ::_exit(answer_import(ImportMessageKind::published, blob, done) ? 0 : 1);
}

/// What names and records say only import knows. It may write the name that the leader has asked for, and grants to this user.
Result<void> Agent::obey(const ImportMessage& message, std::vector<UniqueFd> file) {
  if (message.kind == ImportMessageKind::evict)
    return message.digest == Digest{} ? remove_traces("", AT_REMOVEDIR) : tools_->store.evict(message.digest);
  const bool name = message.kind == ImportMessageKind::name;
  const bool grant = message.kind == ImportMessageKind::grant;
  const bool foreign = (name && message.digest != image_name_) || (grant && message.done != step_.uid);
  if (foreign && !file.empty()) return Error(ErrorKind::refused, "write into the store: it is not about this image");
  const auto path = name    ? store_layout::name_path(message.digest)
                    : grant ? store_layout::grant_path(message.done, message.digest)
                            : store_layout::record_path(message.digest);
  return tools_->store.put(path, std::move(file));
}

/// With an error the answer is that import's wish was refused.
Result<void> Agent::answer_import(ImportMessageKind kind, const Digest& digest, const Result<void>& done, int descriptor) {
  const ImportMessage answer{.kind = done ? kind : ImportMessageKind::refused,
                             .digest = digest,
                             .error = done ? WireError() : WireError(done.error())};
  return send_struct(import_.socket.get(), answer, std::span(&descriptor, descriptor >= 0 ? 1 : 0));
}

}  // namespace spc::agent
