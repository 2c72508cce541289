// Replacement of gpu.cu without a CUDA toolkit.
#include "device.hpp"

spc::bench::Device* spc::bench::gpu(int, std::string& why) {
  why = "built without the CUDA toolkit";
  return nullptr;
}
