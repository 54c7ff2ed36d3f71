#include "hierarchical/stages.h"

#include <algorithm>
#include <new>

namespace db::hierarchical {
namespace {

constexpr int64_t kLongestLag = 500'000'000;

}  // namespace

uint8_t* Scratch::take(size_t bytes) {
  if (bytes_ < bytes) {
    bytes_ = 0;
    memory_ = nullptr;
    if (base_ != nullptr) memory_ = base_->allocate(bytes);
    if (memory_ == nullptr)
      memory_ = {::operator new(bytes), [](void* memory) { ::operator delete(memory); }};
    bytes_ = bytes;
  }
  return static_cast<uint8_t*>(memory_.get());
}

int64_t stage_deadline(const Op& op, int stage) {
  const int64_t lag = std::min(op.timeout_ns / 8, kLongestLag);
  return op.deadline_ns > INT64_MAX - 2 * lag ? INT64_MAX : op.deadline_ns + stage * lag;
}

db_op Stages::make_op(db_kind kind, int stage) const {
  db_op op{};
  op.kind = kind;
  op.dtype = op_.dtype;
  op.scale = 1.0;
  if (!is_reducing(kind)) return op;
  op.reduce = op_.reduce;
  if (op_.reduce == DB_AVG) op.reduce = DB_SUM;
  if (op_.reduce == DB_PREMUL_SUM && stage > 0) op.reduce = DB_SUM;
  if (op.reduce == DB_PREMUL_SUM) op.scale = op_.scale;
  return op;
}

Failure Stages::start_within(db_op op, int stage, bool blocking, Pending* pending) const {
  return group_.local->start(op, stage_deadline(op_, stage), blocking, pending);
}

Failure Stages::start_across(db_op op, bool blocking, Pending* pending) const {
  return group_.lane->start(op, stage_deadline(op_, 1), blocking, pending);
}

Failure Stages::reduce_within(const void* data, uint8_t* to, const std::vector<uint64_t>& counts,
                              uint64_t total, bool blocking, Pending* pending) const {
  const bool to_leader = manner_.lanes == 1;
  db_op op = make_op(to_leader ? DB_REDUCE : DB_REDUCE_SCATTER_V, 0);
  op.send = data;
  op.recv = to;
  if (to_leader)
    op.count = total;
  else
    op.recv_counts = counts.data();
  return start_within(op, 0, blocking, pending);
}

Failure Stages::spread_within(const uint8_t* own, uint8_t* data,
                              const std::vector<uint64_t>& counts, uint64_t total, bool blocking,
                              Pending* pending) const {
  const bool from_leader = manner_.lanes == 1;
  db_op op = make_op(from_leader ? DB_BROADCAST : DB_ALL_GATHER_V, 2);
  op.send = own;
  op.recv = data;
  if (from_leader)
    op.count = total;
  else
    op.recv_counts = counts.data();
  return start_within(op, 2, blocking, pending);
}

}  // namespace db::hierarchical
