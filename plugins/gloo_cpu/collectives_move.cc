// The collectives that only move data.
#include <algorithm>

#include "gloo_cpu/collectives.h"

namespace db::gloo_cpu {

Failure Collectives::broadcast() {
  const int32_t root = op_->root_or_peer;
  const bool is_root = rank_ == root;
  const uint64_t bytes = op_->count * op_->element;
  const uint8_t* const data = is_root ? sent() : recv();
  const bool split = size_ > 2 && !is_small(bytes);
  if (!split) {
    begin();
    if (!is_root) receive(root, recv(), bytes);
    for (const int32_t peer : peers_)
      if (is_root) send(peer, data, bytes);
  } else {
    // The root hands each rank a part, then every rank passes its part on to the others.
    even_parts(op_->count);
    const Part mine = part(rank_);
    begin();
    if (!is_root) receive(root, recv() + mine.offset, mine.size);
    for (const int32_t peer : peers_)
      if (is_root) send(peer, data + part(peer).offset, part(peer).size);
    if (Failure failure = finish(); !failure.ok()) return failure;
    begin();
    for (const int32_t peer : peers_) {
      if (peer != root) send(peer, data + mine.offset, mine.size);
      if (!is_root) receive(peer, recv() + part(peer).offset, part(peer).size);
    }
  }
  if (Failure failure = finish(); !failure.ok()) return failure;
  if (is_root) copy(recv(), sent(), bytes);
  return {};
}

Failure Collectives::all_gather() {
  given_parts();
  copy(recv() + part(rank_).offset, sent(), part(rank_).size);
  return spread(recv());
}

// Brings every rank's part of data to all others.
Failure Collectives::spread(uint8_t* data) {
  for (auto round = halving_.rbegin(); round != halving_.rend(); ++round) {
    begin();
    for (const PartRun& run : round->received) {
      const Part passed_on = joined(run);
      send(round->from, data + passed_on.offset, passed_on.size);
    }
    for (const PartRun& run : round->given) {
      const Part from_next = joined(run);
      receive(round->to, data + from_next.offset, from_next.size);
    }
    if (Failure failure = finish(); !failure.ok()) return failure;
    heard_.push_back(round->to);
  }
  if (halves()) return {};
  begin();
  for (const int32_t peer : peers_) {
    send(peer, data + part(rank_).offset, part(rank_).size);
    receive(peer, data + part(peer).offset, part(peer).size);
  }
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
    // Arriving data would overwrite data that has not been sent yet.
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
    for (const int32_t peer : peers_)
      receive(peer, recv() + static_cast<uint64_t>(peer) * bytes, bytes);
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
    for (const int32_t peer : peers_)
      send(peer, sent() + static_cast<uint64_t>(peer) * bytes, bytes);
    copy(recv(), sent() + static_cast<uint64_t>(rank_) * bytes, bytes);
  } else {
    receive(root, recv(), bytes);
  }
  return finish();
}

Failure Collectives::barrier() {
  given_parts();  // of no bytes
  return spread(nullptr);
}

}  // namespace db::gloo_cpu
