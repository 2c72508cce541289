// srun's side of peer-to-peer transfer: the peer sessions, the protocol of one connection, and
// the thread that serves them.

#include "share/tracker.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "base/bytes.hpp"
#include "base/clock.hpp"

namespace spc {

// --- srun address ---

namespace {

constexpr std::string_view kTokenDigits = "0123456789abcdef";

}  // namespace

std::string TrackerAddress::variable() const {
  std::string text = std::to_string(port) + ":";
  for (const std::uint8_t byte : token) text += {kTokenDigits[byte >> 4], kTokenDigits[byte & 15]};
  return text;
}

std::optional<TrackerAddress> TrackerAddress::parse(std::string_view variable) {
  TrackerAddress address;
  const auto colon = variable.find(':');
  if (colon == std::string_view::npos || variable.size() - colon - 1 != 2 * address.token.size())
    return std::nullopt;
  const auto [end, error] = std::from_chars(variable.data(), variable.data() + colon, address.port);
  if (error != std::errc() || end != variable.data() + colon || address.port == 0)
    return std::nullopt;
  for (std::size_t byte = 0; byte < address.token.size(); ++byte) {
    const auto high = kTokenDigits.find(variable[colon + 1 + 2 * byte]);
    const auto low = kTokenDigits.find(variable[colon + 2 + 2 * byte]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    address.token[byte] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return address;
}

// --- protocol ---

namespace {

static_assert(sizeof(TrackerHello) <= sizeof(TrackerRecord));

/// Returns whether the text is a host name without terminal control characters.
bool is_plain_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

}  // namespace

std::span<char> TrackerProtocol::room() {
  return std::span(bytes_).subspan(received_, wanted() - received_);
}

TrackerProtocol::Outcome TrackerProtocol::take(std::size_t bytes, const TrackerToken& token,
                                               PeerSessions::Seconds now) {
  received_ += bytes;
  if (received_ < wanted()) return {};
  received_ = 0;
  return has_greeted_ ? handle(now) : Outcome{.stays_open = greet(token)};
}

bool TrackerProtocol::greet(const TrackerToken& token) {
  TrackerHello hello;
  std::memcpy(&hello, bytes_.data(), sizeof hello);
  unsigned differs = 0;  // compares all bytes, in constant time
  for (std::size_t byte = 0; byte < token.size(); ++byte)
    differs |= hello.token[byte] ^ token[byte];
  if (differs != 0 || hello.magic != TrackerHello().magic) return false;
  node_.assign(hello.node.begin(), std::find(hello.node.begin(), hello.node.end(), '\0'));
  has_greeted_ = is_plain_name(node_);
  return has_greeted_;
}

TrackerProtocol::Outcome TrackerProtocol::handle(PeerSessions::Seconds now) {
  TrackerRecord question;
  std::memcpy(&question, bytes_.data(), sizeof question);
  Outcome outcome{.kind = question.kind};
  switch (question.kind) {
    case TrackerKind::join:
      outcome.answer = sessions_.join(question, node_, seen_at_, id_, now);
      break;
    case TrackerKind::more:
    case TrackerKind::slow:
      if (id_) outcome.answer = sessions_.more(question, *id_);
      break;
    default: outcome.stays_open = id_ && sessions_.update(question, *id_, now); return outcome;
  }
  outcome.stays_open = outcome.answer.has_value();
  return outcome;
}

// --- peer sessions ---

namespace {

// per node, because the cost for srun grows with the number of nodes
constexpr unsigned kMostQuestions = 64;

bool is_address(const PeerAddress& address) {
  return std::any_of(address.ip.begin(), address.ip.end(),
                     [](std::uint8_t byte) { return byte != 0; });
}

/// Returns the relay's first listening address; one without an IP gets the connection's source
/// address.
PeerAddress relay_of(const TrackerRecord& join, const PeerAddress& seen_at) {
  for (PeerAddress address : join.addresses) {
    if (address.port == 0) continue;
    if (!is_address(address)) address.ip = seen_at.ip;
    return address;
  }
  return {};
}

/// Returns whether a firewall seems to separate the nodes: two have reached no source, and no node
/// has received anything. Nodes that join later need not try.
bool is_closed(const PeerSessions::Session& session) {
  return session.cut_off >= 2 &&
         std::none_of(session.peers.begin(), session.peers.end(),
                      [](const PeerSessions::Peer& one) { return one.from.nodes > 0; });
}

}  // namespace

PeerSessions::Session* PeerSessions::find(const PeerId& id) {
  const auto found = all_.find(id.image);
  return found != all_.end() && id.index < found->second.peers.size() ? &found->second : nullptr;
}

std::optional<TrackerRecord> PeerSessions::join(const TrackerRecord& question,
                                                const std::string& node, const PeerAddress& seen_at,
                                                std::optional<PeerId>& id, Seconds now) {
  if (id) disconnect(*id);
  id.reset();
  if (peers_ >= most_) return std::nullopt;
  const auto [found, is_new] =
      all_.try_emplace(question.image, Session{.order = PeerOrder(fanout_)});
  Session& session = found->second;
  if (is_new && ::getrandom(session.key.data(), session.key.size(), 0) !=
                    static_cast<ssize_t>(session.key.size())) {
    all_.erase(found);
    return std::nullopt;
  }
  ++peers_;
  id = PeerId{question.image, session.order.join(question.node_id)};
  session.peers.push_back({.node_id = question.node_id,
                               .node = node,
                               .at = relay_of(question, seen_at),
                               .joined = now});
  const auto place = place_of(session, *id);
  // The node reads from others but serves none.
  if (session.peers.back().at.port == 0) session.order.leave(id->index);
  return place;
}

std::optional<TrackerRecord> PeerSessions::more(const TrackerRecord& question, const PeerId& id) {
  Session* const session = find(id);
  if (session == nullptr || question.count > question.indices.size()) return std::nullopt;
  if (++session->peers[id.index].questions > kMostQuestions) return std::nullopt;
  const auto because =
      question.kind == TrackerKind::slow ? PeerOrder::Because::slow : PeerOrder::Because::dead;
  session->order.move(id.index, std::span(question.indices).first(question.count), because);
  return place_of(*session, id);
}

bool PeerSessions::update(const TrackerRecord& record, const PeerId& id, Seconds now) {
  Session* const session = find(id);
  if (session == nullptr) return false;
  Peer& peer = session->peers[id.index];
  switch (record.kind) {
    case TrackerKind::progress:
      peer.done = record.done;
      peer.total = record.total;
      peer.from = record.from;
      return true;
    case TrackerKind::done:
      peer.has_all = true;
      peer.from = record.from;
      peer.ready = now;
      return true;
    case TrackerKind::cut_off:
      ++session->cut_off;
      [[fallthrough]];  // Other nodes probably cannot reach it either.
    case TrackerKind::left: session->order.leave(id.index); return true;
    default: return false;
  }
}

void PeerSessions::disconnect(const PeerId& id) {
  Session* const session = find(id);
  if (session == nullptr || session->peers[id.index].has_all) return;
  session->order.leave(id.index);
  session->peers[id.index].died = true;  // stop waiting for it
}

TrackerRecord PeerSessions::place_of(const Session& session, const PeerId& id) {
  TrackerRecord place;
  place.kind = TrackerKind::place;
  place.image = id.image;
  place.index = id.index;
  place.node_id = session.peers[id.index].node_id;
  place.key = session.key;
  if (is_closed(session)) return place;
  for (const std::uint32_t index : session.order.sources_of(id.index)) {
    if (place.count == place.sources.size()) break;
    place.sources[place.count++] = {.index = index, .at = session.peers[index].at};
  }
  return place;
}

namespace {

struct Sum {
  std::size_t nodes = 0, failed = 0;
  std::uint64_t size = 0;  ///< size of what most of them lack
  BytesFrom from;
  const PeerSessions::Peer* slowest = nullptr;
  PeerSessions::Seconds begin = PeerSessions::Seconds::max();
  std::vector<PeerSessions::Seconds> ready;
};

double part_of(const PeerSessions::Peer& one) {
  return static_cast<double>(one.done) / static_cast<double>(one.total);
}

Sum sum_of(const PeerSessions& sessions) {
  Sum sum;
  for (const auto& [image, session] : sessions.all()) {
    for (const auto& peer : session.peers) {
      sum.failed += peer.died ? 1 : 0;
      sum.from += peer.from;
      sum.size = std::max(sum.size, peer.total);
      if (peer.total == 0 || peer.died) continue;
      ++sum.nodes;
      sum.begin = std::min(sum.begin, peer.joined);
      if (peer.has_all) {
        sum.ready.push_back(peer.ready);
      } else if (sum.slowest == nullptr || part_of(peer) < part_of(*sum.slowest)) {
        sum.slowest = &peer;
      }
    }
  }
  std::sort(sum.ready.begin(), sum.ready.end());
  return sum;
}

std::string decimal(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string times(std::uint64_t bytes, std::uint64_t size, int digits) {
  return decimal(size == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(size), digits) +
         " x";
}

std::string in_json(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  }
  return escaped;
}

std::string counted(std::size_t count) {
  return std::to_string(count) + (count == 1 ? " node" : " nodes");
}

}  // namespace

std::string progress_line(const PeerSessions& sessions, const std::string& image) {
  const Sum sum = sum_of(sessions);
  if (sum.slowest == nullptr) return {};
  const auto percent = static_cast<unsigned>(std::min(part_of(*sum.slowest), 1.0) * 100);
  return "pulling " + (image.empty() ? "" : image + " ") + "on " + counted(sum.nodes) +
         ", slowest " + sum.slowest->node + " at " + std::to_string(percent) + " % of " +
         human_bytes(sum.slowest->total);
}

std::string closing_line(const PeerSessions& sessions, const std::string& image) {
  const Sum sum = sum_of(sessions);
  if (sum.ready.empty()) return {};
  return "pulled " + (image.empty() ? "the image" : image) + " on " + counted(sum.ready.size()) +
         ": " + human_bytes(sum.size) + " in " +
         decimal((sum.ready.back() - sum.begin).count(), 1) + " s";
}

std::string statistics_line(const PeerSessions& sessions, const std::string& image) {
  const Sum sum = sum_of(sessions);
  if (sum.nodes + sum.failed == 0) return {};
  std::string line = (image.empty() ? "the image" : image) + " came to " +
                     std::to_string(sum.ready.size()) + " of " + counted(sum.nodes + sum.failed);
  const auto after = [&](std::size_t index) {
    return decimal((sum.ready[index] - sum.begin).count(), 1);
  };
  if (!sum.ready.empty()) {
    line += " in " + after(sum.ready.size() - 1) + " s (first " + after(0) + ", median " +
            after(sum.ready.size() / 2) + ")";
  }
  line += ": registry " + times(sum.from.registry, sum.size, 2) + ", nodes " +
          times(sum.from.nodes, sum.size, 2) + ", shared store " +
          times(sum.from.shared, sum.size, 2);
  if (sum.from.mirrors > 0) line += ", mirrors " + times(sum.from.mirrors, sum.size, 2);
  return sum.failed == 0 ? line : line + ", " + counted(sum.failed) + " failed";
}

std::string statistics_json(const PeerSessions& sessions, const std::string& image) {
  const Sum sum = sum_of(sessions);
  if (sum.nodes + sum.failed == 0) return {};
  std::string json = "{\"event\": \"step_pull\", \"image\": \"" + in_json(image) + "\"";
  const auto add = [&](const char* key, const std::string& value) {
    json += std::string(", \"") + key + "\": " + value;
  };
  const auto add_time = [&](const char* key, double part) {  // of the nodes that are ready
    const auto index =
        sum.ready.empty()
            ? 0
            : static_cast<std::size_t>(part * static_cast<double>(sum.ready.size() - 1));
    add(key, sum.ready.empty() ? "null" : decimal((sum.ready[index] - sum.begin).count(), 3));
  };
  add("nodes", std::to_string(sum.nodes + sum.failed));
  add("ready", std::to_string(sum.ready.size()));
  add("failed", std::to_string(sum.failed));
  add("pulled_bytes", std::to_string(sum.size));
  add("registry_bytes", std::to_string(sum.from.registry));
  add("mirror_bytes", std::to_string(sum.from.mirrors));
  add("node_bytes", std::to_string(sum.from.nodes));
  add("shared_bytes", std::to_string(sum.from.shared));
  add_time("first_s", 0);
  add_time("median_s", 0.5);
  add_time("p99_s", 0.99);
  add_time("last_s", 1);
  return json + "}";
}

// --- tracker server ---

namespace {

constexpr std::int64_t kTokenPatience = 1000;  // milliseconds
// Milliseconds until the first line and between later ones. The intervals grow, because the lines
// stay in the job's output.
constexpr std::int64_t kFirstLine = 1000, kLongestPause = 15'000;
constexpr std::int64_t kLook = 250;
constexpr std::size_t kSpare = 16, kMostNodes = 16'384;
constexpr int kAtOnce = 4;  // records of one connection before the next connection's turn

std::int64_t now_ms() { return static_cast<std::int64_t>(now_us() / 1000); }

PeerSessions::Seconds time_of(std::uint64_t us) { return std::chrono::microseconds(us); }

PeerAddress address_of(const sockaddr_in6& from) {
  PeerAddress address;
  if (from.sin6_family == AF_INET6) {
    std::copy_n(from.sin6_addr.s6_addr, address.ip.size(), address.ip.begin());
  } else if (from.sin6_family == AF_INET) {
    address.ip[10] = address.ip[11] = 0xff;
    const auto* v4 =
        reinterpret_cast<const std::uint8_t*>(&reinterpret_cast<const sockaddr_in&>(from).sin_addr);
    std::copy_n(v4, 4, address.ip.begin() + 12);
  }
  return address;
}

/// Leaves descriptors to srun for the output of its tasks.
std::size_t most_connections(std::uint32_t nodes) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return 0;
  return std::min<std::size_t>(
      (nodes == 0 ? kMostNodes : std::min<std::size_t>(nodes, kMostNodes)) + kSpare,
      files.rlim_cur / 2);
}

}  // namespace

Result<TrackerAddress> Tracker::open(const PortRange& ports, std::uint32_t fanout) {
  int ends[2];
  fanout_ = std::max(fanout, std::uint32_t{1});
  if (listener_) return TrackerAddress{.port = port_, .token = token_};
  if (::getrandom(token_.data(), token_.size(), 0) != static_cast<ssize_t>(token_.size()))
    return Error::from_errno(errno, "get a token");
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "make a pipe");
  stop_read_.reset(ends[0]);
  stop_write_.reset(ends[1]);
  events_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!events_) return Error::from_errno(errno, "listen");
  Listener listener = SPC_TRY(Listener::open(ports));
  for (const int watched : {stop_read_.get(), listener.socket.get()}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = watched}};
    if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, watched, &event) != 0)
      return Error::from_errno(errno, "watch a socket");
  }
  listener_ = std::move(listener.socket);
  port_ = listener.port;
  return TrackerAddress{.port = port_, .token = token_};
}

void Tracker::start(std::uint32_t nodes, const std::string& image, Say say) {
  if (!listener_ || thread_.joinable()) return;
  image_ = image;
  say_ = std::move(say);
  most_ = most_connections(nodes);
  sessions_ = PeerSessions(4 * most_, fanout_);
  sigset_t all, before;  // signals are left to srun's own threads, which wait for them
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error&) {
    listener_.reset();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Tracker::stop() {
  stop_write_.reset();  // the thread reads end of file
  if (thread_.joinable()) {
    thread_.join();
    say_closing();
    for (const auto& line :
         {statistics_line(sessions_, image_), statistics_json(sessions_, image_)}) {
      if (!line.empty() && say_) say_(About::all, line);
    }
  }
  connections_.clear();
  listener_.reset();
  stop_read_.reset();
  events_.reset();
}

void Tracker::serve() try {
  for (;;) {
    epoll_event ready[64];
    const int count = ::epoll_wait(events_.get(), ready, 64, wait_ms());
    if (count < 0 && errno != EINTR) return;
    const std::int64_t now = now_ms();
    for (int i = 0; i < count; ++i) {
      const int socket = ready[i].data.fd;
      if (socket == stop_read_.get()) return;
      if (listener_ && socket == listener_.get()) {
        accept_all(now);
      } else if (const auto found = connections_.find(socket);
                 found != connections_.end() && !read_some(found->second)) {
        close(socket);
      }
    }
    if (silent_ > 0) drop_silent(now);
    say_progress(now);
  }
} catch (const std::exception&) {
  // Out of memory: the nodes ask the registry.
}

int Tracker::wait_ms() const {
  return silent_ > 0 || next_line_ > 0 ? static_cast<int>(kLook) : -1;
}

void Tracker::accept_all(std::int64_t now) {
  for (;;) {
    sockaddr_in6 from{};
    socklen_t size = sizeof from;
    UniqueFd socket(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &size,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      // If accept fails, for example without free descriptors, poll would report the same
      // connection forever.
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) listener_.reset();
      return;
    }
    const int number = socket.get();
    epoll_event event{.events = EPOLLIN, .data = {.fd = number}};
    if (connections_.size() >= most_ ||
        ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, number, &event) != 0)
      continue;
    connections_.emplace(number, Connection{std::move(socket), now + kTokenPatience,
                                            TrackerProtocol(sessions_, address_of(from))});
    ++silent_;
  }
}

void Tracker::drop_silent(std::int64_t now) {
  std::vector<int> late;
  for (const auto& [number, connection] : connections_) {
    if (connection.deadline != 0 && now >= connection.deadline) late.push_back(number);
  }
  for (const int number : late) close(number);
}

void Tracker::close(int socket) {
  const auto found = connections_.find(socket);
  if (found->second.deadline != 0) --silent_;
  found->second.protocol.end();
  connections_.erase(found);
}

bool Tracker::read_some(Connection& connection) {
  for (int records = 0; records < kAtOnce;) {
    const auto room = connection.protocol.room();
    const ssize_t got = ::recv(connection.socket.get(), room.data(), room.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) return false;
    if (static_cast<std::size_t>(got) == room.size()) ++records;
    const auto outcome =
        connection.protocol.take(static_cast<std::size_t>(got), token_, time_of(now_us()));
    if (connection.deadline != 0 && connection.protocol.has_greeted()) {
      connection.deadline = 0;
      --silent_;
    }
    if (outcome.kind == TrackerKind::progress && next_line_ == 0)
      next_line_ = now_ms() + kFirstLine;
    // The socket's buffer has room for one answer unless the node does not read.
    const bool is_told =
        !outcome.answer || ::send(connection.socket.get(), &*outcome.answer, sizeof *outcome.answer,
                                  MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof *outcome.answer;
    if (!outcome.stays_open || !is_told) return false;
  }
  return true;
}

void Tracker::say_progress(std::int64_t now) {
  if (next_line_ == 0 || now < next_line_) return;
  const std::string line = progress_line(sessions_, image_);
  if (line.empty()) {
    next_line_ = 0;
    say_closing();
    return;
  }
  pause_ = std::min(pause_ == 0 ? 2000 : 2 * pause_, kLongestPause);
  next_line_ = now + pause_;
  if (line != last_line_ && say_) say_(About::progress, line);
  last_line_ = line;
}

void Tracker::say_closing() {
  const std::string line = last_line_.empty() ? "" : closing_line(sessions_, image_);
  if (!line.empty() && say_) say_(About::progress, line);
  last_line_.clear();
}

}  // namespace spc
