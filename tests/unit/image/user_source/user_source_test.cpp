#include "registry/client.hpp"
#include "unit/catch2_compat.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "base/file.hpp"
#include "base/socket.hpp"
#include "unit/image/helpers.hpp"

using namespace spc;
using namespace spc::test;

namespace {

/// Acts as the user's process for one question.
class Peer {
 public:
  explicit Peer(std::vector<UserSourceMessage> answers, int descriptor = -1)
      : pair_(socket_pair().value()) {
    thread_ = std::thread([this, answers = std::move(answers), descriptor] {
      if (!receive_struct(pair_.second.get(), question)) return;
      for (const auto& answer : answers) {
        const int descriptors[] = {descriptor};
        const bool with = descriptor >= 0 && &answer == &answers.back();
        static_cast<void>(
            send_struct(pair_.second.get(), answer, std::span(descriptors, with ? 1 : 0)));
      }
      pair_.second.reset();
    });
  }
  ~Peer() {
    pair_.first.reset();
    thread_.join();
  }
  int socket() const { return pair_.first.get(); }
  UserSourceMessage question;

 private:
  std::pair<UniqueFd, UniqueFd> pair_;
  std::thread thread_;
};

UserSourceMessage message(UserSourceKind kind, const char* text = "") {
  UserSourceMessage out;
  out.kind = kind;
  out.text.set(text);
  return out;
}

}  // namespace

TEST_CASE("user_source_credentials_survive_sealed_file") {
  RegistrySecret secret;
  secret.username = "$oauthtoken";
  secret.password = SecretText("p=w d");
  secret.source = "/home/a/.docker/config.json";
  const UniqueFd file = secret.to_file().value();
  Peer peer({message(UserSourceKind::progress, "waiting\x1b[31m"), message(UserSourceKind::secret)},
            file.get());
  Lines log;
  const auto got = UserSourceLink(peer.socket(), log).credentials("reg:5000", "bob").value();
  REQUIRE(got);
  CHECK(got->username == "$oauthtoken");
  CHECK(got->password.text() == "p=w d");
  CHECK(got->source == secret.source);
  CHECK(peer.question.text.view() == "reg:5000");
  CHECK(peer.question.user.view() == "bob");
  REQUIRE(log.all.size() == 1);
  CHECK(log.all[0].find('\x1b') == std::string::npos);
}

TEST_CASE("user_source_invalid_answer_is_refused") {
  Lines log;
  {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    const UniqueFd reader(ends[0]);
    const UniqueFd writer(ends[1]);
    Peer peer({message(UserSourceKind::secret)}, reader.get());
    CHECK(
        UserSourceLink(peer.socket(), log).credentials("r", "").error().message().find("sealed") !=
        std::string::npos);
  }
  for (const std::string& bytes : {std::string("password=a\nb\0", 13), std::string("password=a"),
                                   std::string("username=a\0", 11), std::string("odd=a\0", 6),
                                   std::string("x\0password=a\0", 13), std::string(70'000, 'x')}) {
    const UniqueFd file = sealed_memory_file("test", bytes).value();
    Peer peer({message(UserSourceKind::secret)}, file.get());
    CHECK_FALSE(UserSourceLink(peer.socket(), log).credentials("r", ""));
  }
  {
    Peer peer({message(UserSourceKind::secret)});
    CHECK_FALSE(UserSourceLink(peer.socket(), log).credentials("r", ""));
  }
  {
    Peer peer({message(UserSourceKind::file)});
    CHECK_FALSE(UserSourceLink(peer.socket(), log).blob(Digest{}));
  }
  {
    UserSourceMessage failed = message(UserSourceKind::failed, "no \x1b such file");
    std::memset(static_cast<void*>(&failed.error), 77, sizeof failed.error);
    Peer peer({failed});
    const auto answer = UserSourceLink(peer.socket(), log).document();
    REQUIRE_FALSE(answer);
    CHECK(answer.error().kind() == ErrorKind::internal);
    CHECK(answer.error().message().find('\x1b') == std::string::npos);
  }
}

TEST_CASE("user_source_absent_gives_none_silent_gives_error") {
  Lines log;
  CHECK_FALSE(UserSourceLink(-1, log).connected());
  CHECK_FALSE(UserSourceLink(-1, log).credentials("r", "").value());
  CHECK_FALSE(UserSourceLink(STDIN_FILENO, log).document().value());
  auto [ours, theirs] = socket_pair().value();
  UserSourceLink link(ours.get(), log, std::chrono::seconds(0));
  CHECK(link.credentials("r", "").error().message().find("no response") != std::string::npos);
  theirs.reset();
  CHECK_FALSE(link.credentials("r", ""));  // it left the first question unread
  auto [left, gone] = socket_pair().value();
  gone.reset();
  CHECK_FALSE(UserSourceLink(left.get(), log).credentials("r", "").value());
  auto [asks, leaves] = socket_pair().value();
  std::thread leaving([end = std::move(leaves)]() mutable {
    pollfd unread{end.get(), POLLIN, 0};
    ::poll(&unread, 1, 10'000);
    end.reset();  // with the question unread
  });
  CHECK_FALSE(UserSourceLink(asks.get(), log).credentials("r", "").value());
  leaving.join();
  Peer dies(std::vector<UserSourceMessage>{});
  CHECK(UserSourceLink(dies.socket(), log).credentials("r", "").error().message().find("closed") !=
        std::string::npos);
}
