// ExtraMemory: the peak growth of this process's memory since construction. Used by one thread;
// with `anonymous`, its own thread samples memory every millisecond.
#pragma once

#include <atomic>
#include <thread>

namespace coupler::bench {

class ExtraMemory {
 public:
  // anonymous: counts anonymous memory, as sampled; otherwise all resident memory, as the kernel
  // records it.
  explicit ExtraMemory(bool anonymous);
  ~ExtraMemory() { stop(); }
  ExtraMemory(const ExtraMemory&) = delete;
  ExtraMemory& operator=(const ExtraMemory&) = delete;

  double mib();  // stops measuring

 private:
  void stop();

  const bool anonymous_;
  long before_ = 0;  // KiB, like all members
  std::atomic<long> highest_{0};
  std::atomic<bool> over_{false};
  std::thread watcher_;
};

}  // namespace coupler::bench
