#pragma once

#include <cstddef>

/// Bandwidths as nccl-tests define them (doc/PERFORMANCE.md there).
namespace spc::bench {

enum class Collective { all_reduce, all_gather, broadcast, send_recv };

/// Returns the bandwidth. `bytes` is the size of nccl-tests: the data of all ranks for an
/// all-gather, the data of one rank for the others.
constexpr double algorithm_bandwidth(std::size_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds / 1e9;
}

/// Returns the factor that makes the bandwidth comparable with the links' for any number of ranks:
/// the share of the data that must pass through each rank's link.
constexpr double bus_factor(Collective collective, int ranks) {
  const double n = ranks;
  switch (collective) {
    case Collective::all_reduce: return 2 * (n - 1) / n;
    case Collective::all_gather: return (n - 1) / n;
    case Collective::broadcast:
    case Collective::send_recv: return 1;
  }
  return 0;
}

constexpr const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::all_reduce: return "allreduce";
    case Collective::all_gather: return "allgather";
    case Collective::broadcast: return "broadcast";
    case Collective::send_recv: return "sendrecv";
  }
  return "";
}

/// Returns the number that `rank` puts at `index`, small enough that sums over many ranks are exact
/// in a float.
constexpr float given(int rank, std::size_t index) {
  return static_cast<float>((static_cast<std::size_t>(rank) * 7 + index) % 64);
}

/// Returns the number expected at `index` on `rank` after `count` numbers of each of `ranks` have
/// been exchanged.
constexpr float expected(Collective collective, int rank, int ranks, std::size_t index,
                         std::size_t count) {
  switch (collective) {
    case Collective::all_reduce: {
      float sum = 0;
      for (int i = 0; i < ranks; ++i) sum += given(i, index);
      return sum;
    }
    case Collective::all_gather: return given(static_cast<int>(index / count), index % count);
    case Collective::broadcast: return given(0, index);
    // From the left neighbour.
    case Collective::send_recv: return given((rank + ranks - 1) % ranks, index);
  }
  return 0;
}

}  // namespace spc::bench
