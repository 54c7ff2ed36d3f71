#include <algorithm>

#include "common/reduce.h"
#include "hierarchical/stages.h"

namespace db::hierarchical {

DataStages::DataStages(const Op& op, const Group& group, const Manner& manner, Scratch* scratch)
    : Stages(op, group, manner),
      chunk_(std::clamp<uint64_t>(op.count, 1,
                                  std::max<uint64_t>(manner.chunk_bytes / op.element, 1))),
      counts_(group.layout.own_machine().size(), 0) {
  if (op.kind == DB_REDUCE && op.root_or_peer != group.layout.rank)
    out_ = scratch->take(2 * chunk_ * op.element);
}

uint64_t DataStages::chunks() const { return (op_.count + chunk_ - 1) / chunk_; }

bool DataStages::is_roots_machine() const { return layout().shares_machine(op_.root_or_peer); }

// Also sets counts_.
DataStages::Chunk DataStages::chunk_at(uint64_t chunk) {
  const uint64_t begin = chunk * chunk_;
  const uint64_t count = std::min(chunk_, op_.count - begin);
  for (int32_t j = 0; j < manner_.lanes; ++j)
    counts_[static_cast<size_t>(j)] =
        part_begin(count, manner_.lanes, j + 1) - part_begin(count, manner_.lanes, j);
  // Ranks without a lane have an empty part at the end.
  const int32_t part = std::min(layout().index(), manner_.lanes);
  uint8_t* const out = out_ != nullptr ? out_ + chunk % 2 * chunk_ * op_.element
                                       : static_cast<uint8_t*>(op_.recv) + begin * op_.element;
  const auto* const send = static_cast<const uint8_t*>(op_.send);  // may be NULL in a broadcast
  return {send == nullptr ? nullptr : send + begin * op_.element, out, count,
          out + part_begin(count, manner_.lanes, part) * op_.element,
          in_lane() ? counts_[static_cast<size_t>(part)] : 0};
}

Failure DataStages::start(int stage, uint64_t chunk, bool blocking, Pending* pending) {
  const Chunk at = chunk_at(chunk);
  if (stage == 0) return start_first(at, blocking, pending);
  return stage == 1 ? start_second(at, blocking, pending) : start_third(at, blocking, pending);
}

Failure DataStages::start_first(const Chunk& chunk, bool blocking, Pending* pending) {
  if (op_.kind != DB_BROADCAST)
    return reduce_within(chunk.in, chunk.own, counts_, chunk.count, blocking, pending);
  if (!is_roots_machine()) return {};
  db_op op = make_op(DB_BROADCAST, 0);
  op.root_or_peer = layout().index_of[static_cast<size_t>(op_.root_or_peer)];
  op.send = chunk.in;
  op.recv = chunk.out;
  op.count = chunk.count;
  return start_within(op, 0, blocking, pending);
}

Failure DataStages::start_second(const Chunk& chunk, bool blocking, Pending* pending) {
  if (chunk.own_count == 0) return {};
  db_op op = make_op(op_.kind, 1);
  if (op_.kind != DB_ALL_REDUCE)
    op.root_or_peer = layout().machine_of[static_cast<size_t>(op_.root_or_peer)];
  op.send = op.recv = chunk.own;
  op.count = chunk.own_count;
  return start_across(op, blocking, pending);
}

Failure DataStages::start_third(const Chunk& chunk, bool blocking, Pending* pending) {
  if (op_.kind == DB_BROADCAST ? is_roots_machine() : op_.kind == DB_REDUCE && !is_roots_machine())
    return {};
  // Once, on the ranks that have the sum, so that all get the same bits.
  if (op_.kind != DB_BROADCAST && op_.reduce == DB_AVG && chunk.own_count > 0)
    divide(op_.dtype, chunk.own, chunk.own_count, layout().size());
  return spread_within(chunk.own, chunk.out, counts_, chunk.count, blocking, pending);
}

}  // namespace db::hierarchical
