// HeapModel: how much memory the C library's heap keeps for a row of allocations: best fit, free
// neighbours joined, nothing given back before trim(). As the process is set up for training
// (train/process_setup.h), blocks of kMapped bytes and more have pages of their own where no free
// room in the heap holds them. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace coupler {

class HeapModel {
 public:
  static constexpr uint64_t kMapped = uint64_t{32} << 20;

  // An address, to be given back. Aligned: as tensors are; else as small objects are.
  uint64_t take(uint64_t bytes, bool aligned = true);
  void give_back(uint64_t address);
  // What is free goes back to the system.
  void trim();

  uint64_t resident() const { return live_ + touched_free_ + (touched_end_ - top_) + mapped_; }
  uint64_t live() const { return live_ + mapped_; }

 private:
  struct Block {
    uint64_t size = 0;
    bool free = false;
    uint64_t touched = 0;  // of a free one
  };
  using Blocks = std::map<uint64_t, Block>;
  uint64_t place(uint64_t begin, uint64_t room, uint64_t size, uint64_t touched,
                 bool aligned);
  void make_free(uint64_t address, Block block);
  void forget_free(Blocks::iterator block);

  Blocks blocks_;                                   // by address, without gaps below top_
  std::set<std::pair<uint64_t, uint64_t>> free_;    // size, address
  std::map<uint64_t, uint64_t> mappings_;           // bytes by address
  uint64_t top_ = 0;                                // everything from here on is free
  uint64_t end_ = 0, touched_end_ = 0;              // of what the system gave, and of what was used
  uint64_t live_ = 0, touched_free_ = 0, mapped_ = 0;
  uint64_t next_mapping_ = uint64_t{1} << 62;
};

}  // namespace coupler
