#include "base/digest.hpp"
#include "base/file.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "protocol/wire_error.hpp"
#include "unit/catch2_compat.hpp"

#include <fcntl.h>

#include <array>

using namespace spc;

TEST_CASE("error_message_is_step_action_object_reason_hint") {
  auto error = Error::from_errno(ENOENT, "mount \"/data\"")
                   .during("container")
                   .hint("create it")
                   .hint("later hints lose");
  CHECK(error.message() ==
        "container: mount \"/data\": no such file or directory (hint: create it)");
  CHECK(error.kind() == ErrorKind::not_found);
  CHECK(error.sys_errno() == ENOENT);
}

TEST_CASE("quoted_text_escapes_control_characters") {
  CHECK(in_quotes("a\x1b[2Jb\nc\"d") == "\"a\\x1b[2Jb\\nc\\\"d\"");
  CHECK(in_quotes(std::string(1'000'000, 'x')).size() < 320);
}

TEST_CASE("error_survives_wire_format") {
  const auto error = Error::from_errno(ENOSPC, "write \"x\"").during("import");
  const Error same = WireError(error).error();
  CHECK(same.message() == error.message());
  CHECK(same.kind() == error.kind());
  CHECK(same.sys_errno() == ENOSPC);
  CHECK(WireError(error).is_set());
  CHECK_FALSE(WireError().is_set());
  CHECK_FALSE(same.is_of_pull());
  const auto of_pull = Error(ErrorKind::refused, "no").during_pull("a");
  CHECK(of_pull.message() == "pull image \"a\": no");
  CHECK(WireError(of_pull).error().is_of_pull());
  CHECK(WireError(of_pull).unread().is_of_pull());
}

TEST_CASE("text_of_message_is_truncated_in_the_middle") {
  Text<16> text;
  text.set("fifteen letters");
  CHECK(text.view() == "fifteen letters");
  text.set("beginning and the end");
  CHECK(text.view() == "begin ... e end");
  text.set("");
  CHECK(text.empty());
  std::memset(static_cast<void*>(&text), 'x', sizeof text);
  CHECK(text.view() == std::string(16, 'x'));
}

TEST_CASE("wire_error_with_unknown_kind_or_control_is_sanitized") {
  WireError error;
  std::memset(static_cast<void*>(&error), 27, sizeof error);
  CHECK(error.error().kind() == ErrorKind::internal);
  CHECK(error.error().message().find('\x1b') == std::string::npos);
}

// outcome 66 refused: digests of every wrong form
TEST_CASE("digest_is_sha256_with_64_lower_case_digits") {
  const std::string hex(64, 'a');
  CHECK(Digest::parse("sha256:" + hex).value().hex() == hex);
  CHECK_FALSE(Digest::parse("sha256:" + std::string(63, 'a')));
  CHECK_FALSE(Digest::parse("sha256:" + std::string(64, 'A')));
  CHECK_FALSE(Digest::parse("sha256:../" + std::string(61, 'a')));
  CHECK_FALSE(Digest::parse("md5:" + hex));
  CHECK_FALSE(Digest::parse(""));
}

TEST_CASE("descriptors_travel_with_message_close_on_exec") {
  auto pair = socket_pair().value();
  auto memory = sealed_memory_file("test", "hello").value();
  const int sent = 42;
  const int fds[] = {memory.get()};
  REQUIRE(send_struct(pair.first.get(), sent, fds));
  int got = 0;
  auto received = receive_struct(pair.second.get(), got, 1);
  REQUIRE(received);
  CHECK(got == 42);
  REQUIRE(received->size() == 1);
  CHECK((::fcntl(received->front().get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(read_file(received->front().get(), 100).value() == "hello");
  pair.first.reset();
  CHECK(receive_struct(pair.second.get(), got).error().kind() == ErrorKind::unavailable);
}

TEST_CASE("descriptors_beyond_expected_are_closed") {
  auto pair = socket_pair().value();
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const auto all_are_closed = [&] {
    char byte = 0;
    return ::read(reading.get(), &byte, 1) == 0;  // the stream ends when the last writer has closed
  };
  const int fds[] = {writing.get(), writing.get(), writing.get()};
  for (const auto most : std::to_array<std::size_t>({0, 1, 2})) {
    REQUIRE(send_struct(pair.first.get(), 1, fds));
    int got = 0;
    const int lowest = ::dup(0);
    ::close(lowest);
    CHECK_FALSE(receive_struct(pair.second.get(), got, most));
    const int after = ::dup(0);
    ::close(after);
    CHECK(after == lowest);
  }
  REQUIRE(send_struct(pair.first.get(), 1, fds));
  writing.reset();
  int got = 0;
  CHECK(receive_struct(pair.second.get(), got, 3).value().size() == 3);
  CHECK(all_are_closed());
}

TEST_CASE("memory_file_sealed_cannot_be_changed") {
  auto memory = sealed_memory_file("test", "hello").value();
  CHECK(::pwrite(memory.get(), "x", 1, 0) == -1);
  CHECK(read_file(memory.get(), 4).error().kind() == ErrorKind::invalid);
}

TEST_CASE("records_survive_serialization_in_order") {
  std::string text;
  add_record(text, "env", "A=b=c");
  add_record(text, "env", "");
  add_record(text, "workdir", "/x\ny");
  Records records(text);
  std::string seen;
  while (records.next())
    seen += std::string(records.key()) + " is " + std::string(records.value()) + ";";
  CHECK(seen == "env is A=b=c;env is ;workdir is /x\ny;");
  CHECK_FALSE(records.damaged());
}

TEST_CASE("records_without_equals_sign_are_skipped_and_counted") {
  using namespace std::string_view_literals;
  Records records("odd\0a=b\0"sv);
  REQUIRE(records.next());
  CHECK(records.key() == "a");
  CHECK_FALSE(records.next());
  CHECK(records.damaged());
  Records cut("a=b\0c=d"sv);
  while (cut.next()) {
  }
  CHECK(cut.value() == "d");
  CHECK(cut.damaged());
  CHECK_FALSE(Records("").next());
}

TEST_CASE("texts_are_trimmed_split_and_joined") {
  CHECK(trimmed(" \ta b\r\n") == "a b");
  CHECK(trimmed(" \n").empty());
  CHECK(split("a::b", ':') == std::vector<std::string_view>{"a", "", "b"});
  CHECK(split("", ':') == std::vector<std::string_view>{""});
  CHECK(joined(split("a,b,,c", ','), "; ") == "a; b; ; c");
  CHECK(joined(std::vector<std::string>{"", "x"}, " ") == " x");
  CHECK(joined(std::vector<const char*>{}, " ").empty());
}

TEST_CASE("utf8_sequence_ends_at_invalid_byte") {
  CHECK(utf8_bytes("") == 0);
  CHECK(utf8_bytes(std::string_view("a\0\xc3\xa9\xe2\x82\xac\xf0\x9f\x9a\x80", 11)) == 11);
  for (const std::string_view bad :
       {"\x80", "\xc3", "\xc0\x80", "\xe2\x82", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
        "\xf0\x80\x80\x80", "\xff", "\xf5\x80\x80\x80"}) {
    CHECK(utf8_bytes("ok " + std::string(bad)) == 3);
  }
}
