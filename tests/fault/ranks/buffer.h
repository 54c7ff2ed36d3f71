// Buffer: the data of an operation, in the memory that the rank's job chooses (Job::allocate).
// Freed before the rank's communicator or after it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "ranks/ranks.h"

namespace backend_test {

template <class T>
class Buffer {
 public:
  Buffer(Rank& self, uint64_t count, T value = T()) : size_(count) {
    if (self.allocate && count > 0) memory_ = self.allocate(self, count * sizeof(T));
    if (memory_ == nullptr) memory_ = std::shared_ptr<T>(new T[count], std::default_delete<T[]>());
    std::fill(begin(), end(), value);
  }

  T* data() { return static_cast<T*>(memory_.get()); }
  uint64_t size() const { return size_; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  T& operator[](uint64_t i) { return data()[i]; }
  T& back() { return data()[size_ - 1]; }

 private:
  const uint64_t size_;
  std::shared_ptr<void> memory_;
};

}  // namespace backend_test
