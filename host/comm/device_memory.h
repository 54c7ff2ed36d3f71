// DeviceMemory: what a communicator needs of the accelerator in whose memory its rank has tensors,
// without LibTorch's types. [any-thread]; the calling thread's stream is the one that LibTorch's
// operations on this thread go to.
#pragma once

#include <cstddef>
#include <memory>

namespace coupler {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual int index() const = 0;  // among the devices that this process sees
  // Whether it is CUDA memory, which backends may take as it is; other memory goes through the
  // host's.
  virtual bool is_cuda() const = 0;
  // The calling thread's stream, as a backend knows it (cudaStream_t).
  virtual void* stream() const = 0;

  // Host memory that copies to and from the device are fast with. What is copied from it is
  // waited for before it is used again, so it may be given back at any time.
  virtual std::shared_ptr<void> host_buffer(size_t bytes) const = 0;
  // What the calling thread's stream was given before is in it when this returns.
  virtual void copy_to_host(void* host, const void* device, size_t bytes) const = 0;
  // These two go to the calling thread's stream. host: of host_buffer().
  virtual void copy_from_host(void* device, const std::shared_ptr<void>& host,
                              size_t bytes) const = 0;
  virtual void copy(void* to, const void* from, size_t bytes) const = 0;
};

}  // namespace coupler
