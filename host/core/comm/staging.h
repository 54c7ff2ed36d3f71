// Operations on a device's memory through host memory, for a backend that does not take the
// device's. Plain data and functions; the threading rules are DeviceMemory's.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace coupler::comm {

// DeviceMemory: what a communicator needs from the accelerator that holds its rank's tensors,
// without LibTorch's types. [any-thread]; the calling thread's stream is the one that LibTorch's
// operations on this thread use.
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

// How many elements an operation reads and writes on this rank; 0 if its pointer is ignored.
struct OperationExtent {
  uint64_t send = 0, recv = 0;
};
OperationExtent extent_of(const db_op& op, int rank, int world_size);

// One operation through host memory.
class Staging {
 public:
  // Waits until the device has finished the data to send, and copies it.
  Staging(const DeviceMemory& device, const db_op& op, int rank, int world_size);
  // The same operation on host memory; valid while this lives.
  const db_op& op() const { return staged_; }
  // After the operation: copies the received data to the device, in stream order.
  void finish() const;

 private:
  const DeviceMemory& device_;
  void* const destination_;
  size_t received_ = 0;  // bytes
  std::shared_ptr<void> send_, recv_;
  db_op staged_;
};

// Performs the operation in a world of one, in stream order; false if it is more than a copy.
bool run_alone(const DeviceMemory& device, const db_op& op);

}  // namespace coupler::comm
