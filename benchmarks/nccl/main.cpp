// bench-nccl: all-reduce, all-gather, broadcast, and send and receive around a ring, with the
// bandwidths of nccl-tests. Prints one line of JSON per figure.
//
//     bench-nccl [--cpu RANKS] [--library FILE] [--meeting DIRECTORY] [--bytes N]... [--warm-up N]
//                [--iterations N]
//
// --bytes: size as counted by nccl-tests. --cpu: threads instead of GPUs, which check the
// arithmetic and measure nothing. The exit status is 77 with one line of reason if there is no GPU
// or no NCCL, and 1 if a result is wrong.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "exchange.hpp"

using namespace spc::bench;

namespace {

constexpr int kSkipped = 77;

struct Arguments {
  int cpu = 0;
  std::string library = "libnccl.so.2";
  std::string meeting = ".";
  std::vector<std::size_t> bytes;
  int warm_up = 5, iterations = 20;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    const long long number = value != nullptr ? std::atoll(value) : 0;
    if (value != nullptr && name == "--library") {
      arguments.library = value;
    } else if (value != nullptr && name == "--meeting") {
      arguments.meeting = value;
    } else if (name == "--cpu" && number > 0 && number <= 64) {
      arguments.cpu = static_cast<int>(number);
    } else if (name == "--bytes" && number >= 4) {
      arguments.bytes.push_back(static_cast<std::size_t>(number));
    } else if (name == "--warm-up" && number >= 0) {
      arguments.warm_up = static_cast<int>(number);
    } else if (name == "--iterations" && number > 0) {
      arguments.iterations = static_cast<int>(number);
    } else {
      std::fputs(
          "usage: bench-nccl [--cpu RANKS] [--library FILE] [--meeting DIRECTORY] [--bytes N]... "
          "[--warm-up N] [--iterations "
          "N]\n",
          stderr);
      std::exit(2);
    }
  }
  if (arguments.bytes.empty()) {
    arguments.bytes = {8, std::size_t{1} << 20,
                       arguments.cpu != 0 ? std::size_t{4} << 20 : std::size_t{1} << 30};
  }
  return arguments;
}

bool measure(Exchange& exchange, Collective collective, std::size_t bytes,
             const Arguments& arguments) {
  const auto ranks = static_cast<std::size_t>(exchange.ranks());
  // The size of an all-gather is the data of all ranks.
  std::size_t count = bytes / sizeof(float);
  if (collective == Collective::all_gather) count = count / ranks > 0 ? count / ranks : 1;
  const std::size_t counted =
      count * sizeof(float) * (collective == Collective::all_gather ? ranks : 1);
  std::size_t wrong = 0;
  const double seconds =
      exchange.run(collective, count, arguments.warm_up, arguments.iterations, wrong);
  const double algorithm = algorithm_bandwidth(counted, seconds);
  if (exchange.rank() == 0) {
    std::printf(
        "{\"name\": \"nccl.%s\", \"bytes\": %zu, \"us\": %.6g, \"algbw\": %.6g, \"busbw\": %.6g, "
        "\"unit\": \"GB/s\", \"wrong\": "
        "%zu, "
        "\"ranks\": %d, \"device\": \"%s\"}\n",
        name_of(collective), counted, seconds * 1e6, algorithm,
        algorithm * bus_factor(collective, exchange.ranks()), wrong, exchange.ranks(),
        exchange.name().c_str());
    std::fflush(stdout);
  }
  return wrong == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  std::string why;
  const auto exchange =
      arguments.cpu != 0 ? threads(arguments.cpu) : nccl(arguments.library, arguments.meeting, why);
  if (!exchange) {
    std::fprintf(stderr, "bench-nccl: skipped: %s\n", why.c_str());
    return kSkipped;
  }
  bool right = true;
  for (const Collective collective : {Collective::all_reduce, Collective::all_gather,
                                      Collective::broadcast, Collective::send_recv}) {
    for (const std::size_t bytes : arguments.bytes)
      right = measure(*exchange, collective, bytes, arguments) && right;
  }
  return right ? 0 : 1;
}
