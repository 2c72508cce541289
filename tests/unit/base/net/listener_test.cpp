#include "base/listener.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>

#include "unit/catch2_compat.hpp"

using namespace spc;

TEST_CASE("port_range_is_two_unprivileged_numbers") {
  CHECK(PortRange::parse("") == PortRange());
  CHECK(PortRange::parse("1024-65535") == PortRange{1024, 65535});
  CHECK(PortRange::parse("7000-7000") == PortRange{7000, 7000});
  for (const char* text : {"-", "7000", "7000-", "-7000", "7001-7000", "1023-7000", "7000-65536",
                           "7000-7001 ", "+7000-7001", "0-0"}) {
    INFO(text);
    CHECK(!PortRange::parse(text));
  }
}

TEST_CASE("listener_binds_port_of_its_range") {
  const auto any = Listener::open({});
  REQUIRE(any);
  CHECK(any->port >= 1024);
  const auto taken = Listener::open({any->port, any->port});
  REQUIRE(!taken);
  CHECK(taken.error().message() == "listen for other nodes: no port of " +
                                       std::to_string(any->port) + "-" + std::to_string(any->port) +
                                       " is free");
}

TEST_CASE("listener_binds_given_address_only") {
  const ListenAddress one{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  const auto here = Listener::open({}, one);
  REQUIRE(here);
  const auto reaches = [&](const char* address) {
    const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{
        .sin_family = AF_INET, .sin_port = htons(here->port), .sin_addr = {}, .sin_zero = {}};
    ::inet_pton(AF_INET, address, &to.sin_addr);
    return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
  };
  CHECK(reaches("127.0.0.1"));
  CHECK(!reaches("127.0.0.2"));
  CHECK(!Listener::open({}, ListenAddress{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1}));
}
