// Operations on a device's memory through host memory, for a backend that does not take the
// device's. Plain data and functions; the threading rules are DeviceMemory's.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>
#include <memory>

#include "comm/device_memory.h"

namespace coupler {

// How many elements an operation reads and writes on this rank; 0 if its pointer is ignored.
struct OperationExtent {
  uint64_t send = 0, recv = 0;
};
OperationExtent extent_of(const db_op& op, int rank, int world);

// One operation through host memory.
class Staging {
 public:
  // Waits until the device has finished the data to send, and copies it.
  Staging(const DeviceMemory& device, const db_op& op, int rank, int world);
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

}  // namespace coupler
