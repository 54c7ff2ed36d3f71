#include "collectives.h"

#include <algorithm>
#include <cstring>

#include "common/reduce.h"

namespace db::gloo_cpu {
namespace {

constexpr uint64_t kKeptScratch = 16 << 20;  // more is given back after the operation

void copy(void* to, const void* from, uint64_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

Collectives::Collectives(int32_t rank, int32_t size, Lanes* lanes, CollectiveLimits limits)
    : rank_(rank), size_(size), lanes_(lanes), limits_(limits) {
  for (Round& round : rounds_) {  // messages must stay where they are: never more than this
    round.outgoing.reserve(static_cast<size_t>(size - 1));
    round.incoming.reserve(static_cast<size_t>(size - 1));
  }
  parts_.resize(static_cast<size_t>(size));
}

Failure Collectives::run(const Op& op) {
  op_ = &op;
  combine_ = op.reduce != 0 ? reduce_function(op.dtype, op.reduce) : nullptr;
  header_ = make_header(op, size_);
  header_.sequence = ++sequence_;
  last_combined_ = nullptr;
  Failure failure = dispatch();
  if (scratch_size_ > kKeptScratch) {
    scratch_.reset();
    scratch_size_ = 0;
  }
  return failure;
}

Failure Collectives::dispatch() {
  switch (op_->kind) {
    case DB_ALL_REDUCE:
      return all_reduce();
    case DB_BROADCAST:
      return broadcast();
    case DB_REDUCE:
      return reduce();
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
      return Failure::make(DB_ERR_UNSUPPORTED, "gloo_cpu: no such operation");
  }
}

// ---- Reductions --------------------------------------------------------------------------------

Failure Collectives::all_reduce() {
  const uint64_t bytes = op_->count * op_->element;
  if (size_ > 1 && is_small(bytes)) return exchange_all();
  const uint8_t* own = contribution(recv(), op_->count);
  if (size_ == 1) {
    copy(recv(), own, bytes);
    return {};
  }
  return reduce_and_spread(own);
}

// Large all_reduce, in slices: while the combined parts of one slice are spread, the next one is
// being combined. Slots 0 and 1 combine, 2 and 3 spread.
Failure Collectives::reduce_and_spread(const uint8_t* own) {
  const uint64_t slice = limits_.slice_bytes / op_->element;
  const uint64_t slices = std::max<uint64_t>((op_->count + slice - 1) / slice, 1);
  const auto at = [&](uint64_t i) { return i * slice * op_->element; };
  const auto divide_up = [&](uint64_t i) { even_parts(std::min(slice, op_->count - i * slice)); };
  const auto combine = [&](uint64_t i) {
    divide_up(i);
    header_.round = static_cast<uint32_t>(2 * i);
    begin(i % 2);
    for (int32_t step = 1; step < size_; ++step) {
      const int32_t peer = peer_at(step);
      send(peer, own + at(i) + part(peer).offset, part(peer).size);
    }
    const uint64_t mine = at(i) + part(rank_).offset;
    receive_combined(own + mine, recv() + mine, part(rank_).size);
  };
  const auto spread = [&](uint64_t i) {
    divide_up(i);
    header_.round = static_cast<uint32_t>(2 * i + 1);
    begin(2 + i % 2);
    uint8_t* const to = recv() + at(i);
    finish_average(to + part(rank_).offset, part(rank_).size);
    for (int32_t step = 1; step < size_; ++step) {
      const int32_t peer = peer_at(step);
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

// Small all_reduce: what comes is kept apart until everything is sent and here.
Failure Collectives::exchange_all() {
  const uint64_t bytes = op_->count * op_->element;
  const auto slot = [&](int32_t rank) {
    return scratch_.get() + static_cast<uint64_t>(rank) * bytes;
  };
  scratch(bytes * (static_cast<uint64_t>(size_) + 1));
  const uint8_t* own = contribution(slot(rank_), op_->count);
  begin();
  for (int32_t step = 1; step < size_; ++step) {
    send(peer_at(step), own, bytes);
    receive(peer_at(step), slot(peer_at(step)), bytes);
  }
  if (Failure failure = finish(); !failure.ok()) return failure;
  const auto from = [&](int32_t rank) -> const void* { return rank == rank_ ? own : slot(rank); };
  uint8_t* const sum = slot(size_);  // recv may still hold this rank's contribution
  for (int32_t rank = 1; rank < size_; ++rank) {
    combine_(rank + 1 == size_ ? recv() : sum, rank == 1 ? from(0) : sum, from(rank), op_->count);
  }
  finish_average(recv(), bytes);
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
  for (int32_t step = 1; step < size_; ++step) {
    const int32_t peer = peer_at(step);
    send(peer, own + part(peer).offset, part(peer).size);
  }
  receive_combined(own + mine.offset, result, mine.size);
  if (Failure failure = finish(); !failure.ok()) return failure;
  finish_average(result, mine.size);
  begin();
  if (!is_root) send(root, result, mine.size);
  for (int32_t step = 1; is_root && step < size_; ++step) {
    const int32_t peer = peer_at(step);
    receive(peer, recv() + part(peer).offset, part(peer).size);
  }
  return finish();
}

Failure Collectives::reduce_scatter() {
  if (op_->recv_counts != nullptr) {
    counted_parts(op_->recv_counts);
  } else {
    equal_parts(op_->count);
  }
  const Part mine = part(rank_);
  const uint64_t total = part(size_ - 1).offset + part(size_ - 1).size;
  const bool scales = op_->reduce == DB_PREMUL_SUM;
  const uint8_t* own = contribution(scales ? scratch(total) : nullptr, total / op_->element);
  if (size_ == 1) {
    copy(recv(), own, total);
    return {};
  }
  begin();
  for (int32_t step = 1; step < size_; ++step) {
    const int32_t peer = peer_at(step);
    send(peer, own + part(peer).offset, part(peer).size);
  }
  receive_combined(own + mine.offset, recv(), mine.size);
  if (Failure failure = finish(); !failure.ok()) return failure;
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

// ---- Moving data -------------------------------------------------------------------------------

Failure Collectives::broadcast() {
  const int32_t root = op_->root_or_peer;
  const bool is_root = rank_ == root;
  const uint64_t bytes = op_->count * op_->element;
  const uint8_t* const data = is_root ? sent() : recv();
  const bool split = size_ > 2 && !is_small(bytes);
  if (!split) {
    begin();
    if (!is_root) receive(root, recv(), bytes);
    for (int32_t step = 1; is_root && step < size_; ++step) send(peer_at(step), data, bytes);
  } else {
    // The root hands each rank a part, then every rank passes its part on to the others.
    even_parts(op_->count);
    const Part mine = part(rank_);
    begin();
    if (!is_root) receive(root, recv() + mine.offset, mine.size);
    for (int32_t step = 1; is_root && step < size_; ++step) {
      const int32_t peer = peer_at(step);
      send(peer, data + part(peer).offset, part(peer).size);
    }
    if (Failure failure = finish(); !failure.ok()) return failure;
    begin();
    for (int32_t step = 1; step < size_; ++step) {
      const int32_t peer = peer_at(step);
      if (peer != root) send(peer, data + mine.offset, mine.size);
      if (!is_root) receive(peer, recv() + part(peer).offset, part(peer).size);
    }
  }
  if (Failure failure = finish(); !failure.ok()) return failure;
  if (is_root) copy(recv(), sent(), bytes);
  return {};
}

Failure Collectives::all_gather() {
  if (op_->recv_counts != nullptr) {
    counted_parts(op_->recv_counts);
  } else {
    equal_parts(op_->count);
  }
  const Part mine = part(rank_);
  begin();
  for (int32_t step = 1; step < size_; ++step) {
    const int32_t peer = peer_at(step);
    send(peer, sent(), mine.size);
    receive(peer, recv() + part(peer).offset, part(peer).size);
  }
  copy(recv() + mine.offset, sent(), mine.size);
  return finish();
}

Failure Collectives::all_to_all() {
  const auto each = [&](const uint64_t* counts, int32_t rank) {
    return (counts != nullptr ? counts[rank] : op_->count) * op_->element;
  };
  const uint8_t* data = sent();
  uint64_t total = 0;
  for (int32_t rank = 0; rank < size_; ++rank) total += each(op_->send_counts, rank);
  if (op_->in_place && size_ > 1) {
    // What comes would overwrite what has not gone yet.
    uint8_t* const room = scratch(total);
    copy(room, data, total);
    data = room;
  }
  begin();
  uint64_t from = 0, to = 0, own_from = 0, own_to = 0;
  for (int32_t rank = 0; rank < size_; ++rank) {
    const uint64_t out = each(op_->send_counts, rank), in = each(op_->recv_counts, rank);
    if (rank == rank_) {
      own_from = from;
      own_to = to;
    } else {
      send(rank, data + from, out);
      receive(rank, recv() + to, in);
    }
    from += out;
    to += in;
  }
  if (!op_->in_place) copy(recv() + own_to, data + own_from, each(op_->send_counts, rank_));
  return finish();
}

Failure Collectives::gather() {
  const int32_t root = op_->root_or_peer;
  const uint64_t bytes = op_->count * op_->element;
  begin();
  if (rank_ == root) {
    for (int32_t step = 1; step < size_; ++step) {
      const int32_t peer = peer_at(step);
      receive(peer, recv() + static_cast<uint64_t>(peer) * bytes, bytes);
    }
    copy(recv() + static_cast<uint64_t>(rank_) * bytes, sent(), bytes);
  } else {
    send(root, sent(), bytes);
  }
  return finish();
}

Failure Collectives::scatter() {
  const int32_t root = op_->root_or_peer;
  const uint64_t bytes = op_->count * op_->element;
  begin();
  if (rank_ == root) {
    for (int32_t step = 1; step < size_; ++step) {
      const int32_t peer = peer_at(step);
      send(peer, sent() + static_cast<uint64_t>(peer) * bytes, bytes);
    }
    copy(recv(), sent() + static_cast<uint64_t>(rank_) * bytes, bytes);
  } else {
    receive(root, recv(), bytes);
  }
  return finish();
}

Failure Collectives::barrier() {
  begin();
  for (int32_t step = 1; step < size_; ++step) {
    send(peer_at(step), nullptr, 0);
    receive(peer_at(step), nullptr, 0);
  }
  return finish();
}

// ---- Rounds and parts --------------------------------------------------------------------------

void Collectives::begin(uint32_t slot) {
  round_ = &rounds_[slot];
  round_->outgoing.clear();
  round_->incoming.clear();
  round_->group.pending = 0;
}

void Collectives::send(int32_t peer, const void* data, uint64_t bytes) {
  Outgoing& message = round_->outgoing.emplace_back();
  message.header = header_;
  message.header.bytes = bytes;
  message.data = static_cast<const uint8_t*>(data);
  message.group = &round_->group;
  lanes_->send(peer, &message);
}

void Collectives::receive(int32_t peer, void* data, uint64_t bytes) {
  Incoming& message = round_->incoming.emplace_back();
  message.expected = header_;
  message.expected.bytes = bytes;
  message.data = static_cast<uint8_t*>(data);
  message.group = &round_->group;
  lanes_->receive(peer, &message);
}

void Collectives::receive_combined(const void* own, void* data, uint64_t bytes) {
  for (int32_t step = 1; step < size_; ++step) {
    Incoming& message = round_->incoming.emplace_back();
    message.expected = header_;
    message.expected.bytes = bytes;
    message.data = static_cast<uint8_t*>(data);
    message.combine = {combine_, static_cast<const uint8_t*>(step == 1 ? own : data), op_->element};
    message.group = &round_->group;
    message.after = last_combined_;
    last_combined_ = &message;
    lanes_->receive(peer_at(step), &message);
  }
}

Failure Collectives::finish(uint32_t slot) {
  Round& round = rounds_[slot];
  if (round.group.pending > 0) {
    const int64_t spin = op_->blocking ? limits_.spin_ns : 0;
    if (Failure failure = lanes_->wait(round.group, op_->deadline_ns, spin); !failure.ok()) {
      if (!round.incoming.empty()) header_.round = round.incoming.front().expected.round;
      return failure;
    }
  }
  // Its messages will be used again: nobody may wait for their completion then.
  for (Round& other : rounds_)
    for (Incoming& message : other.incoming)
      if (!round.incoming.empty() && message.after == &round.incoming.back())
        message.after = nullptr;
  if (!round.incoming.empty() && last_combined_ == &round.incoming.back()) last_combined_ = nullptr;
  ++header_.round;
  return {};
}

bool Collectives::is_small(uint64_t bytes) const {
  if (size_ == 2) return bytes <= limits_.pair_exchange_bytes;
  return bytes <= limits_.exchange_bytes / static_cast<uint64_t>(size_ - 1);
}

void Collectives::even_parts(uint64_t count) {
  const auto ranks = static_cast<uint64_t>(size_);
  const uint64_t each = count / ranks, longer = count % ranks;
  uint64_t offset = 0;
  for (uint64_t i = 0; i < ranks; ++i) {
    const uint64_t bytes = (each + (i < longer ? 1 : 0)) * op_->element;
    parts_[i] = {offset, bytes};
    offset += bytes;
  }
}

void Collectives::equal_parts(uint64_t count) {
  const uint64_t bytes = count * op_->element;
  for (uint64_t i = 0; i < parts_.size(); ++i) parts_[i] = {i * bytes, bytes};
}

void Collectives::counted_parts(const uint64_t* counts) {
  uint64_t offset = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i] = {offset, counts[i] * op_->element};
    offset += parts_[i].size;
  }
}

uint8_t* Collectives::scratch(uint64_t bytes) {
  if (bytes > scratch_size_) {
    scratch_.reset();  // first: two at once may be too many
    scratch_.reset(new uint8_t[bytes]);
    scratch_size_ = bytes;
  }
  return scratch_.get();
}

}  // namespace db::gloo_cpu
