// DeviceMemory: what a communicator needs from the accelerator that holds its rank's tensors,
// without LibTorch's types. [any-thread]; the calling thread's stream is the one that LibTorch's
// operations on this thread use.
#pragma once

#include <cstddef>
#include <memory>

namespace coupler {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual int index() const = 0;  // among the devices that this process sees
  // Whether it is CUDA memory, which backends may take directly; other memory goes through the
  // host's.
  virtual bool is_cuda() const = 0;
  // The calling thread's stream, as a backend knows it (cudaStream_t).
  virtual void* stream() const = 0;

  // Host memory with fast copies to and from the device. It may be released at any time: before it
  // is reused, copies from it are waited for.
  virtual std::shared_ptr<void> host_buffer(size_t bytes) const = 0;
  // On return, work that the calling thread's stream was given before is included in the copy.
  virtual void copy_to_host(void* host, const void* device, size_t bytes) const = 0;
  // These two are queued on the calling thread's stream. host: from host_buffer().
  virtual void copy_from_host(void* device, const std::shared_ptr<void>& host,
                              size_t bytes) const = 0;
  virtual void copy(void* to, const void* from, size_t bytes) const = 0;
};

}  // namespace coupler
