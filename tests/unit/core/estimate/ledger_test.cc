#include "estimate/ledger.h"

#include <gtest/gtest.h>

namespace coupler {
namespace {

// A heap with free room: allocations add resident memory only beyond it.
class RoomyHeap : public Heap {
 public:
  explicit RoomyHeap(uint64_t free) : free_(free) {}
  uint64_t take(uint64_t bytes, HeapUse) override {
    live_ += bytes;
    return live_;
  }
  void give_back(uint64_t) override {}
  void trim() override {}
  void set_objects(uint64_t) override {}
  uint64_t resident() const override { return live_ > free_ ? live_ - free_ : 0; }
  uint64_t live() const override { return live_; }

 private:
  const uint64_t free_;
  uint64_t live_ = 0;
};

TEST(MemoryLedger, BlocksInRoomThatWasThere_LeaveNothingFree) {
  RoomyHeap heap(1000);
  MemoryLedger ledger(heap, 5000);
  ledger.take(Part::kParameters, 400);
  EXPECT_EQ(ledger.result().peak, 5000u);
  EXPECT_EQ(ledger.result().heap, 0u);
  ledger.take(Part::kActivations, 700);
  EXPECT_EQ(ledger.result().peak, 5100u);
  EXPECT_EQ(ledger.result().heap, 0u);
}

}  // namespace
}  // namespace coupler
