#include "image/peers/alive_question.hpp"

namespace spc {

AliveQuestion::AliveQuestion(HttpClient& http, const RegistryEndpoint& node) : http_(http) {
  HttpRequest request;
  request.url = node.base_url + "/alive";
  request.authorization = node.authorization.text();
  request.is_peer = true;
  if (!http_.start(request, *this)) answer_ = Answer::failed;
}

HttpHandler::Take AliveQuestion::body(const HttpHead& /*head*/, std::span<const std::byte> bytes) {
  if (said_.size() + bytes.size() > 64) return Take::stop;
  said_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return Take::taken;
}

void AliveQuestion::ended(const HttpHead& head, HttpEnd end) {
  answer_ =
      end.kind == HttpEnd::Kind::complete && head.status == 200 ? Answer::alive : Answer::failed;
}

}  // namespace spc
