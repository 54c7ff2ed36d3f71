// Collectives on LibTorch tensors: the thin layer between at::Tensor and Communicator's raw
// buffers. Pure functions; threading rules are those of Communicator. Tensors must be dense,
// contiguous, and in host memory or the communicator's device's, else Error(kInvalidArgument). A
// returned Work does not keep its tensors alive: the caller must, until the Work has been waited
// for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace coupler {
enum class ReduceOp;
}

namespace coupler::tensors {

// The ABI's number for a tensor's type; Error(kUnsupported) if there is none (complex, quantized).
db_dtype to_db_dtype(at::ScalarType type);
db_reduce to_db_reduce(ReduceOp reduction);

// How a communicator identifies the memory of a device: the host's, or its own device's.
db_memory memory_of(c10::Device device);

// Throws if a tensor cannot be made contiguous.
void require_dense(const at::Tensor& tensor);

// Descriptions of operations on whole tensors, for Communicator::run or submit.
db_op all_reduce_op(const at::Tensor& tensor, db_reduce reduce);  // in place
db_op broadcast_op(const at::Tensor& tensor, int root);           // in place
// input [n…] of every rank into output [world_size, n…].
db_op all_gather_op(const at::Tensor& input, const at::Tensor& output);
// Part i of input [world_size, n…] of all ranks, reduced, into output [n…] of rank i.
db_op reduce_scatter_op(const at::Tensor& input, const at::Tensor& output, db_reduce reduce);
// Part i of input [world_size, n…] to rank i, from which part i of output is.
db_op all_to_all_op(const at::Tensor& input, const at::Tensor& output);
// The first send_counts[0] elements of input to rank 0, the next to rank 1, …; output likewise has
// recv_counts[r] elements from rank r. The counts are the caller's until the operation is
// submitted.
db_op all_to_all_v_op(const at::Tensor& input, const std::vector<uint64_t>& send_counts,
                      const at::Tensor& output, const std::vector<uint64_t>& recv_counts);

// An operation on host memory, with `count` elements of the type as described for its kind. A
// barrier needs none of them.
db_op host_op(db_kind kind, db_dtype dtype = DB_U8, const void* send = nullptr,
              void* recv = nullptr, uint64_t count = 0);

// Tensors up to this many bytes share a message: copying larger ones costs more than a message.
constexpr int64_t kPackUpTo = int64_t{64} << 10;

// Many tensors, in place, in few messages: small ones are packed by device and type. Skips empty
// and undefined tensors.
void broadcast_coalesced(comm::Communicator& comm, const std::vector<at::Tensor>& tensors,
                         int root);
void all_reduce_coalesced(comm::Communicator& comm, const std::vector<at::Tensor>& tensors,
                          db_reduce reduce);

// One number of every rank, reduced. Collective.
double all_reduce_number(comm::Communicator& comm, double value, db_reduce reduce);

}  // namespace coupler::tensors
