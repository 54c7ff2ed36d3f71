#include "strategy/peer_source.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include "device/torch_device_memory.h"
#include "residency/in_use.h"
#include "strategy/shard_transfer.h"

namespace coupler {

void PeerSource::explain(size_t unit, const std::exception& cause) const {
  const auto* error = dynamic_cast<const Error*>(&cause);
  const std::string& name = units_[unit]->plan.name;
  throw Error(
      error != nullptr ? error->code() : ErrorCode::kInternal,
      fmt::format("the parameters of unit '{}' could not be gathered: {}", name, cause.what()),
      {.rank = error != nullptr ? error->detail().rank : -1,
       .subject = name,
       .hint = "every rank must use sharded parameters; if only one needs them, "
               "let all enter coupler::summon_full_parameters"});
}

size_t PeerSource::agree(size_t wanted) {
  if (comm_->size() == 1) return wanted;
  uint64_t chosen = wanted;
  db_op op{};
  op.kind = DB_BROADCAST;
  op.dtype = DB_U64;
  op.memory = DB_MEMORY_HOST;
  op.send = op.recv = &chosen;
  op.count = 1;
  try {
    comm_->run(op);
  } catch (const std::exception& cause) {
    explain(wanted, cause);
  }
  return chosen;
}

void PeerSource::fill(size_t index, void* memory) {
  const ShardUnit& unit = *units_[index];
  const at::ScalarType type = unit.plan.compute_type;
  const InUse in_memory(unit.master);
  BufferPool::Buffer room;
  const void* shard = unit.master.const_data_ptr();
  if (type != unit.plan.type && unit.layout.shard_numel > 0) {
    room = pool_.take(static_cast<size_t>(unit.layout.shard_numel) * c10::elementSize(type));
    const at::NoGradGuard no_grad;
    over_memory(room.data(), unit.layout.shard_numel, type, unit.device).copy_(unit.master);
    shard = room.data();
  }
  try {
    gather_unit(*comm_, unit.layout, type, shard, memory, pool_);
  } catch (const std::exception& cause) {
    explain(index, cause);
  }
}

void PeerSource::store(size_t index, const void* memory) {
  ShardUnit& unit = *units_[index];
  const at::NoGradGuard no_grad;
  const at::Tensor whole =
      over_memory(memory, unit.layout.numel, unit.plan.compute_type, unit.device);
  for (size_t i = 0; i < unit.members.size(); ++i) {
    const ShardPart& part = unit.members[i].part;
    unit.take_value(i, whole.narrow(0, part.offset, part.numel));
  }
}

}  // namespace coupler
