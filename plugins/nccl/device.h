// The GPU of a rank, and the calling thread's current device. [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <string>

#include "common/error.h"

namespace db::nccl {

// *device: the device that the host names; otherwise the one with this rank's number on its
// machine, or the only visible one. Fewer devices than ranks are an error.
Failure choose_device(const db_communicator_params& params, int* device);

// The device's PCI bus address: equal for two ranks that were given the same device.
Failure bus_address(int device, std::string* address);

// Makes device current for the calling thread during its lifetime.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = -1;  // -1: device was already current
};

}  // namespace db::nccl
