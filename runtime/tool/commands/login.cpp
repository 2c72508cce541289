#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "image/config/config.hpp"
#include "image/credentials/credentials_store.hpp"
#include "image/reference/reference.hpp"
#include "image/registry/login_check.hpp"
#include "image/registry/registry_session.hpp"
#include "tool/command.hpp"
#include "tool/surroundings/places.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

/// Switches the echo of the terminal off for as long as it lives.
class NoEcho {
 public:
  NoEcho() {
    if (::tcgetattr(STDIN_FILENO, &before_) != 0) return;
    termios silent = before_;
    silent.c_lflag &= static_cast<tcflag_t>(~ECHO);
    changed_ = ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &silent) == 0;
  }
  NoEcho(const NoEcho&) = delete;
  NoEcho& operator=(const NoEcho&) = delete;
  ~NoEcho() {
    if (changed_) ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
  }

 private:
  termios before_{};
  bool changed_ = false;
};

/// One line of stdin without its end, read byte by byte: what follows is not ours.
Result<std::string> read_line() {
  std::string line;
  for (char c = 0; line.size() < 64 << 10;) {
    const ssize_t got = ::read(STDIN_FILENO, &c, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, "read from standard input");
    if (got == 0 || c == '\n') break;
    line += c;
  }
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

Result<std::string> ask(const char* prompt, bool silent) {
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  if (terminal) std::fputs(prompt, stderr);
  if (!terminal || !silent) return read_line();
  const NoEcho no_echo;
  auto line = read_line();
  std::fputs("\n", stderr);
  return line;
}

struct NamedRegistry {
  Config config;
  std::string registry;
};

Result<NamedRegistry> registry_named_in(const Arguments& arguments) {
  const auto places = Places::find();
  NamedRegistry named{.config = SPC_TRY(read_config(places ? places->config : SPC_CONFIG_FILE)),
                      .registry = {}};
  named.registry = SPC_TRY(
      parse_registry(arguments.words.empty() ? named.config.default_registry : arguments.words[0]));
  return named;
}

Result<RegistrySecret> ask_for_secret(const Arguments& arguments) {
  RegistrySecret secret;
  secret.source = "input";
  secret.username = arguments.value("username");
  if (secret.username.empty()) secret.username = SPC_TRY(ask("user name: ", false));
  secret.password = SecretText(SPC_TRY(ask("password or token: ", true)));
  if (secret.username.empty() || secret.password.empty()) {
    return Error(ErrorKind::invalid, "login: user name and password required")
        .hint("use --username=USER, and pass the password on standard input");
  }
  if (secret.username.find(':') != std::string::npos)
    return Error(ErrorKind::invalid, "login: a user name must not contain ':'");
  return secret;
}

Result<LoginCheck> try_at_registry(const NamedRegistry& named, const RegistrySecret& secret,
                                   Log& log) {
  const auto http =
      SPC_TRY(HttpClient::create({.stall = std::chrono::seconds(named.config.stall_timeout),
                                  .proxies = proxies_of_user(named.config)}));
  return check_login(*http, log, named.registry, named.config, secret);
}

}  // namespace

Result<int> run_login(const Arguments& arguments) {
  const NamedRegistry named = SPC_TRY(registry_named_in(arguments));
  const RegistrySecret secret = SPC_TRY(ask_for_secret(arguments));
  PullDisplay log(named.registry, true);
  const char* remark = "";
  if (!arguments.has("no-check")) {
    const auto check = SPC_TRY_DURING("login", try_at_registry(named, secret, log));
    if (check == LoginCheck::not_needed)
      remark = "; not checked: the registry does not require a login";
  }
  const auto place =
      SPC_TRY(store_credentials(CredentialPlaces::of_user(), named.registry, secret, log));
  std::printf("stored for %s in %s%s\n", printable(named.registry).c_str(),
              printable(place).c_str(), remark);
  return 0;
}

Result<int> run_logout(const Arguments& arguments) {
  const NamedRegistry named = SPC_TRY(registry_named_in(arguments));
  PullDisplay log(named.registry, true);
  const auto places = SPC_TRY(remove_credentials(CredentialPlaces::of_user(), named.registry, log));
  if (places.empty())
    std::printf("no credentials stored for %s\n", printable(named.registry).c_str());
  for (const std::string& place : places) {
    std::printf("removed the credentials for %s from %s\n", printable(named.registry).c_str(),
                printable(place).c_str());
  }
  return 0;
}

}  // namespace spc::tool
