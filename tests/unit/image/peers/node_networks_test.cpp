#include "share/node_networks.hpp"

#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

PeerAddress at(const std::string& ip, std::uint16_t port) {
  return {.ip = Network::parse(ip + (ip.find(':') == std::string::npos ? "/32" : "/128")).address,
          .port = port};
}

}  // namespace

TEST_CASE("network_contains_addresses_with_its_prefix") {
  const Network ten = Network::parse("10.20.0.0/15");
  CHECK(ten.has(at("10.20.1.2", 0).ip));
  CHECK(ten.has(at("10.21.255.255", 0).ip));
  CHECK(!ten.has(at("10.22.0.0", 0).ip));
  CHECK(!ten.has(at("fd00::1", 0).ip));
  CHECK(Network::parse("0.0.0.0/0").has(at("192.0.2.1", 0).ip));
  CHECK(!Network::parse("0.0.0.0/0").has(at("fd00::1", 0).ip));
  CHECK(Network::parse("fd00::/8").has(at("fdff::1", 0).ip));
}

TEST_CASE("node_networks_are_own_or_those_of_the_site") {
  const NodeNetworks node{.own = {Network::parse("192.0.2.7/24"), Network::parse("10.0.0.7/8")}};
  CHECK(node.may_ask(at("192.0.2.9", 40000), {}));
  CHECK(node.may_ask(at("10.9.9.9", 1024), {}));
  CHECK(!node.may_ask(at("198.51.100.1", 40000), {}));
  CHECK(!node.may_ask(at("192.0.2.9", 1023), {}));
  CHECK(node.may_ask(at("198.51.100.1", 40000), {Network::parse("198.51.100.0/24")}));
  CHECK(!node.may_ask(at("192.0.2.9", 40000), {Network::parse("198.51.100.0/24")}));
  CHECK(node.in({Network::parse("10.0.0.0/8")}).size() == 1);
}

TEST_CASE("node_networks_exclude_loopback_and_link_local") {
  const NodeNetworks node{.own = {Network::parse("192.0.2.7/24")}};
  const std::vector<Network> all{Network::parse("0.0.0.0/0"), Network::parse("::/0")};
  for (const char* ip : {"127.0.0.1", "127.9.9.9", "::1", "169.254.169.254", "fe80::1"})
    CHECK(!node.may_ask(at(ip, 40000), all));
  const NodeNetworks alone{.own = {Network::parse("127.0.0.1/8")}};
  CHECK(alone.may_ask(at("127.0.0.1", 40000), {}));
}

TEST_CASE("node_address_becomes_url") {
  CHECK(url_of(at("192.0.2.9", 40000)) == "http://192.0.2.9:40000");
  CHECK(url_of(at("fd00::1", 40000)) == "http://[fd00::1]:40000");
}
