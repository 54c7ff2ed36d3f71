// Tensors' memory on the CPU: its alignment, that the heap does not grow for it, who is told of it,
// and whose allocator is left alone.
#include "device/heap_allocator.h"

#include <ATen/Functions.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace coupler::device {
namespace {

// Leaves LibTorch's allocator as it was.
class HeapAllocatorTest : public ::testing::Test {
 protected:
  HeapAllocatorTest() { c10::SetCPUAllocator(c10::GetDefaultCPUAllocator()); }
  ~HeapAllocatorTest() override { c10::SetCPUAllocator(c10::GetDefaultCPUAllocator()); }
};

TEST_F(HeapAllocatorTest, EverySize_IsAlignedAndWhole) {
  std::vector<void*> blocks;
  for (const size_t bytes : {1, 15, 16, 63, 64, 65, 1000, 4096, 1 << 17, (2 << 20) + 1, 33 << 20}) {
    void* const memory = take_heap(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % c10::gAlignment, 0u) << bytes;
    EXPECT_GE(heap_size(memory), bytes);
    std::memset(memory, 1, bytes);
    blocks.push_back(memory);
  }
  for (void* const memory : blocks) free_heap(memory);
  EXPECT_EQ(take_heap(0), nullptr);
  free_heap(nullptr);
}

// LibTorch's own allocator fails this: a block that it freed is too small for the next one.
TEST_F(HeapAllocatorTest, FreedBlocks_FitAgain) {
  constexpr size_t kBytes = 64 << 10, kBlocks = 100;  // smaller than what is mapped
  std::vector<void*> blocks(kBlocks);
  std::vector<std::unique_ptr<char[]>> between(kBlocks);  // so that freed blocks are not joined
  const auto take = [&] {
    for (size_t i = 0; i < kBlocks; ++i) {
      blocks[i] = take_heap(kBytes);
      if (between[i] == nullptr) between[i] = std::make_unique<char[]>(2000);
    }
  };
  take();
  const size_t before = ::mallinfo2().arena;
  for (void* const memory : blocks) free_heap(memory);
  take();
  // The end of the heap may have gone back to the system and come again, a bit larger.
  EXPECT_LT(::mallinfo2().arena, before + kBlocks * kBytes / 10);
  for (void* const memory : blocks) free_heap(memory);
}

TEST_F(HeapAllocatorTest, MoreThanThereIs_ThrowsWithLibTorchsWords) {
  for (const size_t bytes : {SIZE_MAX / 2, SIZE_MAX}) {
    try {
      take_heap(bytes);
      FAIL() << "no error";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("DefaultCPUAllocator: can't allocate memory"),
                std::string::npos)
          << error.what();
    }
  }
}

TEST_F(HeapAllocatorTest, TensorsOfBothAllocators_GoOn) {
  at::Tensor earlier = at::ones({1000});
  use_heap_allocator();
  c10::Allocator* const installed = c10::GetCPUAllocator();
  EXPECT_NE(installed, c10::GetDefaultCPUAllocator());
  use_heap_allocator();
  EXPECT_EQ(c10::GetCPUAllocator(), installed);
  at::Tensor later = at::ones({1000});
  EXPECT_EQ(later.storage().allocator(), installed);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(later.const_data_ptr()) % c10::gAlignment, 0u);
  earlier.resize_({100'000}).fill_(1);  // by the allocator that it came from
  later.resize_({100'000}).fill_(1);
  EXPECT_TRUE(earlier.equal(later));
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());  // freed after their allocator was replaced
  void* const raw = installed->raw_allocate(100);
  installed->raw_deallocate(raw);
}

// Of a program: what it allocates is LibTorch's.
struct ProgramsAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

TEST_F(HeapAllocatorTest, ProgramsOwnAllocator_Stays) {
  ProgramsAllocator own;
  c10::SetCPUAllocator(&own);
  use_heap_allocator();
  EXPECT_EQ(c10::GetCPUAllocator(), &own);
}

struct Reports final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    sizes.push_back(bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::vector<int64_t> sizes;
};

TEST_F(HeapAllocatorTest, Profiler_SeesWhatIsTakenAndFreed) {
  use_heap_allocator();
  const auto reports = std::make_shared<Reports>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, reports);
    at::empty({1000});
  }
  EXPECT_EQ(reports->sizes, (std::vector<int64_t>{4000, -4000}));
}

}  // namespace
}  // namespace coupler::device
