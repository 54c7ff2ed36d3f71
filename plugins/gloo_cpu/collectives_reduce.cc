// The reducing collectives.
#include <algorithm>

#include "common/reduce.h"
#include "gloo_cpu/collectives.h"

namespace db::gloo_cpu {

Failure Collectives::all_reduce() {
  const uint64_t bytes = op_->count * op_->element;
  if (size_ > 1 && is_small(bytes)) return exchange_all();
  const uint8_t* own = contribution(recv(), op_->count);
  if (size_ == 1) {
    copy(recv(), own, bytes);
    return {};
  }
  if (!halves()) return reduce_and_spread(own);
  even_parts(op_->count);
  if (Failure failure = reduce_by_halving(own, recv()); !failure.ok()) return failure;
  finish_average(recv() + part(rank_).offset, part(rank_).size);
  return spread(recv());
}

// Large all_reduce, in slices of four chunks: while the combined parts of one slice are spread, the
// next slice is combined. Slots 0 and 1 combine, 2 and 3 spread.
Failure Collectives::reduce_and_spread(const uint8_t* own) {
  const uint64_t slice = 4 * limits_.chunk_bytes / op_->element;
  const uint64_t slices = std::max<uint64_t>((op_->count + slice - 1) / slice, 1);
  const auto at = [&](uint64_t i) { return i * slice * op_->element; };
  const auto divide_up = [&](uint64_t i) { even_parts(std::min(slice, op_->count - i * slice)); };
  const auto combine = [&](uint64_t i) {
    divide_up(i);
    header_.round = static_cast<uint32_t>(2 * i);
    begin(i % 2);
    for (const int32_t peer : peers_) send(peer, own + at(i) + part(peer).offset, part(peer).size);
    const uint64_t mine = at(i) + part(rank_).offset;
    receive_combined(own + mine, recv() + mine, part(rank_).size);
  };
  const auto spread = [&](uint64_t i) {
    divide_up(i);
    header_.round = static_cast<uint32_t>(2 * i + 1);
    begin(2 + i % 2);
    uint8_t* const to = recv() + at(i);
    finish_average(to + part(rank_).offset, part(rank_).size);
    for (const int32_t peer : peers_) {
      send(peer, to + part(rank_).offset, part(rank_).size);
      receive(peer, to + part(peer).offset, part(peer).size);
    }
  };
  combine(0);
  for (uint64_t i = 0; i < slices; ++i) {
    if (i + 1 < slices) {
      if (i > 0) {
        if (Failure failure = finish(2 + (i + 1) % 2); !failure.ok()) return failure;
      }
      combine(i + 1);
    }
    if (Failure failure = finish(i % 2); !failure.ok()) return failure;
    spread(i);
  }
  if (slices > 1) {
    if (Failure failure = finish(2 + slices % 2); !failure.ok()) return failure;
  }
  return finish(2 + (slices + 1) % 2);
}

// Small all_reduce: received data is kept separate until everything has been sent and received.
Failure Collectives::exchange_all() {
  const uint64_t bytes = op_->count * op_->element;
  const auto slot = [&](int32_t rank) {
    return scratch_.get() + static_cast<uint64_t>(rank) * bytes;
  };
  scratch(bytes * (static_cast<uint64_t>(size_) + 1));
  const uint8_t* own = contribution(slot(rank_), op_->count);
  if (halves()) {  // the slots, which are passed on together, are the parts of an all_gather
    given_parts();
    copy(slot(rank_), own, bytes);
    if (Failure failure = spread(scratch_.get()); !failure.ok()) return failure;
  } else {
    begin();
    for (const int32_t peer : peers_) {
      send(peer, own, bytes);
      receive(peer, slot(peer), bytes);
    }
    if (Failure failure = finish(); !failure.ok()) return failure;
  }
  const auto from = [&](int32_t rank) -> const void* { return rank == rank_ ? own : slot(rank); };
  uint8_t* const sum = slot(size_);  // recv may still hold this rank's contribution
  for (int32_t rank = 1; rank < size_; ++rank) {
    combine_(rank + 1 == size_ ? recv() : sum, rank == 1 ? from(0) : sum, from(rank), op_->count);
  }
  finish_average(recv(), bytes);
  return {};
}

// Circulant rounds. Makes this rank's part of sums the sum of that part of every rank's own; the
// other parts of sums then hold nothing of use. own may be sums.
Failure Collectives::reduce_by_halving(const uint8_t* own, uint8_t* sums) {
  if (size_ % 2 != 0) {  // the last part that the first round keeps, to which it adds nothing
    const Part middle = part((rank_ + size_ / 2) % size_);
    copy(sums + middle.offset, own + middle.offset, middle.size);
  }
  const uint8_t* from = own;
  for (const CirculantRound& round : halving_) {
    begin();
    for (const PartRun& run : round.given) {
      const Part given = joined(run);
      send(round.to, from + given.offset, given.size);
    }
    for (const PartRun& run : round.received) {  // one after another, since from the same rank
      const Part added = joined(run);
      engine_->receive(round.from, header_of(added.size), sums + added.offset, &round_->group,
                       &round_->incoming.emplace_back(),
                       {combine_, from + added.offset, op_->element});
    }
    if (Failure failure = finish(); !failure.ok()) return failure;
    heard_.push_back(round.from);
    from = sums;
  }
  return {};
}

Failure Collectives::reduce() {
  const int32_t root = op_->root_or_peer;
  const bool is_root = rank_ == root;
  const uint64_t bytes = op_->count * op_->element;
  const bool split = size_ > 2 && !is_small(bytes);
  even_parts(op_->count);
  const Part mine = part(rank_);
  // Room for the scaled contribution (the root has its recv for it) and for the combined part.
  const bool scales = op_->reduce == DB_PREMUL_SUM && !is_root;
  const uint64_t scaled = scales ? (bytes + 63) / 64 * 64 : 0;
  uint8_t* const room = scratch(scaled + (split && !is_root ? mine.size : 0));
  const uint8_t* own = contribution(is_root ? recv() : room, op_->count);
  if (size_ == 1) {
    copy(recv(), own, bytes);
    return {};
  }
  if (!split) {
    begin();
    if (is_root) {
      receive_combined(own, recv(), bytes);
    } else {
      send(root, own, bytes);
    }
    if (Failure failure = finish(); !failure.ok()) return failure;
    if (is_root) finish_average(recv(), bytes);
    return {};
  }
  uint8_t* const result = is_root ? recv() + mine.offset : room + scaled;
  begin();
  for (const int32_t peer : peers_) send(peer, own + part(peer).offset, part(peer).size);
  receive_combined(own + mine.offset, result, mine.size);
  if (Failure failure = finish(); !failure.ok()) return failure;
  finish_average(result, mine.size);
  begin();
  if (!is_root) send(root, result, mine.size);
  for (const int32_t peer : peers_)
    if (is_root) receive(peer, recv() + part(peer).offset, part(peer).size);
  return finish();
}

Failure Collectives::reduce_scatter() {
  given_parts();
  const Part mine = part(rank_);
  const uint64_t total = part(size_ - 1).offset + part(size_ - 1).size;
  const bool scales = op_->reduce == DB_PREMUL_SUM;
  const uint8_t* own = contribution(scales ? scratch(total) : nullptr, total / op_->element);
  if (size_ == 1) {
    copy(recv(), own, total);
    return {};
  }
  if (halves()) {
    uint8_t* const sums = scratch(total);  // half of it is touched, unless own is there
    if (Failure failure = reduce_by_halving(own, sums); !failure.ok()) return failure;
    copy(recv(), sums + mine.offset, mine.size);
  } else {
    begin();
    for (const int32_t peer : peers_) send(peer, own + part(peer).offset, part(peer).size);
    receive_combined(own + mine.offset, recv(), mine.size);
    if (Failure failure = finish(); !failure.ok()) return failure;
  }
  finish_average(recv(), mine.size);
  return {};
}

const uint8_t* Collectives::contribution(void* room, uint64_t count) {
  if (op_->reduce != DB_PREMUL_SUM) return sent();
  scale(op_->dtype, room, op_->send, count, op_->scale);
  return static_cast<const uint8_t*>(room);
}

void Collectives::finish_average(void* data, uint64_t bytes) const {
  if (op_->reduce == DB_AVG) divide(op_->dtype, data, bytes / op_->element, size_);
}

}  // namespace db::gloo_cpu
