#include "share/relay.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "base/hash.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

constexpr std::uint64_t kSize = 24 << 20;  // more than socket buffers hold

/// A relay of this process with one blob. Time advances on request only.
struct OneRelay {
  SharedSpoolIndex index = SharedSpoolIndex::create().value();
  UniqueFd spool{::memfd_create("spool", MFD_CLOEXEC)};
  UniqueFd listener{::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  std::uint16_t port = 0;
  Digest blob = Sha256::of("a blob");
  std::unique_ptr<Relay> relay;

  explicit OneRelay(const RelayLimits& limits = {}) {
    sockaddr_in here{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof here;
    REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&here), size) == 0);
    REQUIRE(::listen(listener.get(), 16) == 0);
    REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&here), &size) == 0);
    port = ntohs(here.sin_port);
    index->key.fill(0x5a);
    index->fanout = 2;
    relay = Relay::create(*index, listener.get(), spool.get(), limits).value();
  }

  void add(std::uint64_t have) {
    auto& entry = index->entries[0];
    entry.blob = blob;
    entry.size = kSize;
    index->count = 1;
    grow(have);
  }
  void grow(std::uint64_t have) {
    REQUIRE(::ftruncate(spool.get(), static_cast<off_t>(have)) == 0);
    index->entries[0].have = have;
  }
  void run(std::chrono::milliseconds time) {
    for (const auto end = std::chrono::steady_clock::now() + time;
         std::chrono::steady_clock::now() < end;) {
      relay->wait(std::chrono::milliseconds(5), {});
      relay->work();
    }
  }
};

/// A client of the relay.
struct Asking {
  OneRelay& server;
  UniqueFd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::string said;
  bool is_over = false;

  Asking(OneRelay& of, const std::string& path, int node = 1, const std::string& more = "")
      : server(of) {
    sockaddr_in there{
        .sin_family = AF_INET, .sin_port = htons(of.port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    REQUIRE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&there), sizeof there) == 0);
    std::string key;
    for (int i = 0; i < 32; ++i) key += "5a";
    const std::string text = "GET " + path + "?node=" + std::to_string(node) +
                             " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key + "\r\n" +
                             more + "\r\n";
    REQUIRE(::send(socket.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  }
  static std::string of_blob(const OneRelay& relay) { return "/v2/x/blobs/" + relay.blob.str(); }

  /// Runs the relay until this number of bytes has arrived, or none arrive for a moment.
  std::string& read(std::size_t wanted) {
    std::string part(1 << 20, '\0');
    for (int quiet = 0; quiet < 20 && said.size() < wanted && !is_over;) {
      server.run(std::chrono::milliseconds(5));
      const ssize_t got = ::recv(socket.get(), part.data(), part.size(), MSG_DONTWAIT);
      if (got > 0) said.append(part.data(), static_cast<std::size_t>(got));
      is_over = got == 0;
      quiet = got > 0 ? 0 : quiet + 1;
    }
    return said;
  }
  [[nodiscard]] std::size_t body() const { return said.size() - (said.find("\r\n\r\n") + 4); }
  bool is(const std::string& status) { return read(12).starts_with("HTTP/1.1 " + status); }
};

}  // namespace

TEST_CASE("relay_reader_ahead_of_writer_waits") {
  OneRelay server;
  server.add(1 << 20);
  Asking reader(server, Asking::of_blob(server));
  reader.read(kSize);
  CHECK(reader.is("200"));
  CHECK(reader.body() == 1 << 20);
  server.grow(3 << 20);
  reader.read(kSize);
  CHECK(reader.body() == 3 << 20);
  CHECK(!reader.is_over);
  server.grow(kSize);
  server.index->entries[0].state = BlobState::complete;
  reader.read(kSize + 1000);
  CHECK(reader.body() == kSize);
}

TEST_CASE("relay_blob_not_yet_posted_is_waited_for") {
  OneRelay server;
  Asking early(server, Asking::of_blob(server));
  CHECK(early.read(12).empty());
  server.add(kSize);
  CHECK(early.is("200"));
  Asking never(server, "/v2/x/blobs/" + Sha256::of("another").str());
  CHECK(never.read(12).empty());
  server.index->is_closed = 1;
  CHECK(never.is("404"));
}

TEST_CASE("relay_blob_of_dead_writer_is_cut_off") {
  OneRelay server;
  server.add(1 << 20);
  Asking reader(server, Asking::of_blob(server));
  reader.read(kSize);
  server.relay->end_of_import();
  reader.read(kSize);
  CHECK(reader.is_over);
  CHECK(reader.body() == 1 << 20);
  Asking after(server, Asking::of_blob(server));
  CHECK(after.is("404"));
  server.grow(kSize);
  Asking complete(server, Asking::of_blob(server), 1, "Range: bytes=25000000-\r\n");
  CHECK(complete.is("206"));
  complete.read(complete.said.find("\r\n\r\n") + 4 + kSize - 25000000);
  CHECK(complete.body() == kSize - 25000000);
}

TEST_CASE("relay_wrong_blob_is_cut_off") {
  OneRelay server;
  server.add(1 << 20);
  Asking reader(server, Asking::of_blob(server));
  reader.read(kSize);
  server.index->entries[0].state = BlobState::gone;
  reader.read(kSize);
  CHECK(reader.is_over);
}

TEST_CASE("relay_stalled_reader_is_cut_off") {
  OneRelay server({.stalled_seconds = 1});
  server.add(kSize);
  server.index->fanout = 0;  // two spare places
  Asking first(server, Asking::of_blob(server), 1);
  Asking second(server, Asking::of_blob(server), 2);
  server.run(std::chrono::milliseconds(50));
  Asking third(server, Asking::of_blob(server), 3);
  CHECK(third.is("503"));
  server.run(std::chrono::milliseconds(2500));
  Asking again(server, Asking::of_blob(server), 3);
  CHECK(again.is("200"));
}

TEST_CASE("relay_reader_that_left_frees_its_slot") {
  OneRelay server({.connections = 3});
  server.add(1 << 20);
  for (const std::string& path :
       {Asking::of_blob(server), "/v2/x/blobs/" + Sha256::of("another").str()}) {
    for (int i = 0; i < 6; ++i) {
      Asking waiting(server, path);
      waiting.read(kSize);
      CHECK(!waiting.is_over);
    }
  }
  CHECK(Asking(server, "/alive").is("200"));
}

TEST_CASE("relay_garbage_request_is_harmless") {
  OneRelay server;
  server.add(kSize);
  for (const char* text : {"\r\n\r\n", "GET", "\x16\x03\x01", "GET / HTTP/9.9\r\n\r\n",
                           "GET /v2/x/blobs/sha256:zz HTTP/1.1\r\n\r\n"}) {
    Asking one(server, Asking::of_blob(server));
    UniqueFd raw(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in there{.sin_family = AF_INET,
                      .sin_port = htons(server.port),
                      .sin_addr = {htonl(INADDR_LOOPBACK)}};
    REQUIRE(::connect(raw.get(), reinterpret_cast<sockaddr*>(&there), sizeof there) == 0);
    [[maybe_unused]] const ssize_t sent =
        ::send(raw.get(), text, std::string_view(text).size(), MSG_NOSIGNAL);
    CHECK(one.is("200"));
  }
  server.run(std::chrono::milliseconds(50));
  CHECK(Asking(server, "/alive").is("200"));
}

TEST_CASE("relay_index_is_read_only_for_others") {
  const SharedSpoolIndex index = SharedSpoolIndex::create().value();
  CHECK(::mmap(nullptr, sizeof(SpoolIndex), PROT_READ | PROT_WRITE, MAP_SHARED, index.file(), 0) ==
        MAP_FAILED);
  CHECK(SharedSpoolIndex::open(index.file()));
}

TEST_CASE("relay_ends_after_import") {
  OneRelay server(
      {.idle = std::chrono::milliseconds(300), .after_import = std::chrono::milliseconds(1500)});
  server.add(kSize);
  server.run(std::chrono::milliseconds(400));
  CHECK(!server.relay->is_over());  // import is running
  server.relay->end_of_import();
  CHECK(server.relay->is_over());                     // there was no request
  const Asking one(server, Asking::of_blob(server));  // the client reads no bytes
  server.run(std::chrono::milliseconds(600));
  CHECK(!server.relay->is_over());
  server.run(std::chrono::milliseconds(1000));
  CHECK(server.relay->is_over());
}
