#include <coupler/device_map.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/file_descriptor.h"

namespace coupler {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr size_t kBlock = size_t{1} << 20;    // size and alignment of a disk request
constexpr size_t kMemory = size_t{64} << 20;  // more than a core's share of caches
constexpr size_t kFile = size_t{32} << 20;
constexpr Seconds kEach{0.04};  // for each measurement

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<uint64_t[], Free>;

Memory memory_of(size_t bytes) {
  void* memory = std::aligned_alloc(kBlock, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 1, bytes);  // so that pages are allocated
  return Memory(static_cast<uint64_t*>(memory));
}

// The rate of a function that processes `bytes` bytes per call.
template <class Function>
double rate_of(size_t bytes, const Function& function) {
  const auto begin = Clock::now();
  double handled = 0;
  Seconds passed{0};
  do {
    function();
    handled += static_cast<double>(bytes);
    passed = Clock::now() - begin;
  } while (passed < kEach);
  return handled / passed.count();
}

uint64_t sum_of(const uint64_t* words, size_t count) {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += words[i];
  return sum;
}

// All cores read at once, each its own part.
double reading_rate(const Memory& memory) {
  const size_t threads = std::clamp(std::thread::hardware_concurrency(), 1U, 16U);
  const size_t words = kMemory / sizeof(uint64_t) / threads;
  std::vector<double> rates(threads);
  std::vector<std::thread> workers;
  for (size_t i = 0; i < threads; ++i)
    workers.emplace_back([&, i] {
      volatile uint64_t sum = 0;
      rates[i] =
          rate_of(words * sizeof(uint64_t), [&] { sum = sum_of(memory.get() + i * words, words); });
    });
  double total = 0;
  for (size_t i = 0; i < threads; ++i) {
    workers[i].join();
    total += rates[i];
  }
  return total;
}

double copying_rate(const Memory& memory) {
  const size_t half = kMemory / 2;
  char* bytes = reinterpret_cast<char*>(memory.get());
  return rate_of(half, [&] {
    std::memcpy(bytes, bytes + half, half);
    bytes[half] = static_cast<char>(bytes[0] + 1);
  });
}

[[noreturn]] void fail_file(const std::string& folder, const char* what) {
  throw Error(ErrorCode::kIo,
              fmt::format("measure_rates: {} a file in '{}': {}", what, folder,
                          std::generic_category().message(errno)),
              {.subject = folder, .hint = "give a folder on the disk used for offloading"});
}

double disk_rate(const std::string& folder, const Memory& memory) {
  const UniqueFd file = open_unnamed(folder);
  if (!file) fail_file(folder, "cannot create");
  set_direct_io(file.get(), true);  // not the speed of the page cache, if the file system can
  char* bytes = reinterpret_cast<char*>(memory.get());
  size_t written = 0;
  const auto begin = Clock::now();
  for (; written < kFile && (written == 0 || Clock::now() - begin < kEach); written += kBlock)
    if (pwrite(file.get(), bytes, kBlock, static_cast<off_t>(written)) !=
        static_cast<ssize_t>(kBlock))
      fail_file(folder, "cannot write");
  size_t at = 0;
  return rate_of(kBlock, [&] {
    if (pread(file.get(), bytes, kBlock, static_cast<off_t>(at)) != static_cast<ssize_t>(kBlock))
      fail_file(folder, "cannot read");
    at = (at + kBlock) % written;
  });
}

}  // namespace

DeviceRates measure_rates(const std::string& folder) {
  const Memory memory = memory_of(kMemory);
  DeviceRates rates;
  rates.cpu_compute = reading_rate(memory);
  rates.cpu_to_accelerator = std::min(rates.cpu_to_accelerator, copying_rate(memory));
  rates.disk_to_cpu = disk_rate(folder, memory);
  return rates;
}

}  // namespace coupler
