#pragma once

#include <stddef.h>
#include <stdint.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace spank_container {

// --- error report ---

/// The variable of the step with srun's address for the errors of nodes, "PORT:TOKEN". No program
/// sees it. The name starts with SLURM because --export=NONE removes all others.
inline constexpr char kReportVariable[] = "SLURM_SCONTAINER_REPORT";

using ReportToken = std::array<unsigned char, 16>;

/// One node's error on the wire, in memory layout. It contains no numbers, so byte order does not
/// matter. An empty text makes srun fail for a reason that the node prints.
struct ErrorReport {
  char magic[8] = {'s', 'p', 'c', 'e', 'r', 'r', '1', '\0'};
  ReportToken token{};
  char node[64] = {};
  char text[2000] = {};
};

/// srun's reply when it has accepted a report and will print it. Without this reply the node prints
/// the error itself.
inline constexpr char kReportTaken = 't';

struct ReportAddress {
  uint16_t port = 0;
  ReportToken token{};

  [[nodiscard]] std::string variable() const;
  static std::optional<ReportAddress> parse(std::string_view variable);
};

/// In a task: sends an error to the srun at this numeric IP address. Returns false, within a
/// second, if srun did not accept it.
bool report_error(const std::string& host, const ReportAddress& address, std::string_view node,
                  std::string_view text);

// --- error collector ---

/// srun's side of the error report: receives the errors of a step's nodes and prints equal ones
/// once.
///
/// A thread listens from `start` to `stop`. Nodes send data of bounded size. A client without the
/// token, or without a complete report within a second, is dropped. A node ends its task only after
/// its report is accepted, and srun ends after its tasks, so no accepted report is lost.
class ErrorCollector {
 public:
  /// Prints one error of `nodes`; called in the thread.
  using Print = void (*)(const std::vector<std::string>& nodes, const std::string& text);

  ErrorCollector() = default;
  ErrorCollector(const ErrorCollector&) = delete;
  ErrorCollector& operator=(const ErrorCollector&) = delete;
  ~ErrorCollector();

  /// Opens the socket and returns its address. If that failed, the port is 0, and the nodes print
  /// their errors themselves.
  ReportAddress open();
  /// Starts the thread. `nodes`: number of reports after which it stops waiting; 0: unknown.
  void start(size_t nodes, Print print);
  /// Prints the remaining errors and ends the thread.
  void stop();
  /// After stop(): returns whether a node has made the step fail.
  [[nodiscard]] bool has_failed() const { return has_failed_; }

 private:
  struct Connection {
    int socket = -1;
    int64_t deadline = 0;
    size_t received = 0;
    ErrorReport report;
  };
  struct Collected {
    std::string text;
    std::vector<std::string> nodes;
  };

  void listen_until_stopped();
  [[nodiscard]] int wait_ms(int64_t now) const;
  void accept_all(int64_t now);
  /// Returns false if the connection was closed.
  bool read_from(Connection& connection, int64_t now);
  bool take(const ErrorReport& report, int64_t now);
  void print_all();

  int listener_ = -1;
  uint16_t port_ = 0;
  int stop_read_ = -1, stop_write_ = -1;
  ReportToken token_{};
  size_t nodes_ = 0;
  Print print_ = nullptr;
  std::thread thread_;
  std::vector<Connection> connections_;
  std::vector<Collected> collected_;
  size_t reports_ = 0, text_bytes_ = 0;
  bool has_failed_ = false;
  int64_t first_ = 0, last_ = 0;  ///< times of the oldest and newest of `collected_`
};

}  // namespace spank_container
