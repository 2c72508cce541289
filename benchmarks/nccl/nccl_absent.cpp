// Replacement of nccl.cpp without a CUDA toolkit with NCCL.
#include "exchange.hpp"

std::unique_ptr<spc::bench::Exchange> spc::bench::nccl(const std::string&, const std::string&,
                                                       std::string& why) {
  why = "built without the CUDA toolkit or without nccl.h";
  return nullptr;
}
