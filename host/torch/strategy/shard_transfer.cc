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

char* at_element(void* memory, int64_t element, size_t size) {
  return static_cast<char*>(memory) + static_cast<size_t>(element) * size;
}
const char* at_element(const void* memory, int64_t element, size_t size) {
  return static_cast<const char*>(memory) + static_cast<size_t>(element) * size;
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

void gather_unit(comm::Communicator& comm, const sharding::ShardLayout& layout, at::ScalarType type,
                 const void* shard, void* whole, residency::BufferPool& pool) {
  const size_t size = c10::elementSize(type);
  for (const sharding::ShardTransfer& transfer : layout.transfers) {
    db_op op = op_of(DB_ALL_GATHER, DB_ALL_GATHER_V, transfer, type, pool.device());
    op.send = at_element(shard, transfer.shard_offset, size);
    if (!transfer.packed()) {
      op.recv = at_element(whole, transfer.runs[0].begin(), size);
      comm.run(op);
      continue;
    }
    const auto packed = pool.take(static_cast<size_t>(transfer.numel) * size);
    op.recv = packed.data();
    comm.run(op);
    Copies copies(pool.device());
    each_piece(transfer, layout.ranks,
               [&](int64_t from, const sharding::ShardRun& run, int64_t position, int64_t count) {
                 copies.add(at_element(whole, run.begin() + position, size),
                            at_element(packed.data(), from, size),
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
                          at::ScalarType type, const std::vector<const void*>& alone, void* staging,
                          void* shard, residency::BufferPool& pool, const UnitCodec& coded,
                          bool overlap) {
  UnitReduction result;
  const size_t size = c10::elementSize(type);
  for (size_t i = 0; i < layout.transfers.size(); ++i) {
    const sharding::ShardTransfer& transfer = layout.transfers[i];
    if (!transfer.trains) continue;
    db_op op = op_of(DB_REDUCE_SCATTER, DB_REDUCE_SCATTER_V, transfer, type, pool.device());
    op.reduce = DB_SUM;
    op.recv = at_element(shard, transfer.shard_offset, size);
    if (transfer.packed()) {
      result.packed_.push_back(pool.take(static_cast<size_t>(transfer.numel) * size));
      void* const packed = result.packed_.back().data();
      Copies copies(pool.device());
      each_piece(transfer, layout.ranks,
                 [&](int64_t to, const sharding::ShardRun& run, int64_t position, int64_t count) {
                   copies.add(at_element(packed, to, size),
                              at_element(staging, run.staging_offset + position, size),
                              static_cast<size_t>(count) * size);
                 });
      copies.run();
      op.send = packed;
    } else {
      op.send = transfer.alone >= 0 ? alone[i]
                                    : at_element(staging, transfer.runs[0].staging_offset, size);
    }
    if (coded.codec != nullptr) {
      const auto own = static_cast<int64_t>(transfer.counts[static_cast<size_t>(layout.rank)]);
      result.coded_.emplace_back(
          comm, *coded.codec, transfer.counts,
          device::over_memory(const_cast<void*>(op.send), transfer.numel, type, pool.device()),
          device::over_memory(op.recv, own, type, pool.device()), coded.errors[i], pool, overlap);
    } else if (overlap) {
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
