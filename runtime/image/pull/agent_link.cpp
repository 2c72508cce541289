#include "image/pull/agent_link.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/socket.hpp"
#include "protocol/bytes_from.hpp"

namespace spc {
namespace {

ImportMessage message_of(ImportMessageKind kind, std::string_view text = {}) {
  ImportMessage message;
  message.kind = kind;
  message.text.set(printable(text));
  return message;
}

}  // namespace

Result<std::vector<UniqueFd>> StoreObject::receive(ImportMessage& answer, std::size_t most) {
  auto descriptors = receive_struct(socket_.get(), answer, most);
  if (!descriptors)
    return Error(ErrorKind::unavailable, "the process that writes it was killed")
        .hint("increase --mem");
  if (answer.kind == ImportMessageKind::refused) return answer.error.error();
  return descriptors;
}

Result<LayerProcess::Ends> StoreObject::writer() {
  ImportMessage answer;
  auto ends = SPC_TRY(receive(answer, 3));
  if (answer.kind != ImportMessageKind::writer || ends.size() != 3)
    return Error(ErrorKind::internal, "unexpected reply from the agent");
  return LayerProcess::Ends{.input = std::move(ends[0]),
                            .report = std::move(ends[1]),
                            .below = std::move(ends[2]),
                            .wait = [self = shared_from_this()] { return self->wait(); }};
}

Result<ExitStatus> StoreObject::wait() {
  ImportMessage answer;
  SPC_TRY(send_struct(socket_.get(), message_of(ImportMessageKind::written)));
  auto file = SPC_TRY(receive(answer, 1));
  if (answer.kind != ImportMessageKind::ended || file.size() != 1)
    return Error(ErrorKind::internal, "unexpected reply from the agent");
  file_ = std::move(file.front());
  return ExitStatus(static_cast<int>(answer.done));
}

Result<void> StoreObject::publish(const Digest& layer) {
  layer_ = "publish layer " + in_quotes(layer.str());
  ImportMessage message = message_of(ImportMessageKind::publish);
  message.digest = layer;
  return send_struct(socket_.get(), message);
}

Result<bool> StoreObject::is_published() {
  pollfd one = watch();
  ImportMessage answer;
  if (::poll(&one, 1, 0) != 1) return false;
  SPC_TRY_DURING(layer_, receive(answer));
  return true;
}

Result<void> StoreObject::put(ImportMessage message, std::string_view bytes) {
  message.total = bytes.size();
  auto sent = send_struct(socket_.get(), message);
  for (ImportBytes piece{}; sent && !bytes.empty();
       bytes.remove_prefix(std::min(bytes.size(), sizeof piece.bytes))) {
    bytes.copy(piece.bytes, sizeof piece.bytes);
    sent = send_struct(socket_.get(), piece);
  }
  SPC_TRY(receive(message));  // even if sending failed: the answer has the reason
  return {};
}

bool AgentLink::is_of_own_user() const {
  ucred starter{};
  socklen_t size = sizeof starter;
  return ::getsockopt(socket_, SOL_SOCKET, SO_PEERCRED, &starter, &size) == 0 &&
         starter.uid == ::geteuid();
}

void AgentLink::write(LogLevel level, std::string_view line) noexcept {
  if (level == LogLevel::debug) return;
  try {
    const auto kind =
        level == LogLevel::warning ? ImportMessageKind::warning : ImportMessageKind::progress;
    const std::string text = std::string(level == LogLevel::record ? kPullRecord : "").append(line);
    // The next request to the agent notices that it has exited.
    static_cast<void>(send_struct(socket_, message_of(kind, text)));
  } catch (const std::exception&) {
    // Out of memory: the line is lost.
  }
}

void AgentLink::meter(std::uint64_t done, std::uint64_t total) noexcept {
  ImportMessage message;
  message.kind = ImportMessageKind::meter;
  message.done = done;
  message.total = total;
  static_cast<void>(send_struct(socket_, message));
}

/// Sends a request and receives the answer. Returns a refusal as an error.
Result<std::vector<UniqueFd>> AgentLink::ask(const ImportMessage& question, ImportMessage& answer) {
  SPC_TRY(send_struct(socket_, question));
  auto descriptors = SPC_TRY(receive_struct(socket_, answer, 1));
  if (answer.kind == ImportMessageKind::refused) return answer.error.error();
  return descriptors;
}

Result<std::shared_ptr<StoreObject>> AgentLink::new_object(std::string_view order) {
  ImportMessage answer;
  auto socket = SPC_TRY_DURING("request a file in the store",
                               ask(message_of(ImportMessageKind::object, order), answer));
  if (socket.size() != 1)
    return Error(ErrorKind::internal, "request a file in the store: unexpected answer");
  return std::make_shared<StoreObject>(std::move(socket.front()));
}

Result<std::vector<UniqueFd>> AgentLink::new_server(std::size_t layers) {
  constexpr std::size_t kTogether = 32;  // requests whose answers fit into the socket
  ImportMessage request = message_of(ImportMessageKind::serve), answer;
  request.total = layers;
  std::vector<UniqueFd> sockets;
  while (sockets.size() < layers) {
    const std::size_t some = std::min(kTogether, layers - sockets.size());
    for (std::size_t i = 0; i < some; ++i) SPC_TRY(send_struct(socket_, request));
    for (std::size_t i = 0; i < some; ++i) {
      auto socket = SPC_TRY(receive_struct(socket_, answer, 1));
      if (answer.kind == ImportMessageKind::refused) return answer.error.error();
      if (answer.kind != ImportMessageKind::object_socket || socket.size() != 1)
        return Error(ErrorKind::internal, "unexpected reply from the agent");
      sockets.push_back(std::move(socket.front()));
    }
  }
  return sockets;
}

Result<bool> AgentLink::evict(const Digest& layer) {
  ImportMessage message = message_of(ImportMessageKind::evict), answer;
  message.digest = layer;
  SPC_TRY_DURING("remove layer " + in_quotes(layer.str()) + " from the store",
                 send_struct(socket_, message));
  SPC_TRY_DURING("remove layer " + in_quotes(layer.str()) + " from the store",
                 receive_struct(socket_, answer));
  return answer.kind == ImportMessageKind::obeyed;
}

/// Replaces the object by these bytes, or removes it if they are empty.
Result<void> AgentLink::put(ImportMessage message, std::string_view bytes) {
  const auto object = SPC_TRY_DURING("write into the store", new_object());
  SPC_TRY_DURING("write into the store", object->put(message, bytes));
  return {};
}

Result<void> AgentLink::publish_record(const Digest& manifest, std::string_view bytes) {
  ImportMessage message = message_of(ImportMessageKind::record);
  message.digest = manifest;
  auto published = put(message, bytes);
  if (published) return {};
  auto error = std::move(published).error().during("image " + in_quotes(manifest.str()));
  if (error.kind() != ErrorKind::corrupt) return error;
  return std::move(error).hint(
      "pull it again; if this returns, have the administrator check the node");
}

Result<void> AgentLink::remove_record(const Digest& manifest) {
  return publish_record(manifest, {});
}

Result<void> AgentLink::set_name(const Digest& key, std::optional<std::uint32_t> uid,
                                 std::string_view means) {
  ImportMessage message = message_of(uid ? ImportMessageKind::grant : ImportMessageKind::name);
  message.digest = key;
  message.done = uid.value_or(0);
  return put(message, means);
}

Result<void> AgentLink::check() {
  pollfd one = watch();
  ImportMessage message;
  if (::poll(&one, 1, 0) != 1) return {};
  SPC_TRY_DURING("communicate with the agent", receive_struct(socket_, message));
  return Error(ErrorKind::internal, "unexpected message from the agent");
}

Result<void> AgentLink::describe(std::string_view config) {
  const auto file = SPC_TRY(sealed_memory_file("image configuration", config));
  const int passed[] = {file.get()};
  return send_struct(socket_, message_of(ImportMessageKind::config), passed);
}

Result<void> AgentLink::done(const Digest& manifest) {
  ImportMessage message = message_of(ImportMessageKind::done);
  message.digest = manifest;
  return send_struct(socket_, message);
}

Result<void> AgentLink::failed(const Error& error) {
  ImportMessage message = message_of(ImportMessageKind::failed);
  message.error = WireError(error);
  return send_struct(socket_, message);
}

}  // namespace spc
