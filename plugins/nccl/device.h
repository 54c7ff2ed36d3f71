// The GPU of a rank, and the calling thread's current device. [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <string>

#include "common/error.h"

namespace db::nccl {

// *device: the one that the host names; else the one with this rank's number on its machine, or the
// only one there is. Fewer devices than ranks are an error.
Failure choose_device(const db_communicator_params& params, int* device);

// The device's address on the machine's bus: equal for two ranks that were given the same one.
Failure bus_address(int device, std::string* address);

// Makes device current for the calling thread as long as it lives.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = -1;  // -1: it was current already
};

}  // namespace db::nccl
