#pragma once

#include <stdint.h>

#include <string>
#include <thread>
#include <vector>

#include "error_report.hpp"

namespace spank_container {

/// srun's side of error_report.hpp: receives the errors of a step's nodes, and prints equal ones
/// once.
///
/// A thread listens from `start` to `stop`. Nodes send data of bounded size; a client without the
/// token, or without a complete report within a second, is dropped. A node ends its task only when
/// its report is accepted, and srun ends after its tasks, so no accepted report is lost.
class ErrorGathering {
 public:
  /// Called in the thread with one error and the nodes that have it.
  using Print = void (*)(const std::vector<std::string>& nodes, const std::string& text);

  ErrorGathering() = default;
  ErrorGathering(const ErrorGathering&) = delete;
  ErrorGathering& operator=(const ErrorGathering&) = delete;
  ~ErrorGathering();

  /// Opens the socket. Port 0 in the address: not possible, and the nodes print their errors
  /// themselves.
  ReportAddress open();
  /// Starts the thread. `nodes`: stops waiting after as many reports; 0: unknown.
  void start(size_t nodes, Print print);
  /// Prints the remaining errors and ends the thread.
  void stop();

 private:
  struct Connection {
    int socket = -1;
    int64_t deadline = 0;
    size_t received = 0;
    ErrorReport report;
  };
  struct Gathered {
    std::string text;
    std::vector<std::string> nodes;
  };

  void listen_until_stopped();
  [[nodiscard]] int wait_ms(int64_t now) const;
  void accept_all(int64_t now);
  /// False: the connection was closed.
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
  std::vector<Gathered> gathered_;
  size_t reports_ = 0, text_bytes_ = 0;
  int64_t first_ = 0, last_ = 0;  ///< times of the oldest and newest of `gathered_`
};

}  // namespace spank_container
