#include "memory.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <utility>

namespace coupler::matrix {
namespace {

constexpr size_t kAlignment = 64;

// Functions of the CUDA runtime; null: host memory is used.
int (*host_alloc)(void**, size_t, unsigned int) = nullptr;
int (*free_host)(void*) = nullptr;

// What gives memory instead; empty: nothing does. Never destroyed: buffers may end late.
struct Given {
  std::mutex mutex;
  std::function<std::shared_ptr<void>(size_t)> give;
  std::map<void*, std::shared_ptr<void>> blocks;  // in use
};
Given& given() {
  static auto* const kGiven = new Given;
  return *kGiven;
}

}  // namespace

void use_cuda_memory() {
  void* library = nullptr;
  for (const char* name : {"libcudart.so.13", "libcudart.so.12"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  }
  if (library != nullptr) {
    host_alloc = reinterpret_cast<decltype(host_alloc)>(dlsym(library, "cudaHostAlloc"));
    free_host = reinterpret_cast<decltype(free_host)>(dlsym(library, "cudaFreeHost"));
  }
  if (host_alloc == nullptr || free_host == nullptr) {
    throw std::runtime_error("the backend needs CUDA memory, but no CUDA runtime is loaded");
  }
}

db_memory memory_kind() { return host_alloc != nullptr ? DB_MEMORY_CUDA : DB_MEMORY_HOST; }

void use_memory_of(std::function<std::shared_ptr<void>(size_t)> give) {
  const std::lock_guard lock(given().mutex);
  given().give = std::move(give);
}

void* allocate(size_t bytes) {
  void* memory = nullptr;
  {
    const std::lock_guard lock(given().mutex);
    const auto block = given().give ? given().give(std::max<size_t>(bytes, 1)) : nullptr;
    if (block != nullptr) return (given().blocks[block.get()] = block).get();
  }
  bytes = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  if (host_alloc == nullptr) {
    memory = std::aligned_alloc(kAlignment, bytes);
  } else if (host_alloc(&memory, bytes, 0) != 0) {
    memory = nullptr;
  }
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void deallocate(void* memory) {
  {
    const std::lock_guard lock(given().mutex);
    if (given().blocks.erase(memory) > 0) return;
  }
  if (free_host == nullptr) {
    std::free(memory);
  } else {
    free_host(memory);
  }
}

}  // namespace coupler::matrix
