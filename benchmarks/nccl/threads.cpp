// Threads as a substitute for GPUs: they check the arithmetic. Their speed is meaningless.
#include <barrier>
#include <chrono>
#include <thread>

#include "exchange.hpp"

namespace spc::bench {
namespace {

class Threads final : public Exchange {
 public:
  explicit Threads(int ranks) : ranks_(ranks) {}
  [[nodiscard]] std::string name() const override {
    return "CPU threads (check the arithmetic; no measurement)";
  }
  [[nodiscard]] int ranks() const override { return ranks_; }
  [[nodiscard]] int rank() const override { return 0; }

  double run(Collective collective, std::size_t count, int warm_up, int iterations,
             std::size_t& wrong) override {
    const auto n = static_cast<std::size_t>(ranks_);
    std::vector<std::vector<float>> in(n, std::vector<float>(count));
    std::vector<std::vector<float>> out(
        n, std::vector<float>(collective == Collective::all_gather ? count * n : count));
    for (int rank = 0; rank < ranks_; ++rank) {
      for (std::size_t i = 0; i < count; ++i)
        in[static_cast<std::size_t>(rank)][i] = given(rank, i);
    }
    std::barrier gate(ranks_);
    std::vector<double> seconds(n);
    std::vector<std::thread> workers;
    for (int rank = 0; rank < ranks_; ++rank) {
      workers.emplace_back([&, rank] {
        for (int i = 0; i < warm_up; ++i) once(collective, rank, in, out, gate);
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < iterations; ++i) once(collective, rank, in, out, gate);
        const auto elapsed = std::chrono::steady_clock::now() - begin;
        seconds[static_cast<std::size_t>(rank)] =
            std::chrono::duration<double>(elapsed).count() / iterations;
      });
    }
    for (std::thread& worker : workers) worker.join();
    wrong = 0;
    double mean = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto& own = out[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < own.size(); ++i)
        wrong += own[i] != expected(collective, rank, ranks_, i, count) ? 1 : 0;
      mean += seconds[static_cast<std::size_t>(rank)] / ranks_;
    }
    return mean;
  }

 private:
  using Buffers = std::vector<std::vector<float>>;

  /// Runs one exchange: each rank reads the data in place.
  void once(Collective collective, int rank, const Buffers& in, Buffers& out,
            std::barrier<>& gate) const {
    const auto n = static_cast<std::size_t>(ranks_);
    const auto own = static_cast<std::size_t>(rank);
    const std::size_t count = in[own].size();
    switch (collective) {
      case Collective::all_reduce:
        out[own] = in[own];
        for (std::size_t from = 0; from < n; ++from) {
          for (std::size_t i = 0; from != own && i < count; ++i) out[own][i] += in[from][i];
        }
        break;
      case Collective::all_gather:
        for (std::size_t from = 0; from < n; ++from) {
          for (std::size_t i = 0; i < count; ++i) out[own][from * count + i] = in[from][i];
        }
        break;
      case Collective::broadcast: out[own] = in[0]; break;
      case Collective::send_recv: out[own] = in[(own + n - 1) % n]; break;
    }
    gate.arrive_and_wait();
  }

  int ranks_;
};

}  // namespace

std::unique_ptr<Exchange> threads(int ranks) { return std::make_unique<Threads>(ranks); }

}  // namespace spc::bench
