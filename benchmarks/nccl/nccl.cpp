// GPUs by NCCL. libnccl.so.2 is opened on demand, so that the same program runs if only an image or
// only the host has it. cudart is linked statically.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <nccl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "exchange.hpp"

namespace spc::bench {
namespace {

/// The used functions of NCCL, by name.
struct Library {
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRank) comm_init_rank;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetVersion) version;
  decltype(&ncclCommDestroy) comm_destroy;

  bool load(const std::string& file, std::string& why) {
    void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      why = ::dlerror();
      return false;
    }
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
      if (function == nullptr) why = std::string("no ") + name + " in " + file;
      return function != nullptr;
    };
    return find(get_unique_id, "ncclGetUniqueId") && find(comm_init_rank, "ncclCommInitRank") &&
           find(all_reduce, "ncclAllReduce") && find(all_gather, "ncclAllGather") &&
           find(broadcast, "ncclBroadcast") && find(send, "ncclSend") && find(recv, "ncclRecv") &&
           find(group_start, "ncclGroupStart") && find(group_end, "ncclGroupEnd") &&
           find(error_string, "ncclGetErrorString") && find(version, "ncclGetVersion") &&
           find(comm_destroy, "ncclCommDestroy");
  }
};

[[noreturn]] void die(const char* what, const char* why) {
  std::fprintf(stderr, "bench-nccl: %s: %s\n", what, why);
  std::exit(1);
}
void must(cudaError_t error, const char* what) {
  if (error != cudaSuccess) die(what, cudaGetErrorString(error));
}

int number_of(const char* name, const char* slurms, int otherwise) {
  for (const char* one : {name, slurms}) {
    const char* value = std::getenv(one);
    if (value != nullptr && *value != '\0') return std::atoi(value);
  }
  return otherwise;
}

/// Exchanges the ID through a file. Rank 0 writes it under another name first, so that readers see
/// a complete file.
ncclUniqueId meet(const Library& library, const std::string& directory, int rank, int ranks) {
  ncclUniqueId id{};
  const std::string path = directory + "/nccl-id." +
                           std::to_string(number_of("SLURM_JOB_ID", "SLURM_JOBID", 0)) + "." +
                           std::to_string(number_of("SLURM_STEP_ID", "SLURM_STEPID", 0));
  if (rank == 0) {
    if (library.get_unique_id(&id) != ncclSuccess) die("NCCL", "no unique id");
    if (ranks == 1) return id;
    std::ofstream(path + ".new", std::ios::binary)
        .write(reinterpret_cast<const char*>(&id), sizeof id);
    if (std::rename((path + ".new").c_str(), path.c_str()) != 0) die("write", path.c_str());
    return id;
  }
  for (int i = 0; i < 600; ++i) {
    std::ifstream file(path, std::ios::binary);
    if (file && file.read(reinterpret_cast<char*>(&id), sizeof id)) return id;
    const timespec pause{0, 100'000'000};
    ::nanosleep(&pause, nullptr);
  }
  die("rank 0 did not come", path.c_str());
}

class Nccl final : public Exchange {
 public:
  Nccl(const Library& library, int rank, int ranks, const std::string& meeting)
      : library_(library), rank_(rank), ranks_(ranks) {
    const ncclUniqueId id = meet(library_, meeting, rank, ranks);
    check(library_.comm_init_rank(&communicator_, ranks, id, rank), "initialise NCCL");
    must(cudaStreamCreate(&stream_), "create a stream");
    must(cudaEventCreate(&begin_), "create an event");
    must(cudaEventCreate(&end_), "create an event");
    must(cudaMalloc(reinterpret_cast<void**>(&scalar_), sizeof(double)), "allocate memory");
  }
  [[nodiscard]] std::string name() const override {
    int device = 0;
    int version = 0;
    cudaDeviceProp properties{};
    must(cudaGetDevice(&device), "ask for the device");
    must(cudaGetDeviceProperties(&properties, device), "ask for the device's name");
    library_.version(&version);
    return std::string(properties.name) + ", NCCL " + std::to_string(version);
  }
  [[nodiscard]] int ranks() const override { return ranks_; }
  [[nodiscard]] int rank() const override { return rank_; }

  double run(Collective collective, std::size_t count, int warm_up, int iterations,
             std::size_t& wrong) override {
    const std::size_t received =
        collective == Collective::all_gather ? count * static_cast<std::size_t>(ranks_) : count;
    float* in = nullptr;
    float* out = nullptr;
    must(cudaMalloc(reinterpret_cast<void**>(&in), count * sizeof(float)), "allocate memory");
    must(cudaMalloc(reinterpret_cast<void**>(&out), received * sizeof(float)), "allocate memory");
    std::vector<float> host(count);
    for (std::size_t i = 0; i < count; ++i) host[i] = given(rank_, i);
    must(cudaMemcpy(in, host.data(), count * sizeof(float), cudaMemcpyHostToDevice), "fill memory");
    must(cudaMemset(out, 0xff, received * sizeof(float)), "fill memory");
    for (int i = 0; i < warm_up; ++i) once(collective, in, out, count);
    must(cudaStreamSynchronize(stream_), "wait");
    must(cudaEventRecord(begin_, stream_), "record an event");
    for (int i = 0; i < iterations; ++i) once(collective, in, out, count);
    must(cudaEventRecord(end_, stream_), "record an event");
    must(cudaEventSynchronize(end_), "wait");
    float milliseconds = 0;
    must(cudaEventElapsedTime(&milliseconds, begin_, end_), "read the time");
    host.resize(received);
    must(cudaMemcpy(host.data(), out, received * sizeof(float), cudaMemcpyDeviceToHost),
         "fetch the result");
    std::size_t own_wrong = 0;
    for (std::size_t i = 0; i < received; ++i)
      own_wrong += host[i] != expected(collective, rank_, ranks_, i, count) ? 1 : 0;
    must(cudaFree(in), "free memory");
    must(cudaFree(out), "free memory");
    wrong = static_cast<std::size_t>(over_ranks(static_cast<double>(own_wrong)));
    return over_ranks(milliseconds / 1e3 / iterations) / ranks_;
  }

 private:
  void check(ncclResult_t result, const char* what) const {
    if (result != ncclSuccess) die(what, library_.error_string(result));
  }
  void once(Collective collective, const float* in, float* out, std::size_t count) {
    switch (collective) {
      case Collective::all_reduce:
        check(library_.all_reduce(in, out, count, ncclFloat, ncclSum, communicator_, stream_),
              "all-reduce");
        break;
      case Collective::all_gather:
        check(library_.all_gather(in, out, count, ncclFloat, communicator_, stream_), "all-gather");
        break;
      case Collective::broadcast:
        check(library_.broadcast(in, out, count, ncclFloat, 0, communicator_, stream_),
              "broadcast");
        break;
      case Collective::send_recv:
        check(library_.group_start(), "send and receive");
        check(library_.send(in, count, ncclFloat, (rank_ + 1) % ranks_, communicator_, stream_),
              "send");
        check(library_.recv(out, count, ncclFloat, (rank_ + ranks_ - 1) % ranks_, communicator_,
                            stream_),
              "receive");
        check(library_.group_end(), "send and receive");
        break;
    }
  }
  double over_ranks(double own) {
    must(cudaMemcpy(scalar_, &own, sizeof own, cudaMemcpyHostToDevice), "send a number");
    check(library_.all_reduce(scalar_, scalar_, 1, ncclDouble, ncclSum, communicator_, stream_),
          "sum over ranks");
    must(cudaStreamSynchronize(stream_), "wait");
    must(cudaMemcpy(&own, scalar_, sizeof own, cudaMemcpyDeviceToHost), "fetch a number");
    return own;
  }

  Library library_;
  int rank_, ranks_;
  ncclComm_t communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  double* scalar_ = nullptr;
};

}  // namespace

std::unique_ptr<Exchange> nccl(const std::string& file, const std::string& meeting,
                               std::string& why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    why = std::string("no GPU: ") +
          (error == cudaSuccess ? "CUDA sees none" : cudaGetErrorString(error));
    return nullptr;
  }
  must(cudaSetDevice(number_of("LOCAL_RANK", "SLURM_LOCALID", 0) % count), "choose a GPU");
  Library library{};
  if (!library.load(file, why)) return nullptr;
  return std::make_unique<Nccl>(library, number_of("RANK", "SLURM_PROCID", 0),
                                number_of("WORLD_SIZE", "SLURM_NTASKS", 1), meeting);
}

}  // namespace spc::bench
