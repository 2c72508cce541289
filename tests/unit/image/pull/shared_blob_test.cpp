#include "image/pull/shared_pull.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/hash.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

namespace fs = std::filesystem;

struct SharedDirectory {
  fs::path path;
  SharedStore store;

  SharedDirectory() : path(make()), store(SharedStore::open(path, 0).value()) {}
  ~SharedDirectory() { fs::remove_all(path); }
  SharedDirectory(const SharedDirectory&) = delete;
  SharedDirectory& operator=(const SharedDirectory&) = delete;

  static fs::path make() {
    char name[] = "/tmp/spc-shared-XXXXXX";
    return ::mkdtemp(name);
  }
  [[nodiscard]] fs::path blob(const Digest& digest) const {
    return path / "blobs/sha256" / digest.hex();
  }
  [[nodiscard]] bool is_at_rest() const {
    return fs::is_empty(path / "tmp") && fs::is_empty(path / "leases");
  }
};

struct Told final : Log {
  std::vector<std::string> warnings;
  void write(LogLevel level, std::string_view line) noexcept override {
    if (level == LogLevel::warning) warnings.emplace_back(line);
  }
};

/// A sink that accepts pieces, and returns "again" for every second one.
struct PulledBytes final : FetchSink {
  std::string bytes;
  bool is_late = false;
  HttpHandler::Take take(std::span<const std::byte> piece) override {
    is_late = !is_late;
    if (is_late) return HttpHandler::Take::later;
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return HttpHandler::Take::taken;
  }
};

/// A registry's stream, sent in pieces.
class SentBytes final : public BlobStream {
 public:
  SentBytes(const std::string& bytes, FetchSink& sink) : bytes_(bytes), sink_(sink) {}
  void start() override {}
  void advance() override {
    const std::string_view piece = std::string_view(bytes_).substr(at_, 300'000);
    if (!paused_ && !finished())
      paused_ = sink_.take(std::as_bytes(std::span(piece))) == HttpHandler::Take::later;
    if (!paused_) at_ += piece.size();
  }
  void resume() override { paused_ = false; }
  [[nodiscard]] bool finished() const override { return at_ == bytes_.size(); }
  Result<void> outcome() override { return {}; }
  [[nodiscard]] const char* whose_fault() const override { return "the registry's"; }

 private:
  const std::string& bytes_;
  FetchSink& sink_;
  std::size_t at_ = 0;
  bool paused_ = false;
};

/// A shared store and a blob of a registry.
struct SharedScene {
  std::string content;
  Descriptor blob;
  SharedDirectory shared;
  Told log;
  int fetches = 0;

  explicit SharedScene(std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) content += static_cast<char>(i * i >> 7);
    blob.digest = Sha256::of(content);
    blob.size = content.size();
  }
  [[nodiscard]] SharedPlace place() {
    return {.store = shared.store,
            .place = "registry/app",
            .log = log,
            .fetch = [this](FetchSink& sink) -> std::unique_ptr<BlobStream> {
              ++fetches;
              return std::make_unique<SentBytes>(content, sink);
            }};
  }
  /// Returns the bytes that the sink received.
  std::string pulled(const std::function<void(int)>& meanwhile = [](int) {}) {
    PulledBytes sink;
    SharedBlob stream(place(), blob, sink);
    stream.start();
    for (int turn = 0; turn < 1000 && !stream.finished(); ++turn) {
      meanwhile(turn);
      stream.advance();
      if (!stream.finished()) stream.resume();
    }
    REQUIRE(stream.finished());
    REQUIRE(stream.outcome());
    stream.proven(Sha256::of(sink.bytes) == blob.digest);
    return sink.bytes;
  }
};

}  // namespace

TEST_CASE("shared_blob_is_fetched_once_then_read") {
  SharedScene scene(5'000'000);
  CHECK((scene.pulled() == scene.content));
  CHECK(scene.fetches == 1);
  CHECK(scene.shared.is_at_rest());
  CHECK((scene.pulled() == scene.content));
  CHECK(scene.fetches == 1);
  CHECK(scene.log.warnings.empty());
}

TEST_CASE("shared_blob_removed_while_read_is_completed_by_registry") {
  SharedScene scene(5'000'000);
  (void)scene.pulled();
  const auto shrink = [&](int turn) {
    if (turn == 3) fs::resize_file(scene.shared.blob(scene.blob.digest), 1'000'000);
  };
  CHECK((scene.pulled(shrink) == scene.content));
  CHECK(scene.fetches == 2);
}

TEST_CASE("shared_blob_is_read_while_another_node_fetches") {
  SharedScene scene(5'000'000);
  PulledBytes first_sink, second_sink;
  SharedBlob first(scene.place(), scene.blob, first_sink),
      second(scene.place(), scene.blob, second_sink);
  first.start();
  second.start();
  std::size_t ahead = 0;
  const auto advance_second = [&] {
    second.advance();
    if (!second.finished()) second.resume();
  };
  while (!first.finished()) {
    first.advance();
    first.resume();
    ::usleep(30'000);
    advance_second();
    if (!first.finished()) ahead = std::max(ahead, second_sink.bytes.size());
  }
  CHECK(ahead > 1'000'000);
  CHECK(second.waits_for_node());
  first.proven(true);
  for (int turn = 0; turn < 300 && !second.finished(); ++turn) {
    ::usleep(10'000);
    advance_second();
  }
  CHECK((second_sink.bytes == scene.content));
  CHECK(scene.fetches == 1);
  second.proven(true);
}

TEST_CASE("shared_blob_fetch_continues_when_fetcher_dies") {
  SharedScene scene(5'000'000);
  PulledBytes first_sink, second_sink;
  std::optional<SharedBlob> first(std::in_place, scene.place(), scene.blob, first_sink);
  SharedBlob second(scene.place(), scene.blob, second_sink);
  first->start();
  second.start();
  for (int turn = 0; turn < 300 && !second.finished(); ++turn) {
    if (second_sink.bytes.size() > 300'000) first.reset();
    if (first && !first->finished()) {
      first->advance();
      if (turn % 8 == 0) first->resume();
    }
    ::usleep(20'000);
    second.advance();
    if (!second.finished()) second.resume();
  }
  CHECK(!first.has_value());
  REQUIRE(second.finished());
  CHECK((second_sink.bytes == scene.content));
  CHECK(scene.fetches == 2);
  second.proven(true);
  for (int turn = 0; turn < 500 && !scene.shared.is_at_rest(); ++turn) ::usleep(10'000);
  CHECK((scene.pulled() == scene.content));
  CHECK(scene.fetches == 2);
  CHECK(scene.log.warnings.empty());
}

TEST_CASE("shared_blob_of_other_repository_is_not_followed") {
  SharedScene scene(3'000'000);
  PulledBytes first_sink;
  SharedBlob first(scene.place(), scene.blob, first_sink);
  first.start();
  SharedPlace elsewhere = scene.place();
  elsewhere.place = "registry/other";
  PulledBytes second_sink;
  SharedBlob second(std::move(elsewhere), scene.blob, second_sink);
  second.start();
  CHECK(!second.waits_for_node());
  CHECK(scene.fetches == 2);
}

TEST_CASE("shared_blob_without_space_warns_and_pull_succeeds") {
  SharedScene scene(5'000'000);
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  const rlimit small{.rlim_cur = 1'000'000, .rlim_max = old.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string got = scene.pulled();
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &old) == 0);
  CHECK((got == scene.content));
  REQUIRE(scene.log.warnings.size() == 1);
  CHECK(scene.log.warnings[0].find("without it") != std::string::npos);
  CHECK(scene.shared.is_at_rest());
  CHECK(!fs::exists(scene.shared.blob(scene.blob.digest)));
}

TEST_CASE("shared_blob_with_wrong_digest_is_not_published") {
  SharedScene scene(1'000'000);
  scene.content[7] ^= 1;
  CHECK((scene.pulled() == scene.content));
  CHECK(!fs::exists(scene.shared.blob(scene.blob.digest)));
  CHECK(scene.shared.is_at_rest());
}

TEST_CASE("shared_blob_aborted_pull_leaves_no_files") {
  SharedScene scene(5'000'000);
  PulledBytes sink;
  {
    SharedBlob stream(scene.place(), scene.blob, sink);
    stream.start();
    for (int turn = 0; turn < 4; ++turn) {
      stream.advance();
      stream.resume();
    }
    CHECK(!scene.shared.is_at_rest());
  }
  CHECK(scene.shared.is_at_rest());
}

TEST_CASE("shared_blob_lease_is_exclusive_and_released") {
  const SharedDirectory shared;
  const Digest blob = Sha256::of("blob");
  WatchedLease watched;
  {
    auto first = shared.store.lease(blob, "place", watched).value();
    REQUIRE(first.has_value());
    CHECK(!shared.store.lease(blob, "place", watched).value().has_value());
    // The previous owner of a lease does not remove its successor's.
    for (const auto& lease : fs::directory_iterator(shared.path / "leases")) fs::remove(lease);
    auto second = shared.store.lease(blob, "place", watched).value();
    REQUIRE(second.has_value());
    first->beat();
    first.reset();
    CHECK(!fs::is_empty(shared.path / "leases"));
    CHECK(shared.store.lease(blob, "other place", watched).value().has_value());
  }
  CHECK(shared.is_at_rest());
}

TEST_CASE("shared_blob_complete_but_unpublished_is_published_later") {
  SharedScene scene(1'000'000);
  const std::string name = scene.blob.digest.hex() + ".0123456789abcdef";
  const fs::path lease =
      scene.shared.path / "leases" /
      (scene.blob.digest.hex() + "." + Sha256::of("registry/app").hex().substr(0, 16));
  std::ofstream{scene.shared.path / "tmp" / name} << scene.content;
  std::ofstream{lease} << "node 1 0123456789abcdef 00000000000000000007 " << name;
  CHECK((scene.pulled() == scene.content));
  CHECK(!fs::exists(scene.shared.blob(scene.blob.digest)));  // the owner may still be writing it
  fs::last_write_time(lease, fs::file_time_type::clock::now() - std::chrono::minutes(2));
  CHECK((scene.pulled() == scene.content));
  CHECK(scene.fetches == 0);
  CHECK(scene.shared.is_at_rest());
  CHECK((scene.pulled() == scene.content));
  CHECK(scene.fetches == 0);
}

TEST_CASE("shared_blob_stale_files_are_removed_once_per_pull") {
  const SharedDirectory shared;
  const auto leave = [&](std::chrono::minutes age) {
    const fs::path lease = shared.path / "leases" / "left";
    std::ofstream{lease}.close();
    fs::last_write_time(lease, fs::file_time_type::clock::now() - age);
    (void)shared.store.new_blob(Sha256::of("blob"), 4);
    return fs::exists(lease);
  };
  CHECK(!leave(std::chrono::minutes(11)));
  CHECK(leave(std::chrono::minutes(11)));
}
