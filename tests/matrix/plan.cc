#include "plan.h"

#include "comm/flight_recorder.h"
#include "values.h"

namespace coupler::matrix {

uint64_t Plan::before(int rank) const {
  uint64_t sum = 0;
  for (int i = 0; i < rank; ++i) sum += count_of(i);
  return sum;
}

uint64_t Plan::between(int from, int to) const {
  if (cell.count == 0 || (from + to) % 3 == 2) return 0;
  return cell.count + static_cast<uint64_t>(from + to);
}

uint64_t Plan::sent_before(int from, int to) const {
  uint64_t sum = 0;
  for (int i = 0; i < to; ++i) sum += between(from, i);
  return sum;
}

uint64_t Plan::send_size(int rank) const {
  const auto ranks = static_cast<uint64_t>(world_size);
  switch (cell.kind) {
    case DB_ALL_REDUCE:
    case DB_REDUCE:
    case DB_ALL_GATHER:
    case DB_GATHER:
      return cell.count;
    case DB_BROADCAST:
      return rank == root ? cell.count : 0;
    case DB_ALL_GATHER_V:
      return count_of(rank);
    case DB_REDUCE_SCATTER:
    case DB_ALL_TO_ALL:
      return ranks * cell.count;
    case DB_REDUCE_SCATTER_V:
      return before(world_size);
    case DB_ALL_TO_ALL_V:
      return sent_before(rank, world_size);
    case DB_SCATTER:
      return rank == root ? ranks * cell.count : 0;
    default:
      return 0;
  }
}

uint64_t Plan::recv_size(int rank) const {
  const auto ranks = static_cast<uint64_t>(world_size);
  switch (cell.kind) {
    case DB_ALL_REDUCE:
    case DB_BROADCAST:
    case DB_REDUCE_SCATTER:
    case DB_SCATTER:
      return cell.count;
    case DB_REDUCE:
      return rank == root ? cell.count : 0;
    case DB_ALL_GATHER:
    case DB_ALL_TO_ALL:
      return ranks * cell.count;
    case DB_ALL_GATHER_V:
      return before(world_size);
    case DB_REDUCE_SCATTER_V:
      return count_of(rank);
    case DB_ALL_TO_ALL_V:
      return sent_before(rank, world_size);
    case DB_GATHER:
      return rank == root ? ranks * cell.count : 0;
    default:
      return 0;
  }
}

uint64_t Plan::part() const {
  switch (cell.kind) {
    case DB_ALL_GATHER:
    case DB_GATHER:
    case DB_REDUCE_SCATTER:
    case DB_SCATTER:
      return static_cast<uint64_t>(me) * cell.count;
    case DB_ALL_GATHER_V:
    case DB_REDUCE_SCATTER_V:
      return before(me);
    default:
      return 0;
  }
}

std::vector<Stretch> Plan::origin() const {
  const uint64_t size = recv_size(me);
  if (size == 0) return {};
  std::vector<Stretch> stretches;
  switch (cell.kind) {
    case DB_BROADCAST:
      return {{root, 0, size}};
    case DB_SCATTER:
      return {{root, part(), size}};
    case DB_REDUCE_SCATTER:
    case DB_REDUCE_SCATTER_V:
      return {{0, part(), size}};
    case DB_ALL_GATHER:
    case DB_GATHER:
      for (int rank = 0; rank < world_size; ++rank) stretches.push_back({rank, 0, cell.count});
      return stretches;
    case DB_ALL_GATHER_V:
      for (int rank = 0; rank < world_size; ++rank) stretches.push_back({rank, 0, count_of(rank)});
      return stretches;
    case DB_ALL_TO_ALL:
      for (int rank = 0; rank < world_size; ++rank) {
        stretches.push_back({rank, static_cast<uint64_t>(me) * cell.count, cell.count});
      }
      return stretches;
    case DB_ALL_TO_ALL_V:
      for (int rank = 0; rank < world_size; ++rank) {
        stretches.push_back({rank, sent_before(rank, me), between(rank, me)});
      }
      return stretches;
    default:
      return {{0, 0, size}};
  }
}

Plan plan_of(const Cell& cell, int world_size, int me, uint64_t number) {
  Plan plan{.cell = cell, .world_size = world_size, .me = me};
  plan.number = number;
  // Random; otherwise each size and way of calling would have only one root and one way of waiting.
  plan.root = static_cast<int>(mix(kStoredSeed, 0, number) % static_cast<uint64_t>(world_size));
  plan.polls = mix(kStoredSeed, 1, number) % 2 == 0;
  for (int rank = 0; rank < world_size; ++rank) {
    const bool empty = cell.count == 0 || rank == 1;
    plan.counts.push_back(empty ? 0 : cell.count + static_cast<uint64_t>(rank));
  }
  return plan;
}

}  // namespace coupler::matrix
