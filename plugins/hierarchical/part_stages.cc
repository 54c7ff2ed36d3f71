#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/reduce.h"
#include "hierarchical/stages.h"

namespace db::hierarchical {
namespace {

constexpr size_t kAlignment = 64;

size_t aligned(uint64_t bytes) {
  return static_cast<size_t>((bytes + kAlignment - 1) / kAlignment * kAlignment);
}

uint64_t sum_of(const std::vector<uint64_t>& counts, size_t before) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(before),
                         uint64_t{0});
}

bool is_gathering(const Op& op) { return op.kind == DB_ALL_GATHER || op.kind == DB_ALL_GATHER_V; }

}  // namespace

PartStages::PartStages(const Op& op, const Group& group, const Manner& manner, Scratch* scratch)
    : Stages(op, group, manner) {
  uint64_t largest = 0, filled = 0, at = 0;
  for (int32_t rank = 0; rank < layout().size(); ++rank) {
    const uint64_t part = part_size(op, op.recv_counts, rank);
    parts_.push_back(part);
    part_at_.push_back(at);
    at += part;
    largest = std::max(largest, part);
    filled += part > 0 ? 1 : 0;
  }
  if (filled == 0) return;
  chunk_ = std::clamp<uint64_t>(manner.chunk_bytes / op.element / filled, 1, largest);
  chunks_ = (largest + chunk_ - 1) / chunk_;
  // The first chunk is the largest.
  uint64_t all = 0, here = 0;
  for (int32_t rank = 0; rank < layout().size(); ++rank) all += piece(rank, 0);
  for (const int32_t rank : layout().own_machine()) here += piece(rank, 0);
  packed_bytes_ = aligned(all * op.element);
  within_bytes_ = has_clients() ? aligned(here * op.element) : 0;
  packed_ = scratch->take(2 * (packed_bytes_ + within_bytes_));
  within_ = packed_ + 2 * packed_bytes_;
}

uint64_t PartStages::piece(int32_t rank, uint64_t chunk) const {
  const uint64_t part = parts_[static_cast<size_t>(rank)];
  return std::min(part, (chunk + 1) * chunk_) - std::min(part, chunk * chunk_);
}

uint64_t PartStages::bundle(int32_t machine, int32_t lane, uint64_t chunk) const {
  const std::vector<int32_t>& ranks = layout().on(machine);
  const auto [begin, end] = clients(static_cast<int32_t>(ranks.size()), manner_.lanes, lane);
  uint64_t total = 0;
  for (int32_t i = begin; i < end; ++i) total += piece(ranks[static_cast<size_t>(i)], chunk);
  return total;
}

void PartStages::size_chunk(uint64_t chunk) {
  const size_t here = layout().own_machine().size();
  sizes_.lane_at.assign(1, 0);
  sizes_.lanes.assign(here, 0);
  sizes_.clients.assign(here, 0);
  sizes_.bundles.clear();
  sizes_.own.clear();
  for (int32_t j = 0; j < manner_.lanes; ++j) {
    uint64_t total = 0;
    for (int32_t machine = 0; machine < layout().machine_count(); ++machine) {
      const uint64_t size = bundle(machine, j, chunk);
      if (j == layout().index()) sizes_.bundles.push_back(size);
      if (machine == layout().machine()) sizes_.clients[static_cast<size_t>(j)] = size;
      total += size;
    }
    sizes_.lanes[static_cast<size_t>(j)] = total;
    sizes_.lane_at.push_back(sizes_.lane_at.back() + total);
  }
  for (const int32_t rank : layout().own_machine()) sizes_.own.push_back(piece(rank, chunk));
}

Failure PartStages::start(int stage, uint64_t chunk, bool blocking, Pending* pending) {
  size_chunk(chunk);
  return is_gathering(op_) ? start_gather(stage, chunk, blocking, pending)
                           : start_scatter(stage, chunk, blocking, pending);
}

Failure PartStages::start_gather(int stage, uint64_t chunk, bool blocking, Pending* pending) {
  const auto index = static_cast<size_t>(layout().index());
  const uint64_t part = parts_[static_cast<size_t>(layout().rank)];
  const auto* const own =
      static_cast<const uint8_t*>(op_.send) + std::min(part, chunk * chunk_) * op_.element;
  uint8_t* const all = packed(chunk);
  const size_t j = std::min(index, static_cast<size_t>(manner_.lanes));
  uint8_t* const lane = all + sizes_.lane_at[j] * op_.element;
  if (stage == 0) {
    if (!has_clients()) return {};
    db_op op = make_op(DB_ALL_GATHER_V, 0);
    op.send = own;
    op.recv = within(chunk);
    op.recv_counts = sizes_.own.data();
    return start_within(op, 0, blocking, pending);
  }
  if (stage == 1) {
    if (!in_lane()) return {};
    db_op op = make_op(DB_ALL_GATHER_V, 1);
    op.send = has_clients() ? within(chunk) + sum_of(sizes_.clients, index) * op_.element : own;
    op.recv = lane;
    op.recv_counts = sizes_.bundles.data();
    return start_across(op, blocking, pending);
  }
  return spread_within(lane, all, sizes_.lanes, sizes_.lane_at.back(), blocking, pending);
}

Failure PartStages::start_scatter(int stage, uint64_t chunk, bool blocking, Pending* pending) {
  const auto index = static_cast<size_t>(layout().index());
  uint8_t* const all = packed(chunk);
  const size_t j = std::min(index, static_cast<size_t>(manner_.lanes));
  uint8_t* const lane = all + sizes_.lane_at[j] * op_.element;
  if (stage == 0) {
    pack(chunk);
    return reduce_within(all, lane, sizes_.lanes, sizes_.lane_at.back(), blocking, pending);
  }
  uint8_t* const sums =
      in_lane()
          ? lane + sum_of(sizes_.bundles, static_cast<size_t>(layout().machine())) * op_.element
          : lane;
  if (stage == 1) {
    if (!in_lane()) return {};
    db_op op = make_op(DB_REDUCE_SCATTER_V, 1);
    op.send = lane;
    op.recv = sums;
    op.recv_counts = sizes_.bundles.data();
    return start_across(op, blocking, pending);
  }
  if (op_.reduce == DB_AVG && in_lane() && sizes_.clients[index] > 0)
    divide(op_.dtype, sums, sizes_.clients[index], layout().size());
  if (!has_clients()) return {};
  db_op op = make_op(DB_ALL_GATHER_V, 2);
  op.send = sums;
  op.recv = within(chunk);
  op.recv_counts = sizes_.clients.data();
  return start_within(op, 2, blocking, pending);
}

// Calls copy(rank, offset in the packed data, elements), in the order of the packed data.
template <class Copy>
void PartStages::each_piece(uint64_t chunk, const Copy& copy) const {
  uint64_t at = 0;
  for (int32_t j = 0; j < manner_.lanes; ++j) {
    for (const std::vector<int32_t>& ranks : layout().machines) {
      const auto [begin, end] = clients(static_cast<int32_t>(ranks.size()), manner_.lanes, j);
      for (int32_t i = begin; i < end; ++i) {
        const int32_t rank = ranks[static_cast<size_t>(i)];
        const uint64_t count = piece(rank, chunk);
        if (count > 0) copy(static_cast<size_t>(rank), at, count);
        at += count;
      }
    }
  }
}

void PartStages::pack(uint64_t chunk) {
  const auto* const from = static_cast<const uint8_t*>(op_.send);
  uint8_t* const to = packed(chunk);
  each_piece(chunk, [&](size_t rank, uint64_t at, uint64_t count) {
    std::memcpy(to + at * op_.element, from + (part_at_[rank] + chunk * chunk_) * op_.element,
                count * op_.element);
  });
}

void PartStages::unpack(uint64_t chunk) {
  const uint8_t* const from = packed(chunk);
  auto* const to = static_cast<uint8_t*>(op_.recv);
  each_piece(chunk, [&](size_t rank, uint64_t at, uint64_t count) {
    std::memcpy(to + (part_at_[rank] + chunk * chunk_) * op_.element, from + at * op_.element,
                count * op_.element);
  });
}

void PartStages::finish(uint64_t chunk) {
  if (is_gathering(op_)) return unpack(chunk);
  size_chunk(chunk);
  const auto index = static_cast<size_t>(layout().index());
  const uint64_t count = sizes_.own[index];
  if (count == 0) return;
  // Without other clients, the bundle of this rank's lane is its own piece.
  const uint8_t* const from =
      has_clients()
          ? within(chunk) + sum_of(sizes_.own, index) * op_.element
          : packed(chunk) + (sizes_.lane_at[index] +
                             sum_of(sizes_.bundles, static_cast<size_t>(layout().machine()))) *
                                op_.element;
  std::memcpy(static_cast<uint8_t*>(op_.recv) + chunk * chunk_ * op_.element, from,
              count * op_.element);
}

}  // namespace db::hierarchical
