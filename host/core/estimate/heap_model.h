// HeapModel: how much memory the C library's heap keeps for a sequence of allocations: best fit,
// free neighbors merged, nothing returned before trim(). As in a process set up for training
// (accelerator/process_setup.h), a block of kMapped bytes or more is mapped separately if no free
// block in the heap holds it. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "estimate/heap.h"

namespace coupler {

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

}  // namespace coupler
