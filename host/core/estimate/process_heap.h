// ProcessHeap: this process's own heap as a Heap. Blocks are allocated as LibTorch allocates them
// but never touched, so the C library places and fragments them as it would in training. Changes
// the process's heap permanently: use it only in a process created for this.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "estimate/heap.h"

namespace coupler {

// A thread that allocates on request.
class Helper {
 public:
  Helper();
  ~Helper();
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;
  void* take(uint64_t bytes);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t wanted_ = 0;  // bytes; 0: nothing
  void* given_ = nullptr;
  bool over_ = false;
  std::thread thread_;
};

class ProcessHeap final : public Heap {
 public:
  ProcessHeap();
  ~ProcessHeap() override;

  uint64_t take(uint64_t bytes, HeapUse use) override;
  void give_back(uint64_t address) override;
  void trim() override;
  void set_objects(uint64_t bytes) override;
  uint64_t resident() const override;
  uint64_t live() const override { return live_; }

 private:
  struct Taken {
    void* memory = nullptr;
    bool mapped = false;  // outside the heap
  };
  uint64_t free_bytes() const;
  void* take_aside(uint64_t bytes);

  uint64_t begin_ = 0;                         // of our part of the heap
  std::unordered_map<uint64_t, Taken> taken_;  // by address
  std::vector<void*> objects_;
  uint64_t object_bytes_ = 0, live_ = 0, mapped_bytes_ = 0;
  uint64_t trimmed_ = 0;  // free and untouched since trim()
  uint64_t aside_ = 0;    // of the other thread's heap
  Helper helper_;
};

}  // namespace coupler
