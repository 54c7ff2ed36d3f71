// The thresholds of this backend, by number of ranks: which algorithm an operation takes and how
// much memory the ranks share. A table of constants; [any-thread].
#pragma once

#include <cstdint>
#include <string>

namespace db::shm {

// Up to slot_bytes, every rank writes its data into its slot and reads all slots: one
// synchronization. Above, data goes through staging memory in chunks, two in flight: reductions are
// divided among the ranks. Of two ranks, each touches four times its chunk_bytes at a time, which
// should be half a core's second cache; of more ranks, each touches a smaller part of each chunk. A
// message between two ranks goes through a ring.
struct Tuning {
  int32_t most_ranks = 0;  // the row is for up to this many
  uint64_t slot_bytes = 0;
  uint64_t chunk_bytes = 0;
  uint64_t ring_bytes = 0;  // a power of two
};

inline constexpr Tuning kTuning[] = {
    {2, 64 << 10, 128 << 10, 256 << 10},
    {8, 32 << 10, 256 << 10, 128 << 10},
    {64, 16 << 10, 512 << 10, 32 << 10},
    {INT32_MAX, 8 << 10, 1 << 20, 16 << 10},
};

// A result of at least this many bytes, which does not fit into a core's caches, is written past
// them (non-temporal stores), unless the operation is in place: then its lines are cached already.
inline constexpr uint64_t kStreamBytes = 4 << 20;

inline const Tuning& tuning_of(int32_t ranks) {
  const Tuning* row = kTuning;
  while (ranks > row->most_ranks) ++row;
  return *row;
}

// One line for each row: "up to 2 ranks: every rank reads all up to 64 KiB, then chunks of …".
std::string describe_tuning();

}  // namespace db::shm
