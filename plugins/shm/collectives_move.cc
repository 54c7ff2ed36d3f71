// The collectives that only move data.
#include <algorithm>
#include <string>

#include "shm/collectives.h"
#include "shm/copy.h"
#include "shm/move.h"

namespace db::shm {

Failure Collectives::broadcast() {
  const int32_t root = op_->root_or_peer;
  const bool is_root = rank_ == root;
  const uint64_t bytes = op_->count * op_->element;
  Failure failure = move(
      bytes, false,
      [&](uint8_t* buffer, const Stretch& stretch) {
        if (is_root) copy(buffer, sent(stretch.offset), stretch.of(bytes));
      },
      [&](const Stretch& stretch) {
        if (!is_root) deliver(recv(stretch.offset), from(root), stretch.of(bytes));
      });
  if (failure.ok() && is_root) copy(recv(), sent(), bytes);
  return failure;
}

Failure Collectives::all_gather() {
  uint64_t end = 0;
  for (int32_t rank = 0; rank < size_; ++rank) {
    offsets_[static_cast<size_t>(rank)] = end;
    end += part_bytes(op_->recv_counts, rank);
  }
  const uint64_t own = part_bytes(op_->recv_counts, rank_);
  Failure failure = move(
      largest_part(), false,
      [&](uint8_t* buffer, const Stretch& stretch) {
        copy(buffer, sent(stretch.offset), stretch.of(own));
      },
      [&](const Stretch& stretch) {
        for (int32_t i = 1; i < size_; ++i) {
          const int32_t rank = (rank_ + i) % size_;
          deliver(recv(offsets_[static_cast<size_t>(rank)] + stretch.offset), from(rank),
                  stretch.of(part_bytes(op_->recv_counts, rank)));
        }
      });
  if (failure.ok()) copy(recv(offsets_[static_cast<size_t>(rank_)]), sent(), own);
  return failure;
}

Failure Collectives::gather() {
  const bool is_root = rank_ == op_->root_or_peer;
  const uint64_t bytes = op_->count * op_->element;
  Failure failure = move(
      bytes, false,
      [&](uint8_t* buffer, const Stretch& stretch) {
        if (!is_root) copy(buffer, sent(stretch.offset), stretch.of(bytes));
      },
      [&](const Stretch& stretch) {
        for (int32_t rank = 0; rank < size_ && is_root; ++rank)
          if (rank != rank_)
            deliver(recv(static_cast<uint64_t>(rank) * bytes + stretch.offset), from(rank),
                    stretch.of(bytes));
      });
  if (failure.ok() && is_root) copy(recv(static_cast<uint64_t>(rank_) * bytes), sent(), bytes);
  return failure;
}

Failure Collectives::scatter() {
  const int32_t root = op_->root_or_peer;
  const bool is_root = rank_ == root;
  const uint64_t bytes = op_->count * op_->element;
  Failure failure = move(
      bytes, true,
      [&](uint8_t* buffer, const Stretch& stretch) {
        for (int32_t rank = 0; rank < size_ && is_root; ++rank)
          if (rank != rank_)
            copy(buffer + static_cast<uint64_t>(rank) * stretch.stride,
                 sent(static_cast<uint64_t>(rank) * bytes + stretch.offset), stretch.of(bytes));
      },
      [&](const Stretch& stretch) {
        if (!is_root) deliver(recv(stretch.offset), from(root), stretch.of(bytes));
      });
  if (failure.ok() && is_root) copy(recv(), sent(static_cast<uint64_t>(rank_) * bytes), bytes);
  return failure;
}

// The ranks' counts differ, so each shows its own first. *most: the largest part of all.
Failure Collectives::agree_on_counts(uint64_t* most) {
  const uint32_t number = synchronizer_->number();
  auto* const shown = reinterpret_cast<uint64_t*>(segment_->slot(rank_, number));
  for (int32_t rank = 0; rank < size_; ++rank) shown[rank] = part_bytes(op_->send_counts, rank);
  synchronizer_->enter();
  if (Failure failure = synchronizer_->await_entries(); !failure.ok()) return failure;
  *most = 0;
  for (int32_t peer = 0; peer < size_; ++peer) {
    const auto* const theirs = reinterpret_cast<const uint64_t*>(segment_->slot(peer, number));
    *most = std::max(*most, *std::max_element(theirs, theirs + size_));
    const uint64_t expected = part_bytes(op_->recv_counts, peer);
    if (theirs[rank_] == expected) continue;
    return Failure::make(DB_ERR_MISMATCH,
                         "the ranks disagree on " + describe(*op_) + ": rank " +
                             std::to_string(peer) + " sends " + std::to_string(theirs[rank_]) +
                             " bytes to rank " + std::to_string(rank_) + ", which expects " +
                             std::to_string(expected),
                         DB_ERROR_COMM_DEAD, peer);
  }
  return {};
}

// In place, a chunk is received where the same chunk was sent from, which is staged by then; a
// rank's chunks of one number are all staged before any is received.
Failure Collectives::all_to_all() {
  const auto put = [&](uint8_t* buffer, const Stretch& stretch) {
    uint64_t begin = 0;
    for (int32_t rank = 0; rank < size_; ++rank) {
      const uint64_t bytes = part_bytes(op_->send_counts, rank);
      if (rank != rank_)
        copy(buffer + static_cast<uint64_t>(rank) * stretch.stride, sent(begin + stretch.offset),
             stretch.of(bytes));
      begin += bytes;
    }
  };
  const auto take = [&](const Stretch& stretch) {
    uint64_t begin = 0;
    for (int32_t rank = 0; rank < size_; ++rank) {
      const uint64_t bytes = part_bytes(op_->recv_counts, rank);
      if (rank != rank_) deliver(recv(begin + stretch.offset), from(rank), stretch.of(bytes));
      begin += bytes;
    }
  };
  uint64_t most = op_->count * op_->element;
  Failure failure;
  if (op_->kind == DB_ALL_TO_ALL_V) {
    failure = agree_on_counts(&most);
    if (failure.ok()) failure = move_in_chunks(most, true, put, take);
  } else {
    failure = move(most, true, put, take);
  }
  if (failure.ok() && !op_->in_place)
    copy(recv(part_offset(*op_, op_->recv_counts, rank_)),
         sent(part_offset(*op_, op_->send_counts, rank_)), part_bytes(op_->recv_counts, rank_));
  return failure;
}

}  // namespace db::shm
