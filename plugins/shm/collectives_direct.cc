// The collectives on buffers that all ranks can reach. Once all have entered, each rank reads its
// peers' send buffers. all_reduce and reduce are divided among the ranks: each combines one part
// and writes the result to all recv buffers. Only it touches that part of any buffer, so nothing is
// overwritten that a peer still reads, in place or not. A rank is done when all are.
#include <algorithm>
#include <cstring>

#include "shm/collectives.h"
#include "shm/copy.h"
#include "shm/move.h"

namespace db::shm {

bool Collectives::is_large(uint64_t most, bool personal) const {
  const uint64_t room = segment_->layout().slot_bytes;
  const uint64_t parts = personal ? static_cast<uint64_t>(size_) : 1;
  return most > room || (most + 63) / 64 * 64 * parts > room;
}

bool Collectives::may_be_direct() const {
  switch (op_->kind) {
    case DB_ALL_REDUCE:
    case DB_REDUCE:
      // Each rank scales its own data, which has to be somewhere.
      return op_->reduce != DB_PREMUL_SUM && is_large(op_->count * op_->element, false);
    case DB_REDUCE_SCATTER:
    case DB_REDUCE_SCATTER_V:
      return op_->reduce != DB_PREMUL_SUM && is_large(largest_part(), true);
    case DB_ALL_GATHER:
    case DB_ALL_GATHER_V:
      return is_large(largest_part(), false);
    case DB_BROADCAST:
      return is_large(op_->count * op_->element, false);
    default:
      return false;
  }
}

Failure Collectives::enter_large() {
  if (entered_) return {};
  const uint32_t number = synchronizer_->number();
  const Places own{arena_->is_mapped() ? uint64_t{1} : 0,
                   arena_->place_of(op_->send, op_->send_size * op_->element),
                   arena_->place_of(op_->recv, op_->recv_size * op_->element)};
  std::memcpy(segment_->entry(rank_, number).data.data(), &own, sizeof own);
  synchronizer_->enter();
  if (Failure failure = synchronizer_->await_entries(); !failure.ok()) return failure;
  for (int32_t rank = 0; rank < size_; ++rank)
    std::memcpy(&places_[static_cast<size_t>(rank)], segment_->entry(rank, number).data.data(),
                sizeof(Places));
  entered_ = true;
  return {};
}

bool Collectives::is_reachable() const {
  const auto all = [&](const auto& holds) {
    for (int32_t rank = 0; rank < size_; ++rank)
      if (!holds(rank)) return false;
    return true;
  };
  const auto sends = [&](int32_t rank) { return places(rank).send != 0; };
  const auto receives = [&](int32_t rank) { return places(rank).recv != 0; };
  if (!all([&](int32_t rank) { return places(rank).maps != 0; })) return false;
  switch (op_->kind) {
    case DB_ALL_REDUCE:
      return all(sends) && all(receives);
    case DB_REDUCE:
      return all(sends) && receives(op_->root_or_peer);
    case DB_BROADCAST:
      return sends(op_->root_or_peer);
    case DB_ALL_GATHER:
    case DB_ALL_GATHER_V:
      return all(
          [&](int32_t rank) { return sends(rank) || part_bytes(op_->recv_counts, rank) == 0; });
    default:
      return all(sends);
  }
}

Failure Collectives::run_directly() {
  switch (op_->kind) {
    case DB_ALL_REDUCE:
    case DB_REDUCE:
      reduce_directly();
      break;
    case DB_BROADCAST:
      broadcast_directly();
      break;
    case DB_ALL_GATHER:
    case DB_ALL_GATHER_V:
      all_gather_directly();
      break;
    default:
      reduce_scatter_directly();
  }
  // After success a rank leaves only when this one is done as well.
  if (Failure failure = synchronizer_->require_all_present(); !failure.ok()) return failure;
  return synchronizer_->await(synchronizer_->publish());
}

// each(offset, bytes) for blocks that fit into a core's cache, as a part of a chunk does.
template <class Each>
void Collectives::each_block(uint64_t begin, uint64_t end, const Each& each) {
  const uint64_t block = segment_->layout().chunk_bytes / static_cast<uint64_t>(size_) / 64 * 64;
  block_.resize(block);
  for (uint64_t offset = begin; offset < end; offset += block)
    each(offset, std::min(block, end - offset));
}

void Collectives::reduce_directly() {
  const uint64_t total = op_->count * op_->element;
  const auto ranks = static_cast<uint64_t>(size_);
  const uint64_t part = ((total + ranks - 1) / ranks + 63) / 64 * 64;
  const uint64_t begin = std::min(part * static_cast<uint64_t>(rank_), total);
  const bool to_all = op_->kind == DB_ALL_REDUCE;
  const int32_t first = to_all ? 0 : op_->root_or_peer;  // whose recv gets the result first
  // The first two ranks' data may be overwritten while it is combined.
  const bool aside = first >= 2 && places(first).send == places(first).recv;
  each_block(begin, std::min(begin + part, total), [&](uint64_t offset, uint64_t bytes) {
    find_sources(offset, [&](int32_t rank) { return arena_->at(places(rank).send); });
    uint8_t* const result = arena_->at(places(first).recv) + offset;
    uint8_t* const out = aside ? block_.data() : result;
    combine(out, from(rank_), bytes);
    finish_average(out, bytes);
    copy(result, out, bytes);
    for (int32_t rank = 1; rank < size_ && to_all; ++rank)
      deliver(arena_->at(places(rank).recv) + offset, out, bytes);
  });
}

void Collectives::reduce_scatter_directly() {
  const uint64_t begin = part_offset(*op_, op_->recv_counts, rank_);
  const bool aside = rank_ >= 2 && op_->in_place;
  each_block(0, part_bytes(op_->recv_counts, rank_), [&](uint64_t offset, uint64_t bytes) {
    find_sources(begin + offset, [&](int32_t rank) { return arena_->at(places(rank).send); });
    uint8_t* const out = aside ? block_.data() : recv(offset);
    combine(out, from(rank_), bytes);
    finish_average(out, bytes);
    copy(recv(offset), out, bytes);
  });
}

void Collectives::all_gather_directly() {
  for (int32_t i = 1; i < size_; ++i) {
    const int32_t rank = (rank_ + i) % size_;
    const uint64_t bytes = part_bytes(op_->recv_counts, rank);
    if (bytes > 0)
      deliver(recv(part_offset(*op_, op_->recv_counts, rank)), arena_->at(places(rank).send),
              bytes);
  }
  copy(recv(part_offset(*op_, op_->recv_counts, rank_)), sent(),
       part_bytes(op_->recv_counts, rank_));
}

void Collectives::broadcast_directly() {
  const uint64_t bytes = op_->count * op_->element;
  if (rank_ == op_->root_or_peer) {
    copy(recv(), sent(), bytes);
  } else {
    deliver(recv(), arena_->at(places(op_->root_or_peer).send), bytes);
  }
}

}  // namespace db::shm
