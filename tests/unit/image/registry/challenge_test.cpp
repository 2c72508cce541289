#include "registry/challenge.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <thread>

#include "registry/http.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

TEST_CASE("challenge_parameters_are_parsed") {
  const auto found =
      parse_challenges(R"(Basic realm="a, b", BEARER realm="https://auth/t?x=1", service = reg ,)"
                       R"(scope="repository:a/b:pull,push")");
  REQUIRE(found.size() == 2);
  CHECK(found[0].scheme == "basic");
  CHECK(found[0].parameters.at("realm") == "a, b");
  CHECK(found[1].scheme == "bearer");
  CHECK(found[1].parameters.at("service") == "reg");
  CHECK(found[1].parameters.at("scope") == "repository:a/b:pull,push");
  CHECK(token_request(found[1], "a/b", "https://r", nullptr).value().url ==
        "https://auth/t?x=1&service=reg&scope=repository%3Aa%2Fb%3Apull%2Cpush");
}

TEST_CASE("challenge_garbage_is_harmless") {
  for (const char* text : {"", ",,,", "=", "\"", "Bearer realm=\"", "Bearer realm=\"\\", "\x01\xff",
                           "a=b", "Bearer =x"}) {
    CHECK(parse_challenges(text).size() <= 1);
  }
}

// outcome 30 refused: realm of a file, in the clear, foreign
TEST_CASE("token_server_must_use_https_unless_registry") {
  const auto url = [](const std::string& realm, const std::string& registry,
                      bool insecure = false) {
    return token_request({"bearer", {{"realm", realm}}}, "x", registry, nullptr, {}, insecure)
        .has_value();
  };
  CHECK_FALSE(url(std::string("https://a/\0b", 12), "https://r"));
  CHECK_FALSE(url("https://a/\r\nX: y", "https://r"));
  CHECK(url("https://auth.example.org/token", "https://r"));
  CHECK(url("http://r:5000/token", "http://r:5000"));
  CHECK_FALSE(url("http://r:5001/token", "http://r:5000"));
  CHECK_FALSE(url("http://auth/token", "https://auth"));
  CHECK_FALSE(url("file:///etc/passwd", "https://r"));
  CHECK_FALSE(url("", "https://r"));
  CHECK(url("http://r:5001/token", "http://r:5000", true));
  CHECK_FALSE(url("ftp://r/token", "http://r:5000", true));
}

TEST_CASE("origin_is_scheme_host_and_port") {
  CHECK(origin_of("https://R.example/x") == origin_of("https://r.example:443/y?z"));
  CHECK(origin_of("https://r/") != origin_of("http://r/"));
  CHECK(origin_of("https://r/") != origin_of("https://r:444/"));
  CHECK(origin_of("https://r@evil/") != origin_of("https://r/"));
  CHECK(origin_of("ftp://r/").empty());
  CHECK(origin_of("nonsense").empty());
}

TEST_CASE("login_server_is_named_as_registries_are") {
  CHECK(registry_of("https://Auth.example/token?x") == "auth.example");
  CHECK(registry_of("https://auth.example:443/t") == "auth.example");
  CHECK(registry_of("http://auth:443/t") == "auth:443");
  CHECK(registry_of("http://auth/t") == "auth");
  CHECK(registry_of("http://auth/t", true) == "auth:80");
  CHECK(registry_of("https://[::1]:5001/t") == "[::1]:5001");
  CHECK(registry_of("file:///etc/passwd").empty());
  CHECK(registry_of("nonsense").empty());
}

TEST_CASE("token_is_read_from_either_member") {
  CHECK(parse_token(R"({"token":"a.b-c"})").value().text() == "a.b-c");
  CHECK(parse_token(R"({"access_token":"x","expires_in":60})").value().text() == "x");
  CHECK_FALSE(parse_token(R"({"token":""})"));
  CHECK_FALSE(parse_token(R"({"token":"a b"})"));
  CHECK_FALSE(parse_token(R"({"token":"a\r\nX: y"})"));
  CHECK_FALSE(parse_token("<html>"));
}

TEST_CASE("token_request_carries_secrets_outside_the_url") {
  const Challenge bearer{"bearer", {{"realm", "https://auth/token"}, {"service", "reg"}}};
  RegistrySecret secret;
  secret.username = "al ice";
  secret.password = SecretText("p:w");
  const auto basic = token_request(bearer, "a/b", "https://r", &secret).value();
  CHECK(basic.url ==
        "https://auth/token?service=reg&scope=repository%3Aa%2Fb%3Apull&account=al%20ice");
  CHECK(basic.authorization == "Basic YWwgaWNlOnA6dw==");
  CHECK_FALSE(basic.form);
  secret.identity_token = SecretText("i/t");
  const auto refresh = token_request(bearer, "a/b", "https://r", &secret).value();
  CHECK(refresh.url == "https://auth/token");
  CHECK(refresh.authorization.empty());
  CHECK(refresh.form ==
        "service=reg&scope=repository%3Aa%2Fb%3Apull&client_id=spank-container&grant_type=refresh_"
        "token&refresh_token=i%2Ft");
  CHECK(token_request(bearer, "", "https://r", nullptr).value().url ==
        "https://auth/token?service=reg");
}

// outcome 30 refused: realm of a file, in the clear, foreign
TEST_CASE("credentials_go_only_to_servers_of_registry_domain") {
  const auto may = [](const char* realm, const char* registry,
                      const std::vector<std::string>& listed = {}) {
    return may_see_credentials(realm, registry, listed);
  };
  CHECK(may("https://auth.docker.io/token", "https://registry-1.docker.io"));
  CHECK(may("https://ghcr.io/token", "https://ghcr.io"));
  CHECK(may("https://quay.io/v2/auth", "https://quay.io"));
  CHECK(may("https://gitlab.com/jwt/auth", "https://registry.gitlab.com"));
  CHECK(may("https://authn.nvidia.com/token", "https://nvcr.io"));
  CHECK(may("https://nvcr.io/proxy_auth", "https://nvcr.io"));
  CHECK(may("https://auth.example.co.uk/x", "https://registry.example.co.uk:5000"));
  CHECK(may("https://10.0.0.1:5001/token", "https://10.0.0.1:5000"));
  CHECK(may("http://reg:5000/token", "http://reg:5000"));
  CHECK_FALSE(may("http://reg:5001/token", "http://reg:5000"));
  CHECK_FALSE(may("http://ghcr.io/token", "https://ghcr.io"));
  CHECK_FALSE(may("https://evil.co.uk/x", "https://example.co.uk"));
  CHECK_FALSE(may("https://evil.github.io/x", "https://registry.github.io"));
  CHECK_FALSE(may("https://evil.com/auth.docker.io", "https://registry-1.docker.io"));
  CHECK_FALSE(may("https://docker.io.evil.com/", "https://registry-1.docker.io"));
  CHECK_FALSE(may("https://auth.docker.io@evil.com/", "https://registry-1.docker.io"));
  CHECK_FALSE(may("https://authn.nvidia.com/token", "https://ghcr.io"));
  CHECK_FALSE(may("https://9.0.0.1/token", "https://8.0.0.1"));
  CHECK_FALSE(may("https://other/token", "https://registry"));
  CHECK_FALSE(may("https://example.org/token", "http://registry.example.org"));
  CHECK(may("https://login.example.com/token", "https://registry.example.org",
            {"login.example.com"}));
  CHECK_FALSE(may("https://login.example.com:444/token", "https://registry.example.org",
                  {"login.example.com"}));
  CHECK_FALSE(
      may("http://login.example.com/token", "https://registry.example.org", {"login.example.com"}));
  CHECK_FALSE(may("file:///etc/passwd", "https://registry.example.org"));
  const auto plain = [](const char* realm, const char* registry,
                        const std::vector<std::string>& listed = {}) {
    return may_see_credentials(realm, registry, listed, true);
  };
  CHECK(plain("http://reg:5001/token", "http://reg:5000"));
  CHECK(plain("http://reg:5001/token", "https://reg:5000"));
  CHECK(plain("http://login:80/token", "https://registry.example.org", {"login"}));
  CHECK_FALSE(plain("http://auth.example.org/token", "https://registry.example.org"));
  CHECK_FALSE(plain("http://other:5001/token", "http://reg:5000"));
}

namespace {

/// Answers one request on the loopback interface.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer) : answer_(std::move(answer)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(listener_, generic, size) == 0);
    REQUIRE(::listen(listener_, 1) == 0);
    REQUIRE(::getsockname(listener_, generic, &size) == 0);
    url = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/";
    thread_ = std::thread([this] {
      const int connection = ::accept(listener_, nullptr, nullptr);
      char request[4096];
      if (::recv(connection, request, sizeof request, 0) > 0)
        (void)::send(connection, answer_.data(), answer_.size(), MSG_NOSIGNAL);
      (void)::recv(connection, request, sizeof request, 0);  // until the client ends
      ::close(connection);
    });
  }
  ~OneAnswer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  OneAnswer(const OneAnswer&) = delete;
  OneAnswer& operator=(const OneAnswer&) = delete;

  std::string url;

 private:
  std::string answer_;
  int listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::thread thread_;
};

/// Takes nothing of the first delivery, and stops at the second.
struct LateStop final : HttpHandler {
  int deliveries = 0;
  std::optional<HttpEnd> end;
  Take body(const HttpHead&, std::span<const std::byte>) override {
    return ++deliveries == 1 ? Take::later : Take::stop;
  }
  void ended(const HttpHead&, HttpEnd how) override { end = std::move(how); }
};

}  // namespace

TEST_CASE("transfer_stopped_when_resumed_is_not_complete") {
  const OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nbytes");
  const auto client = HttpClient::create({}).value();
  LateStop handler;
  HttpRequest request;
  request.url = server.url;
  REQUIRE(client->start(request, handler));
  for (int i = 0; i < 200 && !handler.end; ++i) {
    REQUIRE(client->wait(std::chrono::milliseconds(50)));
    if (handler.deliveries == 1) client->resume(handler);
  }
  REQUIRE(handler.end);
  CHECK(handler.end->kind == HttpEnd::Kind::broken);
}
