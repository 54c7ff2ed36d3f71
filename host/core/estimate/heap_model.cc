#include "estimate/heap_model.h"

#include <algorithm>

namespace coupler {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHeader = 16;  // before the address that the program gets
constexpr uint64_t kLeast = 32;   // minimum size of a block

uint64_t rounded(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

// Like glibc's memalign: looks for a block with room for any alignment shift, and frees what the
// shift leaves before and after it. So a freed block is too small for another of its own size,
// unless it was merged with a neighbor.
uint64_t HeapModel::take(uint64_t bytes, HeapUse /*use*/) {
  const uint64_t size = std::max(rounded(bytes + kHeader / 2, kHeader), kLeast);
  const uint64_t need = size + kTensorAlignment + kLeast;
  const auto fits = free_.lower_bound({need, 0});
  if (fits != free_.end()) {
    const uint64_t begin = fits->second;
    const auto found = blocks_.find(begin);
    const Block block = found->second;
    forget_free(found);
    blocks_.erase(found);
    return place(begin, block.size, size, block.touched);
  }
  if (bytes >= kMapped && top_ + need > end_) {
    const uint64_t address = next_mapping_++;
    mappings_[address] = rounded(bytes + kHeader, kPage);
    mapped_ += mappings_[address];
    return address;
  }
  const uint64_t address = top_;
  top_ += need;
  end_ = std::max(end_, top_);
  return place(address, need, size, need);
}

// Places a block of `size` in the `room` bytes at `begin`, which are no longer in blocks_ or free_.
uint64_t HeapModel::place(uint64_t begin, uint64_t room, uint64_t size, uint64_t touched) {
  uint64_t address = rounded(begin + kHeader, kTensorAlignment) - kHeader;
  if (address != begin && address - begin < kLeast) address += kTensorAlignment;
  const uint64_t before = address - begin;
  uint64_t own = room - before;
  const uint64_t behind = own > size + kLeast ? own - size : 0;
  own -= behind;
  blocks_[address] = {.size = own, .free = false, .touched = 0};
  live_ += own;
  touched_end_ = std::max(touched_end_, address + own);
  if (behind > 0) {
    const uint64_t used = before + own;
    make_free(address + own, {behind, true, touched > used ? std::min(touched - used, behind) : 0});
  }
  if (before > 0) make_free(begin, {before, true, std::min(before, touched)});
  return address;
}

void HeapModel::give_back(uint64_t address) {
  if (const auto mapping = mappings_.find(address); mapping != mappings_.end()) {
    mapped_ -= mapping->second;
    mappings_.erase(mapping);
    return;
  }
  const uint64_t size = blocks_.at(address).size;
  live_ -= size;
  make_free(address, {size, true, size});
}

void HeapModel::forget_free(Blocks::iterator block) {
  free_.erase({block->second.size, block->first});
  touched_free_ -= block->second.touched;
}

// Merges the block with its free neighbors, and with the top if it borders on it.
void HeapModel::make_free(uint64_t address, Block block) {
  const auto next = blocks_.find(address + block.size);
  if (next != blocks_.end() && next->second.free) {
    forget_free(next);
    block.size += next->second.size;
    block.touched += next->second.touched;
    blocks_.erase(next);
  }
  auto here = blocks_.insert_or_assign(address, block).first;
  if (here != blocks_.begin()) {
    const auto before = std::prev(here);
    if (before->second.free) {
      forget_free(before);
      address = before->first;
      block.size += before->second.size;
      block.touched += before->second.touched;
      blocks_.erase(here);
      here = blocks_.insert_or_assign(address, block).first;
    }
  }
  if (address + block.size == top_) {
    if (touched_end_ < address) touched_end_ = address;
    top_ = address;
    blocks_.erase(here);
    return;
  }
  free_.emplace(block.size, address);
  touched_free_ += block.touched;
}

void HeapModel::trim() {
  for (auto& [address, block] : blocks_) {
    if (block.free) block.touched = 0;
  }
  touched_free_ = 0;
  end_ = touched_end_ = top_;
}

}  // namespace coupler
