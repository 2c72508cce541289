#include "image/pull/agent_link.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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

/// The agent proves with a lease that there is no writer, so what is passed on must not be one either.
UniqueFd for_reading(UniqueFd file) {
  const std::string self = "/proc/self/fd/" + std::to_string(file.get());
  UniqueFd reader(::open(self.c_str(), O_RDONLY | O_CLOEXEC));
  return reader ? std::move(reader) : std::move(file);
}

}  // namespace

void AgentLink::write(LogLevel level, std::string_view line) noexcept {
  if (level == LogLevel::debug) return;
  try {
    const auto kind = level == LogLevel::warning ? ImportMessageKind::warning : ImportMessageKind::progress;
    const std::string text = std::string(level == LogLevel::record ? kPullRecord : "").append(line);
    // An agent that is gone is noticed by the next request to it.
    static_cast<void>(send_struct(socket_, message_of(kind, text)));
  } catch (const std::exception&) {
    // A line is lost.
  }
}

void AgentLink::meter(std::uint64_t done, std::uint64_t total) noexcept {
  ImportMessage message;
  message.kind = ImportMessageKind::meter;
  message.done = done;
  message.total = total;
  static_cast<void>(send_struct(socket_, message));
}

Result<AgentLink::Answer> AgentLink::next_answer() {
  Answer answer;
  answer.descriptors = SPC_TRY(receive_struct(socket_, answer.message, 1));
  return answer;
}

/// Answers to publish() come at any time: they wait for published().
Result<void> AgentLink::keep(const Answer& answer) {
  const auto asked = published_.find(answer.message.digest);
  if (asked == published_.end()) return Error(ErrorKind::internal, "unexpected reply from the agent");
  const bool refused = answer.message.kind == ImportMessageKind::refused;
  asked->second = refused ? Result<bool>(answer.message.error.error()) : Result<bool>(true);
  return {};
}

/// The next answer that is about `digest`; answers about layers that wait for their names are kept.
Result<AgentLink::Answer> AgentLink::answer_to(const Digest& digest) {
  for (;;) {
    Answer answer = SPC_TRY(next_answer());
    if (answer.message.digest == digest) return answer;
    SPC_TRY(keep(answer));
  }
}

Result<UniqueFd> AgentLink::new_layer() {
  const std::string step = "request a file in the store";
  SPC_TRY_DURING(step, send_struct(socket_, message_of(ImportMessageKind::new_layer)));
  Answer answer = SPC_TRY_DURING(step, answer_to(Digest{}));
  if (answer.message.kind == ImportMessageKind::refused) return answer.message.error.error().during(step);
  if (answer.message.kind != ImportMessageKind::layer_file || answer.descriptors.size() != 1) {
    return Error(ErrorKind::internal, step + ": unexpected answer");
  }
  return std::move(answer.descriptors.front());
}

Result<void> AgentLink::publish(const Digest& layer, UniqueFd file) {
  file = for_reading(std::move(file));
  ImportMessage message = message_of(ImportMessageKind::publish);
  message.digest = layer;
  const int descriptors[] = {file.get()};
  SPC_TRY_DURING("publish layer " + in_quotes(layer.str()), send_struct(socket_, message, descriptors));
  published_[layer].reset();
  return {};
}

Result<bool> AgentLink::published(const Digest& layer) {
  const auto asked = published_.find(layer);
  if (asked == published_.end() || !asked->second) return false;
  Result<bool> answer = *std::move(asked->second);
  published_.erase(asked);
  if (!answer) return std::move(answer).error().during("publish layer " + in_quotes(layer.str()));
  return answer;
}

Result<bool> AgentLink::evict(const Digest& layer) {
  const std::string step = formatted("remove layer {} from the store", in_quotes(layer.str()));
  ImportMessage message = message_of(ImportMessageKind::evict);
  message.digest = layer;
  SPC_TRY_DURING(step, send_struct(socket_, message));
  const Answer answer = SPC_TRY_DURING(step, answer_to(layer));
  return answer.message.kind == ImportMessageKind::obeyed;
}

/// These bytes, unless they are empty, in place of what is there.
Result<void> AgentLink::put(ImportMessage message, std::string_view bytes) {
  const std::string step = "write into the store";
  UniqueFd file;
  if (!bytes.empty()) {
    file = SPC_TRY_DURING(step, new_layer());
    SPC_TRY_DURING(step, write_all(file.get(), bytes));
    if (message.kind == ImportMessageKind::record && ::fsync(file.get()) != 0) return Error::from_errno(errno, step);
    file = for_reading(std::move(file));
  }
  const int passed[] = {file.get()};
  SPC_TRY_DURING(step, send_struct(socket_, message, std::span(passed, file ? 1 : 0)));
  const Answer answer = SPC_TRY_DURING(step, answer_to(message.digest));
  return answer.message.kind == ImportMessageKind::obeyed ? Result<void>() : answer.message.error.error().during(step);
}

Result<void> AgentLink::publish_record(const Digest& manifest, std::string_view bytes) {
  ImportMessage message = message_of(ImportMessageKind::record);
  message.digest = manifest;
  return put(message, bytes);
}

Result<void> AgentLink::remove_record(const Digest& manifest) { return publish_record(manifest, {}); }

Result<void> AgentLink::set_name(const Digest& key, std::optional<std::uint32_t> uid, std::string_view means) {
  ImportMessage message = message_of(uid ? ImportMessageKind::grant : ImportMessageKind::name);
  message.digest = key;
  message.done = uid.value_or(0);
  return put(message, means);
}

Result<void> AgentLink::receive() {
  for (;;) {
    pollfd one = watch();
    if (::poll(&one, 1, 0) != 1) return {};
    const Answer answer = SPC_TRY_DURING("communicate with the agent", next_answer());
    SPC_TRY_DURING("communicate with the agent", keep(answer));
  }
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
