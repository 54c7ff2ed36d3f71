// Which stream does what, as logged by the accelerator's double.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <test_device.h>

#include <thread>

#include "device/device_memory.h"
#include "residency/host_source.h"
#include "residency/residency.h"

namespace coupler::device {
namespace {

using Lines = std::vector<std::string>;

TEST(Streams, Cpu_HasNoMarks) {
  EXPECT_EQ(mark_stream(c10::kCPU), nullptr);
  wait_on_stream(nullptr, c10::kCPU);
  use_own_stream(c10::kCPU);
}

TEST(Streams, Mark_IsWaitedForByTheStreamOfWhoWaits) {
  const c10::Device device = testing::test_device(0);
  std::shared_ptr<c10::Event> mark;
  std::thread other([&] {
    use_own_stream(device);
    mark = mark_stream(device);
  });
  other.join();
  EXPECT_EQ(testing::streams_during([&] { wait_on_stream(mark, device); }), Lines{"0 waits for 1"});
}

TEST(TorchDeviceMemory, CopiesGoThereAndBack) {
  const TorchDeviceMemory memory(testing::test_device(1));
  EXPECT_EQ(memory.index(), 1);
  EXPECT_FALSE(memory.is_cuda());
  const at::Tensor there = at::arange(8, at::kFloat).to(testing::test_device(1));
  const at::Tensor other = at::zeros({8}, there.options());
  const auto host = memory.host_buffer(there.nbytes());
  memory.copy_to_host(host.get(), there.const_data_ptr(), there.nbytes());
  EXPECT_EQ(static_cast<const float*>(host.get())[7], 7.0F);
  memory.copy_from_host(other.mutable_data_ptr(), host, other.nbytes());
  EXPECT_TRUE(at::equal(other.cpu(), there.cpu()));
  other.zero_();
  memory.copy(other.mutable_data_ptr(), there.const_data_ptr(), other.nbytes());
  EXPECT_TRUE(at::equal(other.cpu(), there.cpu()));
}

// Prefetched values are used only after their arrival, on whichever stream.
TEST(Residency, OnADevice_UsesWaitForWhatWasFetchedAhead_Once) {
  const c10::Device device = testing::test_device(0);
  residency::BufferPool pool(device);
  auto source = std::make_unique<residency::HostSource>(device, /*pinned=*/true);
  for (int i = 0; i < 2; ++i) source->add(64);
  residency::Residency residency(
      std::move(source), pool,
      {.prefetch = 1, .live_bytes = 1 << 20, .shared = false, .in_order = true});
  for (int i = 0; i < 2; ++i) {
    auto unit = std::make_unique<residency::Unit>();
    unit->name = "unit " + std::to_string(i);
    unit->bytes = 64;
    residency.add(std::move(unit));
  }
  residency::Unit& first = *residency.units()[0];
  residency::Unit& second = *residency.units()[1];
  residency.use(first);
  residency::Residency::unpin(first);
  while (!second.resident.load()) std::this_thread::yield();
  const Lines lines = testing::streams_during([&] {
    for (int use = 0; use < 3; ++use) {
      residency.use(second);
      residency::Residency::unpin(second);
    }
  });
  EXPECT_EQ(lines, Lines{"0 waits for 1"});
}

}  // namespace
}  // namespace coupler::device
