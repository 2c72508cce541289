// Answers of peers to a node that fetches a blob: status, headers and bodies of any program that
// listens there.

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.hpp"
#include "lib/memory_file.hpp"
#include "lib/parts.hpp"
#include "share/peers.hpp"

using namespace spc;
using namespace spc::fuzz;

namespace {

constexpr std::size_t kWhole = 1000;
constexpr std::uint32_t kNodes = 3;

std::string whole_blob() {
  std::string text;
  for (std::size_t i = 0; i < kWhole; ++i) text += static_cast<char>('a' + i % 23);
  return text;
}

constexpr std::string_view kAlive = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n0 0 0\n";

/// All peers: answers each connection with the next part of the input, whatever the request, and
/// closes it. While it joins, it reports the peers as alive, as others get no requests.
class Nodes {
 public:
  Nodes(std::string_view answers, const std::string& ports, const Network& on)
      : left_(answers),
        listener_(Listener::open(PortRange::parse(ports).value()).value()),
        at_{.ip = on.address, .port = listener_.port} {}
  [[nodiscard]] const PeerAddress& at() const { return at_; }
  /// Answers while `join` waits in this process.
  void answer_while(const std::function<void()>& join) {
    is_joining_ = true;
    {
      const std::jthread answering([this](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          work();
          std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
      });
      join();
    }
    is_joining_ = false;
    open_.clear();
  }
  void work() {
    while (UniqueFd accepted{
        ::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)})
      open_.push_back(std::move(accepted));
    std::erase_if(open_, [this](const UniqueFd& one) {
      std::array<char, 4096> asked;
      if (::recv(one.get(), asked.data(), asked.size(), 0) < 0) return false;
      const auto part = is_joining_ ? kAlive : next_part(left_);
      [[maybe_unused]] const ssize_t sent =
          ::send(one.get(), part.data(), part.size(), MSG_NOSIGNAL);
      return true;
    });
  }

 private:
  std::string_view left_;
  Listener listener_;
  PeerAddress at_;
  std::vector<UniqueFd> open_;
  bool is_joining_ = false;
};

/// A sink that accepts all bytes, or sometimes reports that it is full.
class Sink final : public FetchSink {
 public:
  explicit Sink(bool is_slow) : is_slow_(is_slow) {}
  HttpHandler::Take take(std::span<const std::byte> bytes) override {
    is_full_ = is_slow_ && ++calls_ % 2 == 1;
    if (is_full_) return HttpHandler::Take::later;
    said.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    must(said.size() <= kWhole, "no more comes than the manifest says");
    return HttpHandler::Take::taken;
  }
  bool wants_more() { return std::exchange(is_full_, false); }
  std::string said;

 private:
  bool is_slow_, is_full_ = false;
  unsigned calls_ = 0;
};

/// The registry: has the whole blob and serves it from any offset.
class Registry final : public BlobStream {
 public:
  Registry(FetchSink& sink, std::uint64_t from) : sink_(sink), from_(from) {}
  void start() override {}
  void advance() override {
    if (is_done_) return;
    const std::string all = whole_blob();
    must(from_ <= all.size(), "nothing is asked for beyond the end");
    const auto rest = std::as_bytes(std::span(all)).subspan(static_cast<std::size_t>(from_));
    is_done_ = rest.empty() || sink_.take(rest) == HttpHandler::Take::taken;
  }
  void resume() override {}
  [[nodiscard]] bool finished() const override { return is_done_; }
  Result<void> outcome() override { return {}; }
  [[nodiscard]] const char* whose_fault() const override { return ""; }

 private:
  FetchSink& sink_;
  std::uint64_t from_;
  bool is_done_ = false;
};

struct Told final : Log {
  void write(LogLevel, std::string_view line) noexcept override {
    must(is_printable(line) && line.size() < 4096, "what is told is one line");
  }
};

struct Node {
  std::uint8_t how;
  Nodes& others;
  PeersConfig config{};
  Told log;
  std::unique_ptr<HttpClient> http = HttpClient::create({}).value();
  UniqueFd agent{static_cast<int>(::memfd_create("agent", MFD_CLOEXEC))};
  RelayStarter relay = std::move(RelayStarter::create("/bin/true")).value();
  Peers peers;

  Node(std::uint8_t how_, Nodes& others_)
      : how(how_),
        others(others_),
        peers({.http = *http,
               .log = log,
               .config = config,
               .platform = {},
               .nodes = kNodes + 1,
               .ask_tracker = [this](const TrackerRecord& question) -> Result<TrackerRecord> {
                 return place(question);
               },
               .tell_tracker = [](const TrackerRecord&) -> Result<void> { return {}; },
               .new_file = []() -> Result<UniqueFd> { return memory_file(); },
               .agent = (how & 2) != 0 ? agent.get() : -1,
               .relay = &relay}) {}

  [[nodiscard]] TrackerRecord place(const TrackerRecord& question) const {
    TrackerRecord place{
        .kind = TrackerKind::place, .index = kNodes, .count = kNodes, .image = question.image};
    for (std::uint32_t i = 0; i < kNodes; ++i) place.sources[i] = {.index = i, .at = others.at()};
    return place;
  }
};

}  // namespace

// First byte: 1: the sink is slow, 2: received bytes are kept for peers, 4: the registry always
// restarts at offset 0.
FUZZ_TARGET(peer_answers) {
  static const NodeNetworks here = NodeNetworks::find();
  must(!here.own.empty(), "this machine has an address");
  if (size == 0) return 0;
  const std::uint8_t how = data[0];
  Nodes others(text_of(data + 1, size - 1), PeersConfig().ports, here.own.front());
  Node node(how, others);
  const std::string all = whole_blob();
  others.answer_while([&] { node.peers.join(Sha256::of("image")); });
  Sink sink((how & 1) != 0);
  PeerBlob blob{.digest = Sha256::of(all),
                .path = "blobs/x",
                .what = "layer",
                .size = kWhole,
                .limit = kWhole};
  blob.otherwise_at_begin = (how & 4) != 0;
  blob.otherwise = [&](FetchSink& into, std::uint64_t from) {
    return std::unique_ptr<BlobStream>(new Registry(into, blob.otherwise_at_begin ? 0 : from));
  };
  {
    PeerStream stream(node.peers, blob, sink);
    stream.start();
    int turns = 0;
    for (; !stream.finished(); ++turns) {
      must(turns < 2000, "it ends");
      others.work();
      (void)node.http->wait(std::chrono::milliseconds(turns < 200 ? 0 : 1));
      stream.advance();
      if (sink.wants_more()) stream.resume();
    }
    must(stream.outcome().has_value(), "the registry serves, whatever other nodes say");
    must(sink.said.size() == kWhole, "all of it has come");
    const bool is_right = Sha256::of(sink.said) == blob.digest;
    stream.proven(is_right);
    must(is_right || stream.blames_nodes(), "wrong bytes are those of another node");
  }
  while (::waitpid(-1, nullptr, WNOHANG) > 0) continue;
  return 0;
}
