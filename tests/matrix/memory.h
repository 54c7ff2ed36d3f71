// Where the buffers of the matrix lie: host memory, or, where the backend takes CUDA memory only,
// pinned memory, which the host and every GPU see at one address. use_cuda_memory() before the
// first buffer is made; the rest is [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <cstddef>
#include <vector>

namespace coupler::matrix {

// The backend has opened the CUDA runtime already. Throws where it has not.
void use_cuda_memory();
db_memory memory_kind();

void* allocate(size_t bytes);  // aligned to 64 bytes at least; throws std::bad_alloc
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
