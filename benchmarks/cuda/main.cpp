// bench-cuda: n-body, copies, and a sum over all ranks, on a GPU. Prints one line of JSON per
// figure.
//
//     bench-cuda nbody|memcpy|reduce [--cpu] [--fp64] [--size N] [--iterations N]
//
// --size: bodies, bytes or numbers. --cpu: runs on the CPU, which checks the arithmetic and
// measures nothing. The exit status is 77 with one line of reason if there is no GPU, and 1 if a
// result is wrong.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "arithmetic.hpp"
#include "device.hpp"
#include "ranks.hpp"

using namespace spc::bench;

namespace {

constexpr int kSkipped = 77;

struct Arguments {
  std::string what;
  bool cpu = false, fp64 = false;
  std::uint64_t size = 0;
  int iterations = 0;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  bool wrong = argc < 2;
  if (!wrong) arguments.what = argv[1];
  for (int i = 2; i < argc && !wrong; ++i) {
    const std::string name = argv[i];
    if (name == "--cpu") {
      arguments.cpu = true;
    } else if (name == "--fp64") {
      arguments.fp64 = true;
    } else if (name == "--size" && i + 1 < argc) {
      arguments.size = std::strtoull(argv[++i], nullptr, 10);
    } else if (name == "--iterations" && i + 1 < argc) {
      arguments.iterations = std::atoi(argv[++i]);
    } else {
      wrong = true;
    }
  }
  if (wrong ||
      (arguments.what != "nbody" && arguments.what != "memcpy" && arguments.what != "reduce")) {
    std::fputs(
        "usage: bench-cuda nbody|memcpy|reduce [--cpu] [--fp64] [--size N] [--iterations N]\n",
        stderr);
    std::exit(2);
  }
  return arguments;
}

/// Prints one line. Returns whether the result is right.
bool print(const Ranks& ranks, const Device& device, const std::string& name, double value,
           const char* unit, bool right) {
  if (ranks.rank == 0) {
    std::printf(
        "{\"name\": \"cuda.%s\", \"value\": %.6g, \"unit\": \"%s\", \"right\": %s, \"device\": "
        "\"%s\", \"ranks\": %d, \"by\": "
        "\"%s\"}\n",
        name.c_str(), value, unit, right ? "true" : "false", device.name().c_str(), ranks.count,
        ranks.kind);
    std::fflush(stdout);
  }
  return right;
}

bool nbody(const Arguments& arguments, const Ranks& ranks, Device& device) {
  const std::uint64_t bodies = rounded_bodies(arguments.size != 0 ? arguments.size
                                              : arguments.cpu     ? 2048
                                                                  : 200'000);
  const int iterations = arguments.iterations != 0 ? arguments.iterations : arguments.cpu ? 2 : 10;
  const double seconds = ranks.largest(device.nbody(bodies, iterations, arguments.fp64));
  const double difference = largest_difference(reference_forces(bodies), device.first_forces());
  const bool right = difference < (arguments.fp64 ? 1e-9 : 1e-3);
  const double rate =
      nbody_gflops(bodies, static_cast<std::uint64_t>(iterations), seconds, arguments.fp64) *
      ranks.count;
  return print(ranks, device, arguments.fp64 ? "nbody.fp64" : "nbody.fp32", rate, "GFLOP/s", right);
}

bool memcpy_rates(const Arguments& arguments, const Ranks& ranks, Device& device) {
  const std::size_t bytes = arguments.size != 0 ? arguments.size : std::size_t{256} << 20;
  const auto rates = device.copies(bytes, arguments.iterations != 0 ? arguments.iterations
                                          : arguments.cpu           ? 2
                                                                    : 20);
  bool right = true;
  for (const CopyRate& rate : rates)
    right = print(ranks, device, std::string("memcpy.") + rate.name, rate.gb_per_second, "GB/s",
                  rate.right) &&
            right;
  return right;
}

bool reduce(const Arguments& arguments, const Ranks& ranks, Device& device) {
  const std::uint64_t total = arguments.size != 0 ? arguments.size : std::uint64_t{1} << 26;
  const int iterations = arguments.iterations != 0 ? arguments.iterations : 20;
  const Part part = part_of(total, ranks.rank, ranks.count);
  device.fill(part.first, part.count);
  bool right = ranks.sum(device.sum()) == sum_of(total);
  ranks.wait_for_all();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < iterations; ++i) right = ranks.sum(device.sum()) == sum_of(total) && right;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / iterations;
  return print(ranks, device, "reduce", ranks.largest(seconds) * 1e3, "ms", right);
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  const Ranks ranks;
  std::string why;
  Device* device = arguments.cpu ? &cpu() : gpu(ranks.local_rank, why);
  if (device == nullptr) {
    if (ranks.rank == 0)
      std::fprintf(stderr, "bench-cuda: skipped: no GPU to measure: %s\n", why.c_str());
    return kSkipped;
  }
  const bool right = arguments.what == "nbody"    ? nbody(arguments, ranks, *device)
                     : arguments.what == "memcpy" ? memcpy_rates(arguments, ranks, *device)
                                                  : reduce(arguments, ranks, *device);
  return right ? 0 : 1;
}
