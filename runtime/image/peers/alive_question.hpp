#pragma once

#include <span>
#include <string>

#include "image/registry/http.hpp"
#include "image/registry/registry_session.hpp"

namespace spc {

/// Whether a node still lives, how far it is, and what it knows of those above.
class AliveQuestion final : private HttpHandler {
 public:
  enum class Answer { none, alive, failed };
  AliveQuestion(HttpClient& http, const RegistryEndpoint& node);
  ~AliveQuestion() override { http_.cancel(*this); }
  AliveQuestion(const AliveQuestion&) = delete;
  AliveQuestion& operator=(const AliveQuestion&) = delete;

  [[nodiscard]] Answer answer() const { return answer_; }
  /// Three numbers, as Relay says.
  [[nodiscard]] const std::string& said() const { return said_; }

 private:
  Take body(const HttpHead& head, std::span<const std::byte> bytes) override;
  void ended(const HttpHead& head, HttpEnd end) override;

  HttpClient& http_;
  Answer answer_ = Answer::none;
  std::string said_;
};

}  // namespace spc
