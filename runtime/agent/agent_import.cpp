#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent.hpp"
#include "agent/node/privilege.hpp"
#include "base/socket.hpp"

/// The agent's part in pulling an image: it starts `import`, hands it files for new layers, and gives these their names.

namespace spc::agent {
namespace {

/// layer-verifier reads it again and accepts only what our converter writes, so that the kernel never meets anything else.
Result<void> publish_verified(const ImageStore& store, const Digest& blob, UniqueFd file) {
  const auto layer = SPC_TRY(store.freeze(std::move(file)));
  const pid_t verifier =
      SPC_TRY(start_helper(SPC_LIBEXECDIR "/layer-verifier", nullptr, store.service_uid(), store.service_gid(), {layer.get()}));
  int status = -1;  // no verdict
  ::waitpid(verifier, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 1) {
    return Error(ErrorKind::corrupt, "verify layer " + blob.str() + ": not a layer written by the converter");
  }
  if (status != 0) return Error(ErrorKind::unavailable, "verify layer " + blob.str() + ": the verifier failed").hint("see --mem");
  return store.publish(layer.get(), blob);
}

}  // namespace

Result<void> Agent::start_import(int request, int user_source) {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const ImageStore& store = tools_->store;
  import_.pid = SPC_TRY(start_helper(SPC_LIBEXECDIR "/import", nullptr, store.service_uid(), store.service_gid(),
                                     {theirs.get(), request, store.directory(), user_source}));
  import_.socket = std::move(ours);
  return {};
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
      return answer_import(ImportMessageKind::layer_file, message.digest, file ? nullptr : &file.error(),
                           file ? file->get() : -1);
    }
    case ImportMessageKind::publish: {
      if (descriptors->size() != 1) return Error(ErrorKind::internal, "pull the image: layer without file");
      return publish(message.digest, std::move(descriptors->front()));
    }
    case ImportMessageKind::evict: {
      const auto evicted = tools_->store.evict(message.digest);
      return answer_import(ImportMessageKind::evicted, message.digest, evicted ? nullptr : &evicted.error());
    }
    case ImportMessageKind::done: {
      reap(import_);
      auto image = SPC_TRY(tools_->store.open_image(message.digest, Audience::whoever_import_admitted));
      return use(message.digest, std::move(image));
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
  ::_exit(answer_import(ImportMessageKind::published, blob, done ? nullptr : &done.error()) ? 0 : 1);
}

/// With an error the answer is that import's wish was refused.
Result<void> Agent::answer_import(ImportMessageKind kind, const Digest& digest, const Error* error, int descriptor) {
  ImportMessage answer;
  answer.kind = error != nullptr ? ImportMessageKind::refused : kind;
  answer.digest = digest;
  if (error != nullptr) answer.error = WireError(*error);
  return send_struct(import_.socket.get(), answer, std::span(&descriptor, descriptor >= 0 ? 1 : 0));
}

}  // namespace spc::agent
