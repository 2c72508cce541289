// In place of gpu.cu where there is no CUDA toolkit.
#include "device.hpp"

spc::bench::Device* spc::bench::gpu(int, std::string& why) {
  why = "built without the CUDA toolkit";
  return nullptr;
}
