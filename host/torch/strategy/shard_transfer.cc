#include "strategy/shard_transfer.h"

#include <ATen/ops/_foreach_copy.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

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

// The sum of one transfer's gradients over ranks, of which each keeps its part.
class TransferWork final : public GradientWork {
 public:
  // transfer and pool must outlive it. codec: null for none; error: see UnitCodec.
  TransferWork(comm::Communicator& comm, const sharding::ShardTransfer& transfer,
               at::Tensor gradients, at::Tensor own, residency::BufferPool& pool,
               std::shared_ptr<const GradientCodec> codec, at::Tensor error, bool overlap)
      : comm_(comm),
        transfer_(transfer),
        gradients_(std::move(gradients)),
        own_(std::move(own)),
        pool_(pool),
        codec_(std::move(codec)),
        error_(std::move(error)),
        overlap_(overlap) {}

  bool more() const override { return !started_; }
  void step() override {
    started_ = true;
    if (codec_ != nullptr) {
      coded_.emplace(comm_, codec_, transfer_.counts, gradients_, own_, error_, pool_, overlap_);
      return;
    }
    db_op op = op_of(DB_REDUCE_SCATTER, DB_REDUCE_SCATTER_V, transfer_, gradients_.scalar_type(),
                     gradients_.device());
    op.reduce = DB_SUM;
    op.send = gradients_.const_data_ptr();
    op.recv = own_.mutable_data_ptr();
    if (overlap_) {
      work_ = comm_.submit(op);
    } else {
      comm_.run(op);
    }
  }
  bool done() override { return started_ && !coded_ && work_.done(); }
  void finish() override {
    if (!started_) step();
    work_.wait();
    if (coded_) coded_->wait();
    coded_.reset();
  }

 private:
  comm::Communicator& comm_;
  const sharding::ShardTransfer& transfer_;
  const at::Tensor gradients_, own_;
  residency::BufferPool& pool_;
  const std::shared_ptr<const GradientCodec> codec_;
  const at::Tensor error_;
  const bool overlap_;
  bool started_ = false;
  comm::Work work_;
  std::optional<CompressedReduceScatter> coded_;
};

// The parameters that have gradients in a transfer. names: by part.
std::vector<std::string> names_in(const sharding::ShardTransfer& transfer,
                                  const sharding::ShardLayout& layout,
                                  const std::vector<std::string>& names) {
  std::vector<std::string> result;
  for (size_t i = 0; i < layout.parts.size(); ++i) {
    const sharding::ShardPart& part = layout.parts[i];
    const bool inside =
        std::any_of(transfer.runs.begin(), transfer.runs.end(), [&](const sharding::ShardRun& run) {
          return part.offset < run.bounds.back() && run.begin() < part.offset + part.numel;
        });
    if (part.trains && inside) result.push_back(names[i]);
  }
  return result;
}

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
  for (const auto& work : works_) work->finish();
  works_.clear();
  packed_.clear();
}

UnitReduction reduce_unit(const std::shared_ptr<comm::Communicator>& comm,
                          const sharding::ShardLayout& layout, const std::vector<at::Tensor>& alone,
                          const at::Tensor& staging, const at::Tensor& shard,
                          residency::BufferPool& pool, const UnitCodec& coded, const UnitHook& hook,
                          bool overlap) {
  UnitReduction result;
  const at::ScalarType type = shard.scalar_type();
  const size_t buckets = count_buckets(layout);
  size_t bucket = 0;
  for (size_t i = 0; i < layout.transfers.size(); ++i) {
    const sharding::ShardTransfer& transfer = layout.transfers[i];
    if (!transfer.trains) continue;
    at::Tensor gradients;  // of all ranks' parts
    if (transfer.packed()) {
      const size_t size = shard.element_size();
      result.packed_.push_back(pool.take_to_send(static_cast<size_t>(transfer.numel) * size));
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
    const auto count = static_cast<int64_t>(transfer.counts[static_cast<size_t>(layout.rank)]);
    const at::Tensor own = shard.narrow(0, transfer.shard_offset, count);
    const auto standard = [&comm = *comm, &transfer, &coded, &pool, i, gradients, own, overlap] {
      return std::make_unique<TransferWork>(comm, transfer, gradients, own, pool, coded.codec,
                                            coded.codec != nullptr ? coded.errors[i] : at::Tensor(),
                                            overlap);
    };
    if (hook.hook == nullptr) {
      result.works_.push_back(standard());
    } else {
      BucketContent content{.model = hook.model,
                            .index = hook.first_bucket + bucket,
                            .last = hook.last && bucket + 1 == buckets,
                            .buffer = gradients,
                            .result = own,
                            .names = names_in(transfer, layout, hook.names),
                            .related = hook.related};
      content.shard_sizes.assign(transfer.counts.begin(), transfer.counts.end());
      result.works_.push_back(std::make_unique<HookWork>(
          hook.hook, std::make_shared<HookedBucket>(std::move(content), comm, standard)));
    }
    result.works_.back()->step();
    ++bucket;
  }
  return result;
}

size_t count_buckets(const sharding::ShardLayout& layout) {
  return static_cast<size_t>(
      std::count_if(layout.transfers.begin(), layout.transfers.end(),
                    [](const sharding::ShardTransfer& transfer) { return transfer.trains; }));
}

void require_transfers(const comm::Communicator& comm, at::ScalarType gathered,
                       at::ScalarType reduced) {
  require(comm, DB_ALL_GATHER, gathered);
  require(comm, DB_ALL_GATHER_V, gathered);
  require(comm, DB_REDUCE_SCATTER, reduced);
  require(comm, DB_REDUCE_SCATTER_V, reduced);
}

}  // namespace coupler::strategy
