#include "agent_link.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/socket.hpp"

namespace spc {
namespace {

ImportMessage message_of(ImportMessageKind kind, std::string_view text = {}) {
  ImportMessage message;
  message.kind = kind;
  const std::string line = printable(text);
  if (line.size() < sizeof message.text) {
    std::memcpy(message.text, line.data(), line.size());
  } else {
    // Beginning and end say the most: what was done to what, and the reason with its hint.
    constexpr std::string_view kGap = " ... ";
    const std::size_t half = (sizeof message.text - 1 - kGap.size()) / 2;
    const std::string shortened = line.substr(0, half) + std::string(kGap) + line.substr(line.size() - half);
    std::memcpy(message.text, shortened.data(), shortened.size());
  }
  return message;
}

Error refusal(const ImportMessage& message) {
  const auto kind = message.error_kind <= static_cast<std::uint32_t>(ErrorKind::internal)
                        ? static_cast<ErrorKind>(message.error_kind)
                        : ErrorKind::internal;
  return {kind, printable({message.text, ::strnlen(message.text, sizeof message.text)})};
}

}  // namespace

void AgentLink::write(LogLevel level, std::string_view line) noexcept {
  if (level == LogLevel::debug) return;
  try {
    const auto kind = level == LogLevel::warning ? ImportMessageKind::warning : ImportMessageKind::progress;
    // An agent that is gone is noticed by the next request to it.
    static_cast<void>(send_struct(socket_, message_of(kind, line)));
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

Result<UniqueFd> AgentLink::new_layer() {
  SPC_TRY_DURING("ask for a file in the store", send_struct(socket_, message_of(ImportMessageKind::new_layer)));
  ImportMessage answer;
  auto descriptors = SPC_TRY_DURING("ask for a file in the store", receive_struct(socket_, answer));
  if (answer.kind == ImportMessageKind::refused) return refusal(answer).during("ask for a file in the store");
  if (answer.kind != ImportMessageKind::layer_file || descriptors.size() != 1) {
    return Error(ErrorKind::internal, "ask for a file in the store: unexpected answer");
  }
  return std::move(descriptors.front());
}

Result<void> AgentLink::publish(const Digest& blob, UniqueFd file) {
  // The agent proves with a lease that there is no writer, so what we pass on must not be one either.
  const std::string self = "/proc/self/fd/" + std::to_string(file.get());
  if (UniqueFd reader(::open(self.c_str(), O_RDONLY | O_CLOEXEC)); reader) file = std::move(reader);
  ImportMessage message = message_of(ImportMessageKind::publish);
  message.digest = blob;
  const int descriptors[] = {file.get()};
  const std::string step = "publish layer " + quoted(blob.str());
  SPC_TRY_DURING(step, send_struct(socket_, message, descriptors));
  file.reset();
  ImportMessage answer;
  SPC_TRY_DURING(step, receive_struct(socket_, answer));
  if (answer.kind == ImportMessageKind::refused) return refusal(answer).during(step);
  if (answer.kind != ImportMessageKind::published) return Error(ErrorKind::internal, step + ": unexpected answer");
  return {};
}

Result<void> AgentLink::done(const Digest& manifest) {
  ImportMessage message = message_of(ImportMessageKind::done);
  message.digest = manifest;
  return send_struct(socket_, message);
}

Result<void> AgentLink::failed(const Error& error) {
  ImportMessage message = message_of(ImportMessageKind::failed, error.message());
  message.error_kind = static_cast<std::uint32_t>(error.kind());
  return send_struct(socket_, message);
}

}  // namespace spc
