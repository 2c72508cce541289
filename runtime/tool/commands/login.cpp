#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "image/config.hpp"
#include "image/reference.hpp"
#include "tool/command.hpp"
#include "tool/credentials_file.hpp"
#include "tool/places.hpp"

namespace spc {
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

Result<std::string> registry_of(const Arguments& arguments) {
  const auto places = Places::find();
  const auto config = SPC_TRY(read_config(places ? places->config : SPC_CONFIG_FILE));
  return arguments.words.empty() ? parse_registry(config.default_registry) : parse_registry(arguments.words[0]);
}

}  // namespace

Result<int> run_login(const Arguments& arguments) {
  const auto registry = SPC_TRY(registry_of(arguments));
  std::string user = arguments.value("username");
  if (user.empty()) user = SPC_TRY(ask("user name: ", false));
  const auto password = SPC_TRY(ask("password or token: ", true));
  if (user.empty() || password.empty()) {
    return Error(ErrorKind::invalid, "login: user name and password are needed")
        .hint("--username=USER, and the password on standard input");
  }
  if (user.find(':') != std::string::npos) return Error(ErrorKind::invalid, "login: a user name has no ':'");
  const auto file = SPC_TRY(store_credentials(registry, user, password));
  std::printf("stored for %s in %s\n", printable(registry).c_str(), printable(file).c_str());
  return 0;
}

Result<int> run_logout(const Arguments& arguments) {
  const auto registry = SPC_TRY(registry_of(arguments));
  const auto file = SPC_TRY(remove_credentials(registry));
  std::printf("%s %s\n", file.empty() ? "nothing was stored for" : "removed the credentials for", printable(registry).c_str());
  return 0;
}

}  // namespace spc
