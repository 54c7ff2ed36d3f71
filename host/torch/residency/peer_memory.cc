#include "residency/peer_memory.h"

#include <ATen/Functions.h>

#include "comm/communicator.h"
#include "residency/buffer_pool.h"

namespace coupler::residency {

std::shared_ptr<void> peer_memory(comm::Communicator* sends, size_t bytes) {
  if (sends == nullptr || bytes < kLeastPeerBytes || MemoryBudget::of_process().on())
    return nullptr;
  return sends->peer_memory(bytes);
}

at::Tensor zeros_to_send(comm::Communicator* sends, int64_t numel,
                         const at::TensorOptions& options) {
  if (options.device().is_cpu()) {
    const size_t bytes = static_cast<size_t>(numel) * options.dtype().itemsize();
    if (const std::shared_ptr<void> memory = peer_memory(sends, bytes)) {
      return at::from_blob(
          memory.get(), {numel}, [memory](void*) {}, options);
    }
  }
  return at::zeros({numel}, options);
}

}  // namespace coupler::residency
