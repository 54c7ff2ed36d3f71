// The one place that gives memory for what ranks send again and again: flat gradients, shards,
// gradients in flight. If the backend of the communicator that sends it has memory that its peers
// reach (Communicator::peer_memory), it is there and need not be copied to be sent; else it is
// LibTorch's. Results are the same. The memory outlives the communicator. [any-thread]
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace coupler::comm {
class Communicator;
}

namespace coupler::residency {

// Less than this is copied faster than ranks synchronize once more.
constexpr size_t kLeastPeerBytes = size_t{64} << 10;

// Zeroed host memory that the peers of `sends` reach; null: there is none for it. There is none for
// a null `sends`, for fewer bytes, or with a memory limit, by which the peers' memory would count
// as this process's.
std::shared_ptr<void> peer_memory(comm::Communicator* sends, size_t bytes);

// [numel] zeros.
at::Tensor zeros_to_send(comm::Communicator* sends, int64_t numel,
                         const at::TensorOptions& options);

}  // namespace coupler::residency
