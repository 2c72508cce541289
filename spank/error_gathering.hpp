#pragma once

#include <stdint.h>

#include <string>
#include <thread>
#include <vector>

#include "error_report.hpp"

namespace spank_container {

/// srun's side of error_report.hpp: takes the errors of a step's nodes, and prints those that are alike once.
///
/// A thread listens from `start` to `stop`. What nodes send is data of bounded size; who does not know the token, or
/// has not sent a whole report within a second, is dropped. A node ends its task only when its report was
/// taken, and srun ends only after its tasks, so nothing that was taken is lost.
class ErrorGathering {
 public:
  /// Called in the thread with one error and the nodes that have it.
  using Print = void (*)(const std::vector<std::string>& nodes, const std::string& text);

  ErrorGathering() = default;
  ErrorGathering(const ErrorGathering&) = delete;
  ErrorGathering& operator=(const ErrorGathering&) = delete;
  ~ErrorGathering();

  /// Opens the socket. Port 0 in the address: it cannot be had, and the nodes print for themselves.
  ReportAddress open();
  /// Starts the thread. `nodes`: when as many have reported there is nothing left to wait for; 0: not known.
  void start(size_t nodes, Print print);
  /// Prints what is left and ends the thread.
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
  /// False: the connection has ended.
  bool read_from(Connection& connection, int64_t now);
  bool take(const ErrorReport& report, int64_t now);
  void print_all();

  int listener_ = -1;
  int stop_read_ = -1, stop_write_ = -1;
  ReportToken token_{};
  size_t nodes_ = 0;
  Print print_ = nullptr;
  std::thread thread_;
  std::vector<Connection> connections_;
  std::vector<Gathered> gathered_;
  size_t reports_ = 0, text_bytes_ = 0;
  int64_t first_ = 0, last_ = 0;  ///< when the oldest and the newest of `gathered_` came
};

}  // namespace spank_container
