// Requests to a relay, over connections of any peer that reaches its port.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "base/hash.hpp"
#include "lib/memory_file.hpp"
#include "lib/parts.hpp"
#include "share/relay.hpp"

using namespace spc;
using namespace spc::fuzz;

namespace {

/// A relay of this process with one complete blob and the first 100 bytes of another.
struct OneRelay {
  std::string content = std::string(3000, 'a');
  SharedSpoolIndex index = SharedSpoolIndex::create().value();
  UniqueFd spool;
  UniqueFd listener{::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC,
                             0)};  // one port per input would use too many ports
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};  // the kernel assigns the name
  socklen_t address_size = sizeof(sa_family_t);
  Digest blob = Sha256::of("blob"), more = Sha256::of("more");
  std::string key;
  std::unique_ptr<Relay> relay;

  OneRelay() {
    for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>('a' + i % 23);
    spool = memory_file(content);
    must(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), address_size) == 0 &&
             ::listen(listener.get(), 64) == 0,
         "there is a socket");
    address_size = sizeof address;
    must(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &address_size) == 0,
         "it has a name");
    index->key.fill(0x5a);
    for (std::size_t i = 0; i < index->key.size(); ++i) key += "5a";
    index->fanout = 2;
    index->entries[0].blob = blob;
    index->entries[0].size = index->entries[0].have = 2000;
    index->entries[0].state = BlobState::complete;
    index->entries[1].blob = more;
    index->entries[1].size = 1000;
    index->entries[1].offset = 2000;
    index->entries[1].have = 100;
    index->count = 2;
    relay = Relay::create(
                *index, listener.get(), spool.get(),
                {.connections = 16, .stalled_seconds = 5, .idle = std::chrono::milliseconds(0)})
                .value();
  }
  void work(int turns = 3) const {
    for (int i = 0; i < turns; ++i) relay->work();
  }
};

class Asking {
 public:
  explicit Asking(OneRelay& server)
      : server_(server), socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    must(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&server.address),
                   server.address_size) == 0,
         "anybody can connect");
  }
  void send(std::string_view text) const {
    [[maybe_unused]] const ssize_t sent =
        ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    server_.work();
  }
  void end_of_questions() const { ::shutdown(socket_.get(), SHUT_WR); }
  /// Returns the bytes received so far.
  const std::string& read() {
    std::array<char, 4096> part;
    for (int quiet = 0; quiet < 2;) {
      server_.work(2);
      const ssize_t got = ::recv(socket_.get(), part.data(), part.size(), MSG_DONTWAIT);
      if (got > 0) said_.append(part.data(), static_cast<std::size_t>(got));
      quiet = got > 0 ? 0 : quiet + 1;
    }
    return said_;
  }

 private:
  OneRelay& server_;
  UniqueFd socket_;
  std::string said_;
};

std::uint64_t number_behind(std::string_view head, std::string_view name) {
  const std::size_t at = head.find(name);
  std::uint64_t number = 0;
  must(at != std::string_view::npos, "an answer has a length");
  std::from_chars(head.data() + at + name.size(), head.data() + head.size(), number);
  return number;
}

/// Returns whether this is a relay's progress: three numbers.
bool is_pace(std::string_view text) {
  return text.size() <= 64 && text.find_first_not_of("0123456789 ") == std::string_view::npos &&
         std::count(text.begin(), text.end(), ' ') == 2;
}

/// Checks all non-empty answers of one connection. Bodies are the spooled bytes from the offset
/// named in the answer.
void check(std::string_view said, const OneRelay& server, bool may_have_key) {
  constexpr std::string_view kGood = "HTTP/1.1 20";
  must(said.empty() || said.starts_with("HTTP/1."), "an answer is one of HTTP");
  for (std::size_t at = said.find(kGood); at != std::string_view::npos; at = said.find(kGood)) {
    said.remove_prefix(at);
    const std::size_t end = std::min(said.find("\r\n\r\n"), said.size());
    const std::string_view head = said.substr(0, end);
    said.remove_prefix(std::min(end + 4, said.size()));
    must(may_have_key, "nobody gets anything without the key");
    const std::uint64_t length = number_behind(head, "Content-Length: ");
    if (said.starts_with("HTTP/1.") || is_pace(said.substr(0, length)))
      continue;  // answers of HEAD and /alive
    const std::uint64_t from =
        head[kGood.size()] == '6' ? number_behind(head, "Content-Range: bytes ") : 0;
    must(from + length == 2000 || from + length == 1000, "what is sent ends with the blob");
    const std::string_view all = from + length == 2000
                                     ? std::string_view(server.content).substr(0, 2000)
                                     : std::string_view(server.content).substr(2000, 100);
    const std::string_view body = said.substr(0, static_cast<std::size_t>(length));
    must(from <= all.size() ? all.substr(static_cast<std::size_t>(from)).starts_with(body)
                            : body.empty(),
         "what is sent is what the spool has");
    said.remove_prefix(body.size());
  }
}

}  // namespace

// First byte: the number of connections that send the parts, one after the other, and how they end.
// KEY, BLOB and MORE stand for values that the step knows.
FUZZ_TARGET(relay_requests) {
  if (size == 0) return 0;
  OneRelay server;
  std::string text(text_of(data + 1, size - 1));
  const bool may_have_key = text.find("KEY") != std::string::npos ||
                            text.find(server.key.substr(0, 8)) != std::string::npos;
  text = replaced(replaced(replaced(text, "KEY", server.key), "BLOB", server.blob.str()), "MORE",
                  server.more.str());
  {
    std::vector<Asking> all;
    for (int i = 0; i <= data[0] % 4; ++i) all.emplace_back(server);
    for (std::string_view rest = text; !rest.empty();) {
      const auto part = next_part(rest);
      for (const Asking& one : all) one.send(part);
    }
    for (Asking& one : all) {
      if ((data[0] & 4) != 0) one.end_of_questions();
      if ((data[0] & 8) == 0) check(one.read(), server, may_have_key);
    }
    Asking honest(server);
    honest.send("GET /alive HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + server.key +
                "\r\n\r\n");
    must(honest.read().starts_with("HTTP/1.1 200"), "whoever has the key is answered all the same");
  }
  server.relay->end_of_import();
  server.work(6);
  must(server.relay->is_over(), "no request is left when all have gone");
  return 0;
}
