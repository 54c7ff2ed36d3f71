// ExtraMemory: how far this process's memory has risen above what it was at the start. Used by one
// thread; with `anonymous` a thread of its own looks every millisecond.
#pragma once

#include <atomic>
#include <thread>

namespace coupler::bench {

class ExtraMemory {
 public:
  // anonymous: of what is no file's, as the thread sees it; else of all, as the kernel keeps it.
  explicit ExtraMemory(bool anonymous);
  ~ExtraMemory() { stop(); }
  ExtraMemory(const ExtraMemory&) = delete;
  ExtraMemory& operator=(const ExtraMemory&) = delete;

  double mib();  // ends it

 private:
  void stop();

  const bool anonymous_;
  long before_ = 0;  // KiB, as all
  std::atomic<long> highest_{0};
  std::atomic<bool> over_{false};
  std::thread watcher_;
};

}  // namespace coupler::bench
