#include "strategy/shard_transfer.h"

#include <ATen/ops/_foreach_copy.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <cstring>

#include "comm/flight_recorder.h"
#include "device/device_memory.h"
#include "tensors/tensor_ops.h"

namespace coupler::strategy {
namespace {

char* at_element(const at::Tensor& memory, int64_t element) {
  return static_cast<char*>(memory.mutable_data_ptr()) +
         static_cast<size_t>(element) * memory.element_size();
}

db_op op_of(db_kind even, db_kind uneven, const sharding::ShardTransfer& transfer,
            at::ScalarType type, c10::Device device) {
  db_op op{};
  op.kind = transfer.even ? even : uneven;
  op.dtype = tensors::to_db_dtype(type);
  op.memory = tensors::memory_of(device);
  if (transfer.even) {
    op.count = transfer.counts[0];
  } else {
    op.recv_counts = transfer.counts.data();
  }
  return op;
}

// Copies between a packed transfer's memory (by rank, then by run) and another: copy(packed, run,
// position in the run, count).
template <class Copy>
void each_piece(const sharding::ShardTransfer& transfer, int ranks, const Copy& copy) {
  int64_t packed = 0;
  for (int r = 0; r < ranks; ++r) {
    for (const sharding::ShardRun& run : transfer.runs) {
      copy(packed, run, run.bounds[static_cast<size_t>(r)] - run.begin(), run.count(r));
      packed += run.count(r);
    }
  }
}

// Many small copies; a device runs them in a few kernels.
class Copies {
 public:
  explicit Copies(c10::Device device) : device_(device) {}
  void add(void* to, const void* from, size_t bytes) {
    if (device_.is_cpu()) {
      std::memcpy(to, from, bytes);
    } else if (bytes > 0) {
      const auto count = static_cast<int64_t>(bytes);
      to_.push_back(device::over_memory(to, count, at::kByte, device_));
      from_.push_back(device::over_memory(from, count, at::kByte, device_));
    }
  }
  void run() const {
    if (!to_.empty()) at::_foreach_copy_(to_, from_);
  }

 private:
  const c10::Device device_;
  std::vector<at::Tensor> to_, from_;
};

void require(const comm::Communicator& comm, db_kind kind, at::ScalarType type) {
  db_op op{};
  op.kind = kind;
  op.dtype = tensors::to_db_dtype(type);
  op.reduce = comm::is_reducing(kind) ? DB_SUM : 0;
  op.memory = comm.device() != nullptr ? DB_MEMORY_CUDA : DB_MEMORY_HOST;
  if (comm.supports(op)) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("sharding by '{}' needs {} of {}, which its base does not support",
                          comm.backend(), comm::kind_name(kind), comm::dtype_name(op.dtype)),
              {.subject = "backend." + comm.backend() + ".base",
               .hint = fmt::format("set backend.{}.base to a transport that supports it; `coupler "
                                   "plugins --matrix` shows what each supports",
                                   comm.backend())});
}

}  // namespace

void gather_unit(comm::Communicator& comm, const sharding::ShardLayout& layout,
                 const at::Tensor& shard, const at::Tensor& whole, residency::BufferPool& pool) {
  const at::ScalarType type = whole.scalar_type();
  for (const sharding::ShardTransfer& transfer : layout.transfers) {
    db_op op = op_of(DB_ALL_GATHER, DB_ALL_GATHER_V, transfer, type, pool.device());
    op.send = at_element(shard, transfer.shard_offset);
    if (!transfer.packed()) {
      op.recv = at_element(whole, transfer.runs[0].begin());
      comm.run(op);
      continue;
    }
    const size_t size = whole.element_size();
    const auto memory = pool.take(static_cast<size_t>(transfer.numel) * size);
    const at::Tensor packed = memory.as(type, transfer.numel);
    op.recv = memory.data();
    comm.run(op);
    Copies copies(pool.device());
    each_piece(transfer, layout.ranks,
               [&](int64_t from, const sharding::ShardRun& run, int64_t position, int64_t count) {
                 copies.add(at_element(whole, run.begin() + position), at_element(packed, from),
                            static_cast<size_t>(count) * size);
               });
    copies.run();
  }
}

void UnitReduction::wait() {
  for (comm::Work& work : works_) work.wait();
  works_.clear();
  for (CompressedReduceScatter& coded : coded_) coded.wait();
  coded_.clear();
  packed_.clear();
}

UnitReduction reduce_unit(comm::Communicator& comm, const sharding::ShardLayout& layout,
                          const std::vector<at::Tensor>& alone, const at::Tensor& staging,
                          const at::Tensor& shard, residency::BufferPool& pool,
                          const UnitCodec& coded, bool overlap) {
  UnitReduction result;
  const at::ScalarType type = shard.scalar_type();
  for (size_t i = 0; i < layout.transfers.size(); ++i) {
    const sharding::ShardTransfer& transfer = layout.transfers[i];
    if (!transfer.trains) continue;
    at::Tensor gradients;  // of all ranks' parts
    if (transfer.packed()) {
      const size_t size = shard.element_size();
      result.packed_.push_back(pool.take(static_cast<size_t>(transfer.numel) * size));
      gradients = result.packed_.back().as(type, transfer.numel);
      Copies copies(pool.device());
      each_piece(transfer, layout.ranks,
                 [&](int64_t to, const sharding::ShardRun& run, int64_t position, int64_t count) {
                   copies.add(at_element(gradients, to),
                              at_element(staging, run.staging_offset + position),
                              static_cast<size_t>(count) * size);
                 });
      copies.run();
    } else {
      gradients = transfer.alone >= 0
                      ? alone[i].view({-1})
                      : staging.narrow(0, transfer.runs[0].staging_offset, transfer.numel);
    }
    if (coded.codec != nullptr) {
      const auto own = static_cast<int64_t>(transfer.counts[static_cast<size_t>(layout.rank)]);
      result.coded_.emplace_back(comm, coded.codec, transfer.counts, gradients,
                                 shard.narrow(0, transfer.shard_offset, own), coded.errors[i], pool,
                                 overlap);
      continue;
    }
    db_op op = op_of(DB_REDUCE_SCATTER, DB_REDUCE_SCATTER_V, transfer, type, pool.device());
    op.reduce = DB_SUM;
    op.send = gradients.const_data_ptr();
    op.recv = at_element(shard, transfer.shard_offset);
    if (overlap) {
      result.works_.push_back(comm.submit(op));
    } else {
      comm.run(op);
    }
  }
  return result;
}

void require_transfers(const comm::Communicator& comm, at::ScalarType gathered,
                       at::ScalarType reduced) {
  require(comm, DB_ALL_GATHER, gathered);
  require(comm, DB_ALL_GATHER_V, gathered);
  require(comm, DB_REDUCE_SCATTER, reduced);
  require(comm, DB_REDUCE_SCATTER_V, reduced);
}

}  // namespace coupler::strategy
