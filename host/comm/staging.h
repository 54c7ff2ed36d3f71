// Operations on a device's memory where the backend does not take it: through host memory. Pure
// data and functions; the thread rules are DeviceMemory's.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>
#include <memory>

#include "comm/device_memory.h"

namespace coupler {

// How many elements an operation reads and writes on this rank; 0 where its pointer is ignored.
struct OperationExtent {
  uint64_t send = 0, recv = 0;
};
OperationExtent extent_of(const db_op& op, int rank, int world);

// One operation on its way through host memory.
class Staging {
 public:
  // Waits until the device is done with what it is to send, and copies that.
  Staging(const DeviceMemory& device, const db_op& op, int rank, int world);
  // The same operation on host memory; valid while this lives.
  const db_op& op() const { return staged_; }
  // It is complete: what it brought is on its way to the device, in stream order.
  void finish() const;

 private:
  const DeviceMemory& device_;
  void* const destination_;
  size_t received_ = 0;  // bytes
  std::shared_ptr<void> send_, recv_;
  db_op staged_;
};

// The operation in a world of one, in stream order; false where that is more than a copy.
bool run_alone(const DeviceMemory& device, const db_op& op);

}  // namespace coupler
