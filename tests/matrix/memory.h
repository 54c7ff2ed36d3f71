// Memory of the matrix's buffers: host memory, or pinned memory if the backend takes CUDA memory
// only; the host and every GPU see pinned memory at the same address. Call use_cuda_memory() and
// use_memory_of() before allocating the first buffer; the rest is [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace coupler::matrix {

// The backend must have loaded the CUDA runtime already; throws std::runtime_error otherwise.
void use_cuda_memory();
db_memory memory_kind();

// From now on, memory is what `give` returns; null: host memory as before.
void use_memory_of(std::function<std::shared_ptr<void>(size_t bytes)> give);

void* allocate(size_t bytes);  // aligned to at least 64 bytes; throws std::bad_alloc
void deallocate(void* memory);

template <typename T>
struct Allocator {
  using value_type = T;
  Allocator() = default;
  template <typename Other>
  Allocator(const Allocator<Other>&) {}  // NOLINT(google-explicit-constructor): of every allocator
  T* allocate(size_t count) { return static_cast<T*>(matrix::allocate(count * sizeof(T))); }
  void deallocate(T* memory, size_t) { matrix::deallocate(memory); }
  template <typename Other>
  bool operator==(const Allocator<Other>&) const {
    return true;
  }
};

template <typename T>
using Values = std::vector<T, Allocator<T>>;

}  // namespace coupler::matrix
