// The double's libcudart.so.13: the entry points of the CUDA runtime that the nccl backend and the
// matrix call.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stream.h"

#pragma GCC visibility push(default)

namespace {

constexpr int kRuntime = 13000;

int64_t number(const char* variable, int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atoll(text) : otherwise;
}

// The numbers of the GPUs that this process may use.
std::vector<int> visible_devices() {
  const int all = static_cast<int>(number("CUDA_DOUBLE_DEVICES", 8));
  std::vector<int> devices;
  const char* const given = std::getenv("CUDA_VISIBLE_DEVICES");
  if (given == nullptr) {
    for (int i = 0; i < all; ++i) devices.push_back(i);
    return devices;
  }
  for (std::string list = given; !list.empty();) {
    const int device = std::atoi(list.c_str());
    if (device < 0 || device >= all) break;
    devices.push_back(device);
    list.erase(0, std::min(list.find(','), list.size() - 1) + 1);
  }
  return devices;
}

thread_local int current_device = 0;

// An event: how often it was recorded, and how many of these recordings a stream has reached.
struct Event {
  std::mutex mutex;
  std::condition_variable reached;
  uint64_t recorded = 0, completed = 0;
};
using Shared = std::shared_ptr<Event>;

Shared& event_of(cudaEvent_t event) { return *reinterpret_cast<Shared*>(event); }

}  // namespace

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  *version = static_cast<int>(number("CUDA_DOUBLE_DRIVER", kRuntime));
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kRuntime;
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the double";
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (number("CUDA_DOUBLE_DRIVER", kRuntime) < kRuntime) return cudaErrorInsufficientDriver;
  *count = static_cast<int>(visible_devices().size());
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || static_cast<size_t>(device) >= visible_devices().size())
    return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  const std::vector<int> devices = visible_devices();
  if (static_cast<size_t>(device) >= devices.size()) return cudaErrorInvalidDevice;
  std::snprintf(text, static_cast<size_t>(size), "0000:%02x:00.0",
                static_cast<unsigned>(devices[static_cast<size_t>(device)] + 0x10));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *total = size_t{1} << 30;
  *free_bytes = static_cast<size_t>(number("CUDA_DOUBLE_MEMORY", static_cast<int64_t>(*total)));
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** memory, size_t size, unsigned int) {
  *memory = std::aligned_alloc(256, (std::max<size_t>(size, 1) + 255) / 256 * 256);
  return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** memory, size_t size, cudaStream_t) {
  if (static_cast<int64_t>(size) > number("CUDA_DOUBLE_MEMORY", INT64_MAX))
    return cudaErrorMemoryAllocation;
  return cudaHostAlloc(memory, size, 0);
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  cuda_double::enqueue(stream, [memory] { std::free(memory); });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind,
                            cudaStream_t stream) {
  cuda_double::enqueue(stream, [=] { std::memcpy(to, from, size); });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t size, cudaStream_t stream) {
  cuda_double::enqueue(stream, [=] { std::memset(memory, value, size); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  *stream = cuda_double::make_stream();
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cuda_double::end_stream(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned int) {
  const Shared event = event_of(handle);
  std::unique_lock lock(event->mutex);
  const uint64_t recording = event->recorded;
  if (event->completed >= recording) return cudaSuccess;
  lock.unlock();
  cuda_double::enqueue(stream, [event, recording] {
    std::unique_lock inner(event->mutex);
    event->reached.wait(inner, [&] { return event->completed >= recording; });
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  *event = reinterpret_cast<cudaEvent_t>(new Shared(std::make_shared<Event>()));
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &event_of(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  const Shared event = event_of(handle);
  uint64_t recording = 0;
  {
    const std::lock_guard lock(event->mutex);
    recording = ++event->recorded;
  }
  cuda_double::enqueue(stream, [event, recording] {
    const std::lock_guard lock(event->mutex);
    event->completed = std::max(event->completed, recording);
    event->reached.notify_all();
  });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  Event& event = *event_of(handle);
  const std::lock_guard lock(event.mutex);
  return event.completed >= event.recorded ? cudaSuccess : cudaErrorNotReady;
}

}  // extern "C"

#pragma GCC visibility pop
