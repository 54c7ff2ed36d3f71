#include "shm/collectives.h"

#include <algorithm>
#include <string>

#include "shm/copy.h"
#include "shm/move.h"

namespace db::shm {

Collectives::Collectives(int32_t rank, int32_t size, Segment* segment, Synchronizer* synchronizer,
                         Arena* arena)
    : rank_(rank),
      size_(size),
      segment_(segment),
      synchronizer_(synchronizer),
      sources_(static_cast<size_t>(size)),
      offsets_(static_cast<size_t>(size)),
      arena_(arena),
      places_(static_cast<size_t>(size)) {}

Failure Collectives::run(const Op& op) {
  op_ = &op;
  combine_ = op.reduce != 0 ? reduce_function(op.dtype, op.reduce) : nullptr;
  entered_ = false;
  past_caches_ = !op.in_place && op.recv_size * op.element >= kStreamBytes;
  return size_ == 1 ? alone() : run_kind();
}

Failure Collectives::run_kind() {
  synchronizer_->begin(*op_);
  if (may_be_direct()) {
    Failure failure = enter_large();
    if (!failure.ok()) return failure;
    if (is_reachable()) return run_directly();
  }
  switch (op_->kind) {
    case DB_ALL_REDUCE:
    case DB_REDUCE:
      return all_reduce();
    case DB_BROADCAST:
      return broadcast();
    case DB_ALL_GATHER:
    case DB_ALL_GATHER_V:
      return all_gather();
    case DB_REDUCE_SCATTER:
    case DB_REDUCE_SCATTER_V:
      return reduce_scatter();
    case DB_ALL_TO_ALL:
    case DB_ALL_TO_ALL_V:
      return all_to_all();
    case DB_GATHER:
      return gather();
    case DB_SCATTER:
      return scatter();
    case DB_BARRIER:
      return barrier();
    default:
      return Failure::make(DB_ERR_UNSUPPORTED, "no such operation");
  }
}

// With one rank, every operation copies send to recv.
Failure Collectives::alone() {
  const uint64_t bytes = op_->recv_size * op_->element;
  if (op_->reduce == DB_PREMUL_SUM && is_reducing(op_->kind)) {
    scale(op_->dtype, recv(), sent(), op_->recv_size, op_->scale);
  } else {
    copy(recv(), sent(), bytes);
  }
  return {};
}

Failure Collectives::barrier() {
  synchronizer_->enter();
  return synchronizer_->await_entries();
}

uint64_t Collectives::largest_part() const {
  uint64_t largest = 0;
  for (int32_t rank = 0; rank < size_; ++rank)
    largest = std::max(largest, part_bytes(op_->recv_counts, rank));
  return largest;
}

void Collectives::deliver(uint8_t* to, const uint8_t* data, uint64_t bytes) const {
  if (past_caches_)
    copy_past_caches(to, data, bytes);
  else
    copy(to, data, bytes);
}

// ---- Reductions --------------------------------------------------------------------------------

// Bytes of this rank's send, scaled if the reduction requires it.
void Collectives::put_contribution(uint8_t* to, uint64_t offset, uint64_t bytes) const {
  if (op_->reduce == DB_PREMUL_SUM) {
    scale(op_->dtype, to, sent(offset), bytes / op_->element, op_->scale);
  } else {
    copy(to, sent(offset), bytes);
  }
}

void Collectives::combine(void* out, const uint8_t* own, uint64_t bytes) {
  const uint64_t count = bytes / op_->element;
  const auto input = [&](int32_t rank) { return rank == rank_ ? own : from(rank); };
  combine_(out, input(0), input(1), count);
  for (int32_t rank = 2; rank < size_; ++rank) combine_(out, out, input(rank), count);
}

void Collectives::finish_average(void* data, uint64_t bytes) const {
  if (op_->reduce == DB_AVG) divide(op_->dtype, data, bytes / op_->element, size_);
}

// Also reduce: the root alone combines small data, and alone takes the results of large data.
Failure Collectives::all_reduce() {
  const uint64_t bytes = op_->count * op_->element;
  const bool takes = op_->kind == DB_ALL_REDUCE || rank_ == op_->root_or_peer;
  if (is_large(bytes, false)) return reduce_in_chunks(takes);
  uint8_t* own = nullptr;
  return move(
      bytes, false,
      [&](uint8_t* buffer, const Stretch& stretch) {
        own = buffer;
        put_contribution(buffer, stretch.offset, bytes);
      },
      [&](const Stretch&) {
        if (!takes) return;
        combine(recv(), own, bytes);
        finish_average(recv(), bytes);
      });
}

// Each rank combines its part of every chunk. A chunk takes two steps: its data is staged, its
// parts are combined. The next chunk is staged before the parts of this one are awaited, so a rank
// that is a little ahead need not wait.
Failure Collectives::reduce_in_chunks(bool takes) {
  if (Failure failure = enter_large(); !failure.ok()) return failure;
  const uint64_t total = op_->count * op_->element;
  const auto ranks = static_cast<uint64_t>(size_);
  const uint64_t part = segment_->layout().chunk_bytes / ranks / 64 * 64;
  const uint64_t chunk = part * ranks;
  const uint64_t chunks = (total + chunk - 1) / chunk;
  const bool scales = op_->reduce == DB_PREMUL_SUM;
  struct Range {
    uint64_t begin, end;
  };
  const auto in_chunk = [&](uint64_t i) { return std::min(chunk, total - i * chunk); };
  // The part of a rank, relative to the chunk. The last chunk is divided evenly as well.
  const auto part_of = [&](uint64_t i, int32_t rank) {
    const uint64_t bytes = in_chunk(i);
    const uint64_t each = ((bytes + ranks - 1) / ranks + 63) / 64 * 64;
    const uint64_t begin = std::min(each * static_cast<uint64_t>(rank), bytes);
    return Range{begin, std::min(begin + each, bytes)};
  };
  const auto stage = [&](uint64_t i) {
    uint8_t* const to = segment_->staged(rank_, i);
    for (int32_t rank = 0; rank < size_; ++rank) {
      const Range range = part_of(i, rank);
      if (rank != rank_ || scales)
        put_contribution(to + range.begin, i * chunk + range.begin, range.end - range.begin);
    }
    return synchronizer_->publish();
  };
  uint32_t staged = stage(0), next_staged = 0;
  for (uint64_t i = 0; i < chunks; ++i, staged = next_staged) {
    if (i + 1 < chunks) next_staged = stage(i + 1);
    if (Failure failure = synchronizer_->await(staged); !failure.ok()) return failure;
    const Range mine = part_of(i, rank_);
    const uint64_t bytes = mine.end - mine.begin;
    uint8_t* const result = segment_->result(rank_, i);
    find_sources(mine.begin, [&](int32_t rank) { return segment_->staged(rank, i); });
    const uint8_t* const own = scales ? from(rank_) : sent(i * chunk + mine.begin);
    if (bytes > 0) combine(result, own, bytes);
    finish_average(result, bytes);
    const uint32_t combined = synchronizer_->publish();
    if (takes) copy(recv(i * chunk + mine.begin), result, bytes);
    if (Failure failure = synchronizer_->await(combined); !failure.ok()) return failure;
    for (int32_t k = 1; k < size_ && takes; ++k) {
      const int32_t rank = (rank_ + k) % size_;
      const Range range = part_of(i, rank);
      deliver(recv(i * chunk + range.begin), segment_->result(rank, i), range.end - range.begin);
    }
  }
  return {};
}

Failure Collectives::reduce_scatter() {
  for (int32_t rank = 0; rank < size_; ++rank)
    offsets_[static_cast<size_t>(rank)] = part_offset(*op_, op_->recv_counts, rank);
  const uint64_t mine = part_bytes(op_->recv_counts, rank_);
  const uint8_t* const own_part = sent(offsets_[static_cast<size_t>(rank_)]);
  // In place, recv overwrites it before it is combined, unless it is among the first two.
  const bool stages_own = op_->reduce == DB_PREMUL_SUM || (op_->in_place && rank_ >= 2);
  return move(
      largest_part(), true,
      [&](uint8_t* buffer, const Stretch& stretch) {
        for (int32_t rank = 0; rank < size_; ++rank) {
          if (rank == rank_ && !stages_own) continue;
          const auto at = static_cast<size_t>(rank);
          put_contribution(buffer + at * stretch.stride, offsets_[at] + stretch.offset,
                           stretch.of(part_bytes(op_->recv_counts, rank)));
        }
      },
      [&](const Stretch& stretch) {
        const uint64_t bytes = stretch.of(mine);
        if (bytes == 0) return;
        uint8_t* const to = recv(stretch.offset);
        combine(to, stages_own ? from(rank_) : own_part + stretch.offset, bytes);
        finish_average(to, bytes);
      });
}

}  // namespace db::shm
