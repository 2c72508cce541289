// The GPU implementation. cudart is linked statically: the program needs only libcuda, which comes
// with the driver.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "arithmetic.hpp"
#include "device.hpp"

namespace spc::bench {
namespace {

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "bench-cuda: %s: %s (%d)\n", what, cudaGetErrorString(error), static_cast<int>(error));
  std::exit(1);
}

/// Memory on the device, or (pinned) on the host.
template <typename T>
class Memory {
 public:
  enum class Where { device, pinned };
  explicit Memory(std::size_t count, Where where = Where::device) : where_(where) {
    const std::size_t bytes = count * sizeof(T);
    must(where == Where::device ? cudaMalloc(&data_, bytes) : cudaMallocHost(&data_, bytes), "allocate memory");
  }
  ~Memory() { where_ == Where::device ? cudaFree(data_) : cudaFreeHost(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  T* get() { return static_cast<T*>(data_); }

 private:
  void* data_ = nullptr;
  Where where_;
};

/// Measures seconds between two points of the default stream with the device's clock.
class Stopwatch {
 public:
  Stopwatch() {
    must(cudaEventCreate(&begin_), "create an event");
    must(cudaEventCreate(&end_), "create an event");
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void start() { must(cudaEventRecord(begin_), "record an event"); }
  double stop() {
    must(cudaEventRecord(end_), "record an event");
    must(cudaEventSynchronize(end_), "wait for the device");
    float milliseconds = 0;
    must(cudaEventElapsedTime(&milliseconds, begin_, end_), "read the time");
    return milliseconds / 1e3;
  }

 private:
  cudaEvent_t begin_, end_;
};

constexpr int kBlock = 256;

template <typename Real>
__global__ void place_bodies(Body<Real>* bodies, unsigned long long count) {
  const unsigned long long i = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
  if (i < count) bodies[i] = body_at<Real>(i);
}

/// One thread per body. The others are read through shared memory, one block at a time. `count` is
/// a multiple of the block size.
template <typename Real>
__global__ void all_forces(const Body<Real>* bodies, Force<Real>* forces, unsigned long long count, Real softening2) {
  __shared__ Body<Real> tile[kBlock];
  const unsigned long long own = blockIdx.x * static_cast<unsigned long long>(kBlock) + threadIdx.x;
  const Body<Real> body = bodies[own];
  Real x = 0, y = 0, z = 0;
  for (unsigned long long first = 0; first < count; first += kBlock) {
    tile[threadIdx.x] = bodies[first + threadIdx.x];
    __syncthreads();
    Force<Real> force{x, y, z};
#pragma unroll 32
    for (int i = 0; i < kBlock; ++i) add_force(force, body, tile[i], softening2);
    x = force.x;
    y = force.y;
    z = force.z;
    __syncthreads();
  }
  forces[own] = Force<Real>{x, y, z};
}

__global__ void place_summands(double* values, unsigned long long first, unsigned long long count) {
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x; i < count; i += step) {
    values[i] = summand(first + i);
  }
}

/// Writes one partial sum per block.
__global__ void add_up(const double* values, unsigned long long count, double* partial) {
  __shared__ double warps[32];
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  double sum = 0;
  for (unsigned long long i = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x; i < count; i += step)
    sum += values[i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffU, sum, offset);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffU, sum, offset);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
  }
}

class Gpu final : public Device {
 public:
  [[nodiscard]] std::string name() const override {
    int device = 0;
    cudaDeviceProp properties{};
    must(cudaGetDevice(&device), "ask for the device");
    must(cudaGetDeviceProperties(&properties, device), "ask for the device's name");
    return properties.name;
  }
  double nbody(std::uint64_t bodies, int iterations, bool fp64) override {
    return fp64 ? run_nbody<double>(bodies, iterations) : run_nbody<float>(bodies, iterations);
  }
  [[nodiscard]] const std::vector<Force<double>>& first_forces() const override { return forces_; }
  std::vector<CopyRate> copies(std::size_t bytes, int repeats) override;
  void fill(std::uint64_t first, std::uint64_t count) override {
    delete values_;
    values_ = new Memory<double>(count);
    count_ = count;
    place_summands<<<kBlocks, kBlock>>>(values_->get(), first, count);
    must(cudaDeviceSynchronize(), "fill memory");
  }
  double sum() override {
    add_up<<<kBlocks, kBlock>>>(values_->get(), count_, partial().get());
    must(cudaMemcpy(host_, partial().get(), sizeof host_, cudaMemcpyDeviceToHost), "fetch the sums");
    double sum = 0;
    for (const double one : host_) sum += one;
    return sum;
  }

 private:
  static constexpr int kBlocks = 1024;
  template <typename Real>
  double run_nbody(std::uint64_t bodies, int iterations);
  Memory<double>& partial() {
    static Memory<double> memory(kBlocks);
    return memory;
  }

  std::vector<Force<double>> forces_;
  Memory<double>* values_ = nullptr;
  std::uint64_t count_ = 0;
  double host_[kBlocks] = {};
};

template <typename Real>
double Gpu::run_nbody(std::uint64_t bodies, int iterations) {
  Memory<Body<Real>> all(bodies);
  Memory<Force<Real>> forces(bodies);
  const auto blocks = static_cast<unsigned>(bodies / kBlock);
  place_bodies<<<blocks, kBlock>>>(all.get(), bodies);
  const auto step = [&] { all_forces<<<blocks, kBlock>>>(all.get(), forces.get(), bodies, static_cast<Real>(kSoftening2)); };
  step();
  must(cudaDeviceSynchronize(), "compute forces");
  Stopwatch watch;
  watch.start();
  for (int i = 0; i < iterations; ++i) step();
  const double seconds = watch.stop();
  must(cudaGetLastError(), "compute forces");
  std::vector<Force<Real>> first(std::min<std::uint64_t>(bodies, kCheckedBodies));
  must(cudaMemcpy(first.data(), forces.get(), first.size() * sizeof(Force<Real>), cudaMemcpyDeviceToHost), "fetch forces");
  forces_.clear();
  for (const Force<Real>& force : first) forces_.push_back({double(force.x), double(force.y), double(force.z)});
  return seconds;
}

std::vector<CopyRate> Gpu::copies(std::size_t bytes, int repeats) {
  using Bytes = Memory<unsigned char>;
  Bytes pinned(bytes, Bytes::Where::pinned);
  std::vector<unsigned char> pageable(bytes);
  Bytes device(bytes);
  Bytes other(bytes);
  std::vector<CopyRate> rates;
  const auto measure = [&](const char* name, void* to, const void* from, cudaMemcpyKind kind, int moved) {
    must(cudaMemcpy(to, from, bytes, kind), name);  // the first copy touches the pages
    Stopwatch watch;
    watch.start();
    for (int i = 0; i < repeats; ++i) must(cudaMemcpyAsync(to, from, bytes, kind), name);
    rates.push_back({name, gb_per_second(bytes * static_cast<std::size_t>(repeats), watch.stop(), moved), true});
  };
  const auto paint = [&](unsigned char* at, unsigned seed) {
    for (std::size_t i = 0; i < bytes; ++i) at[i] = static_cast<unsigned char>((i * 2654435761U + seed) >> 8);
  };
  // Copy the pattern back from each direction and compare it.
  std::vector<unsigned char> expected(bytes);
  for (const bool is_pinned : {true, false}) {
    unsigned char* host = is_pinned ? pinned.get() : pageable.data();
    paint(expected.data(), is_pinned ? 1 : 2);
    std::memcpy(host, expected.data(), bytes);
    measure(is_pinned ? "h2d.pinned" : "h2d.pageable", device.get(), host, cudaMemcpyHostToDevice, 1);
    if (is_pinned) measure("d2d", other.get(), device.get(), cudaMemcpyDeviceToDevice, 2);
    std::memset(host, 0, bytes);
    measure(is_pinned ? "d2h.pinned" : "d2h.pageable", host, is_pinned ? other.get() : device.get(), cudaMemcpyDeviceToHost, 1);
    const bool right = std::memcmp(host, expected.data(), bytes) == 0;
    for (std::size_t i = is_pinned ? 0 : 3; i < rates.size(); ++i) rates[i].right = right;
  }
  return rates;
}

}  // namespace

Device* gpu(int local_rank, std::string& why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    why = error == cudaSuccess ? "CUDA sees no GPU"
                               : cudaGetErrorString(error) + (" (" + std::to_string(static_cast<int>(error)) + ")");
    return nullptr;
  }
  must(cudaSetDevice(local_rank % count), "choose a GPU");
  static Gpu only;
  return &only;
}

}  // namespace spc::bench
