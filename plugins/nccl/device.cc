#include "nccl/device.h"

#include <array>
#include <cstdlib>

#include "nccl/failures.h"
#include "nccl/library.h"

namespace db::nccl {
namespace {

std::string visible_devices() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible != nullptr ? std::string(" (CUDA_VISIBLE_DEVICES=") + visible + ")" : "";
}

}  // namespace

Failure choose_device(const db_communicator_params& params, int* device) {
  const int devices = libraries().devices;
  const bool told = params.device_index >= 0;
  *device = told ? params.device_index : params.local_rank;
  // A launcher may have made only its own GPU visible to each rank.
  if (!told && devices == 1) *device = 0;
  if (*device >= 0 && *device < devices) return {};
  return Failure::make(DB_ERR_INVALID_ARGUMENT,
                       "nccl: rank " + std::to_string(params.rank) + " needs CUDA device " +
                           std::to_string(*device) + ", but this process sees " +
                           std::to_string(devices) + visible_devices() +
                           ": fewer GPUs than ranks. Start at most " + std::to_string(devices) +
                           " processes on this machine, make more GPUs visible, or use gloo_cpu");
}

Failure bus_address(int device, std::string* address) {
  std::array<char, 64> text{};
  const cudaError_t error =
      cuda().DeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device);
  if (error != cudaSuccess)
    return cuda_failure(error, "getting the PCI address of CUDA device " + std::to_string(device));
  *address = text.data();
  return {};
}

OnDevice::OnDevice(int device) {
  int current = -1;
  if (cuda().GetDevice(&current) == cudaSuccess && current == device) return;
  before_ = current;
  cuda().SetDevice(device);
}

OnDevice::~OnDevice() {
  if (before_ >= 0) cuda().SetDevice(before_);
}

}  // namespace db::nccl
