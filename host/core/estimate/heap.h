// Heap: how much memory a process's heap takes for a sequence of allocations: a model of it, or the
// C library's own heap, whose blocks are allocated but never touched. One thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace coupler {

// LibTorch's alignment of host memory.
inline constexpr uint64_t kTensorAlignment = 64;

enum class HeapUse {
  kTensor,     // as LibTorch allocates
  kPool,       // as residency/buffer_pool.h does
  kPoolAside,  // likewise, but on another thread than the training thread, for which the C library
               // has a separate heap
};

class Heap {
 public:
  Heap() = default;
  virtual ~Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Returns an address for give_back().
  virtual uint64_t take(uint64_t bytes, HeapUse use) = 0;
  virtual void give_back(uint64_t address) = 0;
  // Returns free memory to the system.
  virtual void trim() = 0;
  // Sets how many bytes of small objects (tensor handles, graph nodes) exist now.
  virtual void set_objects(uint64_t bytes) = 0;

  virtual uint64_t resident() const = 0;
  virtual uint64_t live() const = 0;
};

// HeapModel: how much memory the C library's heap keeps for a sequence of allocations: best fit,
// free neighbors merged, nothing returned before trim(). As in a process set up for training
// (accelerator/accelerator.h), a block of kMapped bytes or more is mapped separately if no free
// block in the heap holds it. One thread.
class HeapModel final : public Heap {
 public:
  static constexpr uint64_t kMapped = uint64_t{32} << 20;

  uint64_t take(uint64_t bytes, HeapUse use = HeapUse::kTensor) override;
  void give_back(uint64_t address) override;
  void trim() override;
  // Small objects are part of the base here.
  void set_objects(uint64_t /*bytes*/) override {}

  uint64_t resident() const override {
    return live_ + touched_free_ + (touched_end_ - top_) + mapped_;
  }
  uint64_t live() const override { return live_ + mapped_; }

 private:
  struct Block {
    uint64_t size = 0;
    bool free = false;
    uint64_t touched = 0;  // bytes, if free
  };
  using Blocks = std::map<uint64_t, Block>;
  uint64_t place(uint64_t begin, uint64_t room, uint64_t size, uint64_t touched);
  void make_free(uint64_t address, Block block);
  void forget_free(Blocks::iterator block);

  Blocks blocks_;                                 // by address, without gaps below top_
  std::set<std::pair<uint64_t, uint64_t>> free_;  // size, address
  std::map<uint64_t, uint64_t> mappings_;         // bytes by address
  uint64_t top_ = 0;                              // everything from here on is free
  uint64_t end_ = 0, touched_end_ = 0;  // ends of what the system gave and of what was used
  uint64_t live_ = 0, touched_free_ = 0, mapped_ = 0;
  uint64_t next_mapping_ = uint64_t{1} << 62;
};

// ProcessHeap: this process's own heap as a Heap. Blocks are allocated as LibTorch allocates them
// but never touched, so the C library places and fragments them as it would in training. Changes
// the process's heap permanently: use it only in a process created for this.

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
