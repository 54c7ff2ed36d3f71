#include "nccl/calls.h"

#include <array>
#include <cstring>

#include "common/reduce.h"
#include "nccl/failures.h"
#include "nccl/library.h"

namespace db::nccl {
namespace {

bool reduces(db_dtype dtype, db_reduce reduce) {
  if (!is_reducible(dtype, reduce)) return false;
  if (dtype == DB_I16 || dtype == DB_U16) return false;
  // On 0 and 1, max is "or" and min is "and"; "xor" has no such equivalent.
  if (dtype == DB_BOOL) return reduce != DB_BXOR;
  return reduce <= DB_PREMUL_SUM;
}

// For operations that score_of() allows. bool is reduced as 0 and 1 of an unsigned byte.
ncclDataType_t datatype(db_dtype dtype) {
  switch (dtype) {
    case DB_I8:
      return ncclInt8;
    case DB_I32:
      return ncclInt32;
    case DB_U32:
      return ncclUint32;
    case DB_I64:
      return ncclInt64;
    case DB_U64:
      return ncclUint64;
    case DB_F16:
      return ncclFloat16;
    case DB_BF16:
      return ncclBfloat16;
    case DB_F32:
      return ncclFloat32;
    case DB_F64:
      return ncclFloat64;
    default:  // u8 and bool
      return ncclUint8;
  }
}

ncclRedOp_t reduction(db_dtype dtype, db_reduce reduce) {
  if (dtype == DB_BOOL)
    return reduce == DB_SUM || reduce == DB_MAX || reduce == DB_BOR ? ncclMax : ncclMin;
  switch (reduce) {
    case DB_PROD:
      return ncclProd;
    case DB_MIN:
      return ncclMin;
    case DB_MAX:
      return ncclMax;
    case DB_AVG:
      return ncclAvg;
    default:
      return ncclSum;
  }
}

// Writes scale as one element of dtype, for PREMUL_SUM. bytes: room for 8.
void write_scalar(db_dtype dtype, double scale, void* bytes) {
  const auto narrow = static_cast<float>(scale);
  const uint16_t half = dtype == DB_F16 ? float_to_f16(narrow) : float_to_bf16(narrow);
  if (dtype == DB_F64) {
    std::memcpy(bytes, &scale, sizeof(scale));
  } else if (dtype == DB_F32) {
    std::memcpy(bytes, &narrow, sizeof(narrow));
  } else {
    std::memcpy(bytes, &half, sizeof(half));
  }
}

// Launches one operation. After a failed step, every further step does nothing.
class Calls {
 public:
  Calls(const LaunchContext& context, const Op& op, LaunchResources* resources)
      : context_(context), op_(op), resources_(resources) {}

  Failure run();

 private:
  void check(ncclResult_t result) {
    if (failure_.ok() && result != ncclSuccess && result != ncclInProgress)
      failure_ = nccl_failure(result, context_.comm, describe(op_));
  }
  void check(cudaError_t error) {
    if (failure_.ok() && error != cudaSuccess) failure_ = cuda_failure(error, describe(op_));
  }
  // Makes the calls in body one NCCL group.
  template <class Body>
  void group(const Body& body) {
    check(nccl().GroupStart());
    if (!failure_.ok()) return;
    body();
    check(nccl().GroupEnd());
  }
  // Makes one group of body(rank, begin, count) for each part of recv_counts, in elements.
  template <class Body>
  void each_part(const Body& body) {
    group([&] {
      uint64_t begin = 0;
      for (int32_t rank = 0; rank < context_.size && failure_.ok(); ++rank) {
        const uint64_t count = op_.recv_counts[rank];
        if (count != 0) body(rank, begin, count);
        begin += count;
      }
    });
  }
  void send(const char* from, uint64_t count, int32_t peer) {
    if (failure_.ok() && count != 0)
      check(
          nccl().Send(from, count * op_.element, ncclUint8, peer, context_.comm, context_.stream));
  }
  void receive(char* to, uint64_t count, int32_t peer) {
    if (failure_.ok() && count != 0)
      check(nccl().Recv(to, count * op_.element, ncclUint8, peer, context_.comm, context_.stream));
  }
  void copy(void* to, const void* from, uint64_t count) {
    if (failure_.ok() && count != 0)
      check(cuda().MemcpyAsync(to, from, count * op_.element, cudaMemcpyDeviceToDevice,
                               context_.stream));
  }
  const char* in(uint64_t element) const {
    return static_cast<const char*>(op_.send) + element * op_.element;
  }
  char* out(uint64_t element) const { return static_cast<char*>(op_.recv) + element * op_.element; }
  bool is_root() const { return op_.root_or_peer == context_.rank; }

  ncclRedOp_t combine();
  void all_gather_v();
  void reduce_scatter_v(ncclRedOp_t how);
  void all_to_all();
  void gather();
  void scatter();

  const LaunchContext& context_;
  const Op& op_;
  LaunchResources* const resources_;
  Failure failure_;
};

ncclRedOp_t Calls::combine() {
  if (op_.reduce != DB_PREMUL_SUM) return reduction(op_.dtype, op_.reduce);
  alignas(8) std::array<char, 8> scalar{};
  write_scalar(op_.dtype, op_.scale, scalar.data());
  check(nccl().RedOpCreatePreMulSum(&resources_->reduction, scalar.data(), datatype(op_.dtype),
                                    ncclScalarHostImmediate, context_.comm));
  return resources_->reduction;
}

void Calls::all_gather_v() {
  each_part([&](int32_t root, uint64_t begin, uint64_t count) {
    check(nccl().Broadcast(root == context_.rank ? op_.send : out(begin), out(begin),
                           count * op_.element, ncclUint8, root, context_.comm, context_.stream));
  });
}

void Calls::reduce_scatter_v(ncclRedOp_t how) {
  each_part([&](int32_t root, uint64_t begin, uint64_t count) {
    check(nccl().Reduce(in(begin), op_.recv, count, datatype(op_.dtype), how, root, context_.comm,
                        context_.stream));
  });
}

void Calls::all_to_all() {
  const char* from = in(0);
  // Arriving data must not overwrite data that has not been sent yet.
  if (op_.in_place && context_.size > 1) {
    const uint64_t bytes = op_.send_size * op_.element;
    const cudaError_t error = cuda().MallocAsync(&resources_->scratch, bytes, context_.stream);
    if (error == cudaErrorMemoryAllocation) failure_ = no_memory(bytes, describe(op_));
    check(error);
    copy(resources_->scratch, from, op_.send_size);
    from = static_cast<const char*>(resources_->scratch);
  } else if (!op_.in_place) {
    copy(out(0) + part_offset(op_, op_.recv_counts, context_.rank),
         from + part_offset(op_, op_.send_counts, context_.rank),
         part_size(op_, op_.send_counts, context_.rank));
  }
  if (context_.size == 1) return;
  group([&] {
    uint64_t leaving = 0, arriving = 0;
    for (int32_t peer = 0; peer < context_.size; ++peer) {
      const uint64_t sent = part_size(op_, op_.send_counts, peer);
      const uint64_t taken = part_size(op_, op_.recv_counts, peer);
      if (peer != context_.rank) {
        send(from + leaving * op_.element, sent, peer);
        receive(out(arriving), taken, peer);
      }
      leaving += sent;
      arriving += taken;
    }
  });
}

void Calls::gather() {
  const uint64_t part = op_.count;
  if (is_root() && !op_.in_place)
    copy(out(part * static_cast<uint64_t>(context_.rank)), in(0), part);
  if (context_.size == 1) return;
  group([&] {
    if (!is_root()) send(in(0), part, op_.root_or_peer);
    for (int32_t peer = 0; is_root() && peer < context_.size; ++peer)
      if (peer != context_.rank) receive(out(part * static_cast<uint64_t>(peer)), part, peer);
  });
}

void Calls::scatter() {
  const uint64_t part = op_.count;
  if (is_root() && !op_.in_place)
    copy(out(0), in(part * static_cast<uint64_t>(context_.rank)), part);
  if (context_.size == 1) return;
  group([&] {
    if (!is_root()) receive(out(0), part, op_.root_or_peer);
    for (int32_t peer = 0; is_root() && peer < context_.size; ++peer)
      if (peer != context_.rank) send(in(part * static_cast<uint64_t>(peer)), part, peer);
  });
}

Failure Calls::run() {
  const ncclDataType_t type = datatype(op_.dtype);
  const uint64_t bytes = op_.count * op_.element;
  const ncclRedOp_t how = is_reducing(op_.kind) ? combine() : ncclSum;
  if (!failure_.ok()) return failure_;
  switch (op_.kind) {
    case DB_ALL_REDUCE:
      check(nccl().AllReduce(op_.send, op_.recv, op_.count, type, how, context_.comm,
                             context_.stream));
      break;
    case DB_REDUCE:
      check(nccl().Reduce(op_.send, op_.recv, op_.count, type, how, op_.root_or_peer, context_.comm,
                          context_.stream));
      break;
    case DB_REDUCE_SCATTER:
      check(nccl().ReduceScatter(op_.send, op_.recv, op_.count, type, how, context_.comm,
                                 context_.stream));
      break;
    case DB_BROADCAST:
      check(nccl().Broadcast(is_root() ? op_.send : op_.recv, op_.recv, bytes, ncclUint8,
                             op_.root_or_peer, context_.comm, context_.stream));
      break;
    case DB_ALL_GATHER:
      check(nccl().AllGather(op_.send, op_.recv, bytes, ncclUint8, context_.comm, context_.stream));
      break;
    case DB_BARRIER:
      check(nccl().AllReduce(context_.token, context_.token, 1, ncclInt32, ncclSum, context_.comm,
                             context_.stream));
      break;
    case DB_ALL_GATHER_V:
      all_gather_v();
      break;
    case DB_REDUCE_SCATTER_V:
      reduce_scatter_v(how);
      break;
    case DB_GATHER:
      gather();
      break;
    case DB_SCATTER:
      scatter();
      break;
    default:
      all_to_all();
  }
  return failure_;
}

}  // namespace

int32_t score_of(const db_op& op) {
  if (!is_valid_kind(op.kind)) return 0;
  if (op.kind == DB_BARRIER) return 1;
  if (op.memory != DB_MEMORY_CUDA || dtype_size(op.dtype) == 0) return 0;
  if (is_reducing(op.kind) && !reduces(op.dtype, op.reduce)) return 0;
  switch (op.kind) {
    case DB_ALL_REDUCE:
    case DB_BROADCAST:
    case DB_REDUCE:
    case DB_ALL_GATHER:
    case DB_REDUCE_SCATTER:
    case DB_SEND:
    case DB_RECV:
      return 2;
    default:
      return 1;
  }
}

Failure start(const LaunchContext& context, const Op& op, LaunchResources* resources) {
  return Calls(context, op, resources).run();
}

Failure start_messages(const LaunchContext& context, const std::vector<const Op*>& ops) {
  const auto problem = [&](ncclResult_t result, const Op& op) {
    const bool good = result == ncclSuccess || result == ncclInProgress;
    return good ? Failure{} : nccl_failure(result, context.comm, describe(op));
  };
  Failure failure = problem(nccl().GroupStart(), *ops[0]);
  if (!failure.ok()) return failure;
  for (const Op* const op : ops) {
    const ncclResult_t result = op->kind == DB_SEND
                                    ? nccl().Send(op->send, op->count * op->element, ncclUint8,
                                                  op->root_or_peer, context.comm, context.stream)
                                    : nccl().Recv(op->recv, op->count * op->element, ncclUint8,
                                                  op->root_or_peer, context.comm, context.stream);
    if (failure.ok()) failure = problem(result, *op);
  }
  const ncclResult_t end = nccl().GroupEnd();
  return failure.ok() ? problem(end, *ops[0]) : failure;
}

void release_resources(const LaunchContext& context, LaunchResources* resources) {
  if (resources->scratch != nullptr) cuda().FreeAsync(resources->scratch, context.stream);
  if (resources->reduction != ncclNumOps) nccl().RedOpDestroy(resources->reduction, context.comm);
  *resources = {};
}

}  // namespace db::nccl
