// Import's errors for the agent's answers.

#include "image/pull/agent_link.hpp"

#include <string>

#include "base/socket.hpp"
#include "protocol/import.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/image/helpers.hpp"

using namespace spc;
using namespace spc::test;

namespace {

/// Returns the error of a record whose publisher gives this answer.
std::string answer_to_record(const Error& error) {
  const auto [agent, import] = std::move(socket_pair()).value();
  const auto [publisher, object] = std::move(socket_pair()).value();
  const int passed[] = {object.get()};
  REQUIRE(send_struct(
      agent.get(), ImportMessage{.kind = ImportMessageKind::object_socket, .digest = {}}, passed));
  const ImportMessage refused{
      .kind = ImportMessageKind::refused, .digest = {}, .error = WireError(error)};
  REQUIRE(send_struct(publisher.get(), refused));
  AgentLink link(import.get());
  const auto published = link.publish_record(digest_of('a'), "bytes");
  return published ? "" : published.error().message();
}

}  // namespace

TEST_CASE("refused_record_is_an_error_with_a_cure") {
  const std::string step = "image \"sha256:" + kHex + "\": write into the store: ";
  CHECK(answer_to_record(Error(ErrorKind::corrupt, "its record does not match its manifest")) ==
        step +
            "its record does not match its manifest (hint: pull it again; if this returns, have "
            "the administrator check the node)");
  CHECK(answer_to_record(Error(ErrorKind::unavailable, "the verifier failed").hint("see --mem")) ==
        step + "the verifier failed (hint: see --mem)");
}
