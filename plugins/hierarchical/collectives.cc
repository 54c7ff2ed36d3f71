#include "hierarchical/collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

namespace db::hierarchical {
namespace {

constexpr int32_t kPairwiseTag = 32767;

// What a leader says about its machine; transmitted as 64-bit words.
struct Verdict {
  Fingerprint leader;
  int64_t odd_rank = -1;  // a rank of the machine that called something else
  Fingerprint odd;
};
constexpr uint64_t kVerdictWords = sizeof(Verdict) / sizeof(uint64_t);
constexpr uint64_t kPrintWords = sizeof(Fingerprint) / sizeof(uint64_t);

Verdict judge(const Layout& layout, const std::vector<Fingerprint>& here) {
  Verdict verdict{here[0], -1, here[0]};
  for (size_t i = 1; i < here.size() && verdict.odd_rank < 0; ++i)
    if (here[i] != here[0]) verdict = {here[0], layout.own_machine()[i], here[i]};
  return verdict;
}

// OK if all machines agree. The same on every rank.
Failure conclusion(const Layout& layout, const std::vector<Verdict>& verdicts, uint64_t number) {
  for (size_t i = 0; i < verdicts.size(); ++i) {
    const Verdict& one = verdicts[i];
    const int32_t leader = layout.machines[i][0];
    if (one.leader != verdicts[0].leader)
      return disagreement(number, layout.machines[0][0], verdicts[0].leader, leader, one.leader);
    if (one.odd_rank >= 0)
      return disagreement(number, leader, one.leader, static_cast<int32_t>(one.odd_rank), one.odd);
  }
  return {};
}

// The messages between this rank and each other one, of GATHER, SCATTER and ALL_TO_ALL(_V).
struct Exchange {
  bool sends = false;  // to that rank
  const uint8_t* send = nullptr;
  uint64_t send_count = 0;
  bool receives = false;  // from that rank
  uint8_t* recv = nullptr;
  uint64_t recv_count = 0;
};

Exchange exchange_with(const Op& op, const uint8_t* send, int32_t own, int32_t other) {
  auto* const recv = static_cast<uint8_t*>(op.recv);
  Exchange result;
  const bool is_root = op.root_or_peer == own;
  if (op.kind == DB_GATHER ? op.root_or_peer == other : op.kind != DB_SCATTER || is_root) {
    const bool whole = op.kind == DB_GATHER;
    result.sends = true;
    result.send = whole ? send : send + part_offset(op, op.send_counts, other);
    result.send_count = part_size(op, op.send_counts, other);
  }
  if (op.kind == DB_SCATTER ? op.root_or_peer == other : op.kind != DB_GATHER || is_root) {
    const bool whole = op.kind == DB_SCATTER;
    result.receives = true;
    result.recv = whole ? recv : recv + part_offset(op, op.recv_counts, other);
    result.recv_count = part_size(op, op.recv_counts, other);
  }
  return result;
}

std::vector<db_kind> kinds_for(db_kind kind) {
  switch (kind) {
    case DB_ALL_REDUCE:
    case DB_REDUCE:
      return {DB_REDUCE, DB_REDUCE_SCATTER_V, DB_ALL_REDUCE, DB_BROADCAST, DB_ALL_GATHER_V};
    case DB_REDUCE_SCATTER:
    case DB_REDUCE_SCATTER_V:
      return {DB_REDUCE, DB_REDUCE_SCATTER_V, DB_ALL_GATHER_V};
    case DB_BROADCAST:
    case DB_ALL_GATHER:
    case DB_ALL_GATHER_V:
      return {DB_BROADCAST, DB_ALL_GATHER_V};
    case DB_BARRIER:
      return {};
    default:
      return {DB_SEND, DB_RECV};
  }
}

}  // namespace

bool supports(const Group& group, const db_op& op) {
  if (host_supports(op) == 0) return false;
  if (const Base* const whole = group.whole(); whole != nullptr) return whole->supports(op);
  for (const Base* const base : {group.local.get(), group.across.get()}) {
    for (const db_kind kind : kinds_for(op.kind)) {
      db_op asked = op;
      asked.kind = kind;
      asked.reduce = is_reducing(kind) ? op.reduce : 0;
      if (op.reduce == DB_AVG && is_reducing(kind)) asked.reduce = DB_SUM;
      if (!base->supports(asked)) return false;
      if (asked.reduce != DB_PREMUL_SUM) continue;
      asked.reduce = DB_SUM;
      if (!base->supports(asked)) return false;
    }
  }
  return true;
}

Failure Collectives::give_up(const Op& op, Failure failure) const {
  failure.flags |= DB_ERROR_COMM_DEAD;
  failure.message = "hierarchical, rank " + std::to_string(group_->layout.rank) + ": " +
                    describe(op) + ": " + failure.message;
  // The reason is in the store before this rank ends the operations of its peers.
  failure = board_->settle(failure);
  group_->abort();
  return failure;
}

Failure Collectives::run(const Op& op) {
  ++number_;
  if (const Base* const whole = group_->whole(); whole != nullptr) return run_whole(*whole, op);
  Failure failure = compare(op);
  if (!failure.ok() || op.kind == DB_BARRIER) return failure;
  if (op.kind == DB_GATHER || op.kind == DB_SCATTER || op.kind == DB_ALL_TO_ALL ||
      op.kind == DB_ALL_TO_ALL_V)
    return run_pairwise(op);
  const Manner manner = manner_of(op);
  if (op.kind == DB_ALL_REDUCE || op.kind == DB_REDUCE || op.kind == DB_BROADCAST) {
    DataStages stages(op, *group_, manner, &scratch_);
    return run_stages(op, stages);
  }
  PartStages stages(op, *group_, manner, &scratch_);
  return run_stages(op, stages);
}

// The base has the same ranks with the same numbers.
Failure Collectives::run_whole(const Base& base, const Op& op) {
  db_op same{};
  same.kind = op.kind;
  same.dtype = op.dtype;
  same.reduce = op.reduce;
  same.root_or_peer = op.root_or_peer;
  same.send = op.send;
  same.recv = op.recv;
  same.count = op.count;
  same.send_counts = op.send_counts;
  same.recv_counts = op.recv_counts;
  same.scale = op.scale;
  Pending pending;
  Failure failure = base.start(same, op.deadline_ns, true, &pending);
  if (failure.ok()) failure = pending.wait();
  return failure.ok() ? failure : give_up(op, failure);
}

Failure Collectives::compare(const Op& op) {
  const Layout& layout = group_->layout;
  const Fingerprint own = fingerprint(op, layout.size());
  here_.resize(layout.own_machine().size());
  std::vector<Verdict> verdicts(layout.machines.size());
  Failure failure = group_->local->exchange(DB_ALL_GATHER, DB_U64, &own, here_.data(), kPrintWords,
                                            stage_deadline(op, 0));
  if (failure.ok() && layout.index() == 0) {
    const Verdict verdict = judge(layout, here_);
    failure = group_->lane->exchange(DB_ALL_GATHER, DB_U64, &verdict, verdicts.data(),
                                     kVerdictWords, stage_deadline(op, 1));
  }
  if (failure.ok())
    failure = group_->local->exchange(DB_BROADCAST, DB_U64, verdicts.data(), verdicts.data(),
                                      kVerdictWords * verdicts.size(), stage_deadline(op, 2));
  if (!failure.ok()) return give_up(op, failure);
  return conclusion(layout, verdicts, number_);
}

Manner Collectives::manner_of(const Op& op) const {
  uint64_t elements = op.count;
  if (op.kind == DB_ALL_GATHER || op.kind == DB_ALL_GATHER_V) elements = op.recv_size;
  if (op.kind == DB_REDUCE_SCATTER || op.kind == DB_REDUCE_SCATTER_V) elements = op.send_size;
  const bool is_small = elements * op.element <= settings_.small_bytes;
  return {is_small ? 1 : group_->layout.lanes, settings_.chunk_bytes};
}

Failure Collectives::run_stages(const Op& op, Stages& stages) {
  const uint64_t chunks = stages.chunks();
  if (chunks == 0) return {};
  const bool blocking = chunks == 1;
  std::array<Pending, 3> pending;
  Failure failure = stages.start(0, 0, blocking, pending.data());
  for (uint64_t k = 0; k < chunks && failure.ok(); ++k) {
    failure = pending[0].wait();
    if (failure.ok()) failure = stages.start(1, k, blocking, &pending[1]);
    if (failure.ok() && k > 0) {
      failure = pending[2].wait();
      if (failure.ok()) stages.finish(k - 1);
    }
    if (failure.ok() && k + 1 < chunks) failure = stages.start(0, k + 1, blocking, pending.data());
    if (failure.ok()) failure = pending[1].wait();
    if (failure.ok()) failure = stages.start(2, k, blocking, &pending[2]);
  }
  if (failure.ok()) failure = pending[2].wait();
  if (failure.ok()) {
    stages.finish(chunks - 1);
    return failure;
  }
  failure = give_up(op, failure);
  // The caller's buffers are in use until these have ended, too.
  for (Pending& one : pending) static_cast<void>(one.wait());
  return failure;
}

const Base& Collectives::base_of(const Op& op, db_op* message) const {
  const Layout& layout = group_->layout;
  const bool within = layout.shares_machine(op.root_or_peer);
  *message = {};
  message->kind = op.kind;
  message->dtype = op.dtype;
  message->send = op.send;
  message->recv = op.recv;
  message->count = op.count;
  message->tag = op.tag;
  message->root_or_peer =
      within ? layout.index_of[static_cast<size_t>(op.root_or_peer)] : op.root_or_peer;
  return within ? *group_->local : *group_->across;
}

Failure Collectives::run_pairwise(const Op& op) {
  const int32_t rank = group_->layout.rank;
  const auto* send = static_cast<const uint8_t*>(op.send);
  if (op.in_place && (op.kind == DB_ALL_TO_ALL || op.kind == DB_ALL_TO_ALL_V)) {
    uint8_t* const copy = copy_.take(op.send_size * op.element);
    std::memcpy(copy, send, op.send_size * op.element);
    send = copy;
  }
  const Exchange own = exchange_with(op, send, rank, rank);
  if (own.sends && own.receives && own.send != own.recv && own.recv_count > 0)
    std::memcpy(own.recv, own.send, own.recv_count * op.element);
  std::vector<Pending> pending;
  Failure failure;
  const auto start = [&](db_kind kind, int32_t peer, const void* from, void* to, uint64_t count) {
    Op one = op;
    one.kind = kind;
    one.root_or_peer = peer;
    one.send = from;
    one.recv = to;
    one.count = count;
    one.tag = kPairwiseTag;
    db_op message{};
    const Base& base = base_of(one, &message);
    return base.start(message, stage_deadline(op, 1), false, &pending.emplace_back());
  };
  // Receives first, so that data finds its place; each rank begins with its next one.
  for (const bool receives : {true, false}) {
    for (int32_t step = 1; step < group_->layout.size() && failure.ok(); ++step) {
      const int32_t size = group_->layout.size();
      const int32_t peer = receives ? (rank + size - step) % size : (rank + step) % size;
      const Exchange with = exchange_with(op, send, rank, peer);
      if (receives && with.receives)
        failure = start(DB_RECV, peer, nullptr, with.recv, with.recv_count);
      if (!receives && with.sends)
        failure = start(DB_SEND, peer, with.send, nullptr, with.send_count);
    }
  }
  for (Pending& one : pending) {
    if (!failure.ok()) break;
    failure = one.wait();
  }
  if (failure.ok()) return failure;
  failure = give_up(op, failure);
  for (Pending& one : pending) static_cast<void>(one.wait());
  return failure;
}

}  // namespace db::hierarchical
