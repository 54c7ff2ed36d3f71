// Collectives over the leaves of nested structures: ranks agree first
// (accelerator/consistency_check.h), then leaves are sent, small ones together. Results are new
// contiguous tensors without gradients. Every Error is thrown on all ranks and leaves the
// communicator usable. Used by the training thread; collective.
#pragma once

#include <c10/core/Scalar.h>
#include <coupler/detail/loader.h>
#include <coupler/nested.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/communicator.h"

namespace coupler {

enum class ReduceOp;  // accelerator.h

std::vector<at::Tensor> gather_leaves(comm::Communicator& comm, const detail::NestedView& value);

// samples: which rows of this rank's leaves count; empty outside of a loop.
std::vector<at::Tensor> gather_own_rows(comm::Communicator& comm, const detail::NestedView& value,
                                        const std::optional<detail::BatchSamples>& samples);

std::vector<at::Tensor> reduce_leaves(comm::Communicator& comm, const detail::NestedView& value,
                                      ReduceOp reduction, double scale);

std::vector<at::Tensor> broadcast_leaves(comm::Communicator& comm, const detail::NestedView& value,
                                         int from);

std::vector<at::Tensor> pad_leaves(comm::Communicator& comm, const detail::NestedView& value,
                                   int64_t dim, const at::Scalar& pad_index, bool pad_first);

}  // namespace coupler
