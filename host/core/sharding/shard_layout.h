// ShardLayout: where the parameters of one unit are in the whole unit's memory and in this rank's
// shard, and the transfers between the two. Computed once; pure data afterwards.
//
// The whole unit stores its parameters one after another. Consecutive parts owned by ranks in
// ascending order form a run: ALL_GATHER_V and REDUCE_SCATTER_V move a run in place, without a
// copy. Small runs are packed into one message, since a message costs more than copying it.
#pragma once

#include <coupler/sharding.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace coupler::sharding {

// What a layout needs to know about one parameter of the unit.
struct ShardParameter {
  size_t index = 0;                     // in Model::parameters
  const std::vector<uint64_t>* bounds;  // [ranks of the group + 1]
  int64_t numel = 0;
  bool trains = true;
};

// Parameters, transfers and shards begin at multiples of 16 elements (64 bytes of float), so that
// kernels on a part are as fast as on a separate tensor.
constexpr int64_t aligned_elements(int64_t offset) { return (offset + 15) / 16 * 16; }

// One parameter. Offsets and counts are in elements.
struct ShardPart {
  size_t index = 0;    // in Model::parameters
  int64_t offset = 0;  // in the whole unit
  int64_t numel = 0;
  int64_t begin = 0, end = 0;   // the part of the parameter this rank owns
  int64_t shard_offset = 0;     // of that part in the shard
  int64_t staging_offset = -1;  // of its gradient in staging; -1: not staged
  bool trains = true;
};

// [bounds[r], bounds[r + 1]) of the whole unit belongs to rank r; it may contain parts of several
// parameters and the padding between them.
struct ShardRun {
  std::vector<int64_t> bounds;
  int64_t staging_offset = 0;  // of its gradients
  int64_t begin() const { return bounds.front(); }
  int64_t numel() const { return bounds.back() - bounds.front(); }
  int64_t count(int rank) const {
    return bounds[static_cast<size_t>(rank) + 1] - bounds[static_cast<size_t>(rank)];
  }
};

// What one collective moves: one run in place, or several packed.
struct ShardTransfer {
  std::vector<ShardRun> runs;
  std::vector<uint64_t> counts;  // by rank, over the runs
  bool even = false;             // the same count for every rank
  int64_t shard_offset = 0;      // where this rank's elements begin in the shard
  int64_t numel = 0;             // of all ranks
  bool trains = false;           // some parameter in it has a gradient
  int alone =
      -1;  // the part whose gradient is sent from where autograd left it; -1: sent from staging
  bool packed() const { return runs.size() > 1; }
};

struct ShardLayout {
  // rank, ranks: of the group that shares the unit. whole_gradients: every rank has memory for all
  // gradients of the unit.
  ShardLayout(const std::vector<ShardParameter>& parameters, bool whole_gradients, int rank,
              int ranks);

  // Whether this rank's part is one contiguous piece of the whole unit's memory.
  bool in_place() const { return transfers.size() == 1 && !transfers[0].packed(); }
  // Whether some parameter has a gradient.
  bool trains() const;
  // How the unit is kept if its plan says `planned`. converts: operations on it compute in another
  // type than it is stored in, or return another. offloaded: its parameters are.
  db_keep keep(db_keep planned, bool converts, bool offloaded) const;

  std::vector<ShardPart> parts;
  std::vector<ShardTransfer> transfers;
  int64_t numel = 0;        // of the whole unit, final padding included
  int64_t shard_numel = 0;  // of this rank's shard, padding included
  // Size of the memory that collects gradients which are not sent from where autograd left them.
  int64_t staging_numel = 0;
  int rank, ranks;

 private:
  void place_parts(const std::vector<ShardParameter>& parameters);
  std::vector<ShardRun> cut_runs(const std::vector<ShardParameter>& parameters) const;
  void add_transfer(std::vector<ShardRun> runs, const std::vector<ShardParameter>& parameters);
  void place_in_shard();
  void place_in_staging(bool all);
};

// The order in which units' gradients are reduced until a backward has shown the order in which
// they become complete: in reverse order of registration, a unit with its first parameter. Without
// units that do not train.
std::vector<size_t> first_reduce_order(const std::vector<const ShardLayout*>& units);
// The order learned from that backward: units that it did not complete come last, in `first` order.
std::vector<size_t> learned_reduce_order(std::vector<size_t> completed,
                                         const std::vector<size_t>& first);

}  // namespace coupler::sharding
