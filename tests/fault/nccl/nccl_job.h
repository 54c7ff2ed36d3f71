// Shared by the tests of nccl: jobs over the double, and access to its CUDA runtime. For the ranks'
// main threads.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "ranks/ranks.h"

namespace backend_test {

inline Job nccl_job(int32_t size, const std::string& fault = "") {
  Job job;
  job.size = size;
  job.memory = DB_MEMORY_CUDA;
  if (!fault.empty()) job.environment.emplace_back("NCCL_DOUBLE_FAULT", fault);
  return job;
}

inline bool contains(const Error& error, const std::string& text) {
  return std::string(error.text.data()).find(text) != std::string::npos;
}

// A function of the CUDA double, which the backend has already opened.
template <typename Function>
Function* cuda_function(const char* name) {
  void* const library = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
  return library != nullptr ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
}

}  // namespace backend_test
