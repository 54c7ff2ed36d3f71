// Schedules of collectives, as programs of a simulated rank. All work in place on the rank's data.
// Parts are by member of the group. Thread rule: the actor of the rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gloo_cpu/circulant.h"
#include "parts.h"
#include "rank.h"

namespace coupler::bench::simulated {

// The ranks of a collective, and this rank's place among them.
struct Group {
  std::vector<int> ranks;
  int index = 0;
  // A schedule on this group is not a part of another one, so its equal repetitions may be cut.
  bool is_whole = true;

  int size() const { return static_cast<int>(ranks.size()); }
  int rank(int member) const { return ranks[static_cast<size_t>((member + size()) % size())]; }
};

Group all_ranks(const Rank& rank);

class Schedule {
 public:
  Schedule() = default;
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;
  virtual ~Schedule() = default;

  virtual void all_reduce(const Block& block) = 0;  // sums
  // Afterwards, member i has the sum of parts[i].
  virtual void reduce_scatter(const std::vector<Part>& parts) = 0;
  // Member i has parts[i]; afterwards, all have all.
  virtual void all_gather(const std::vector<Part>& parts) = 0;
};

// libgloo's and MPI's for large data: 2 * (n - 1) rounds, in which each member sends a part to its
// next one.
class Ring final : public Schedule {
 public:
  Ring(Rank& rank, Group group) : rank_(rank), group_(std::move(group)) {}
  void all_reduce(const Block& block) override;
  void reduce_scatter(const std::vector<Part>& parts) override;
  void all_gather(const std::vector<Part>& parts) override;

 private:
  int rounds();
  Rank& rank_;
  const Group group_;
};

// libgloo's: halves are exchanged with the member at distance 1, quarters at distance 2 and so on,
// and back. Members form blocks of powers of two, and each block adds its sums to the next larger
// one's. reduce_scatter and all_gather are those of Ring unless all are one block.
class HalvingDoubling final : public Schedule {
 public:
  HalvingDoubling(Rank& rank, Group group) : rank_(rank), group_(std::move(group)) {}
  void all_reduce(const Block& block) override;
  void reduce_scatter(const std::vector<Part>& parts) override;
  void all_gather(const std::vector<Part>& parts) override;

 private:
  Rank& rank_;
  const Group group_;
};

// The backend gloo_cpu's: every member sends to every other one, one round for small data and two
// otherwise, in slices; while one is spread, the next is combined. From halving_ranks on, circulant
// rounds take the place of each round, without slices.
class Direct final : public Schedule {
 public:
  // The defaults of the backend's options; a slice is four times its chunk_bytes.
  struct Limits {
    uint64_t exchange_bytes = 256 << 10;
    uint64_t pair_exchange_bytes = 4 << 20;
    uint64_t slice_bytes = 1 << 20;
    int halving_ranks = 32;
  };
  Direct(Rank& rank, Group group) : Direct(rank, std::move(group), Limits()) {}
  Direct(Rank& rank, Group group, const Limits& limits)
      : rank_(rank), group_(std::move(group)), limits_(limits) {
    if (group_.size() >= limits.halving_ranks)
      rounds_ = db::gloo_cpu::circulant_rounds(group_.index, group_.size());
  }
  void all_reduce(const Block& block) override;
  void reduce_scatter(const std::vector<Part>& parts) override;
  void all_gather(const std::vector<Part>& parts) override;

 private:
  void exchange(const Block& block);
  void circulant_exchange(const Block& block);

  Rank& rank_;
  const Group group_;
  const Limits limits_;
  std::vector<db::gloo_cpu::CirculantRound> rounds_;  // empty: too few members
};

// Makes a schedule by name: "ring", "halving-doubling", "direct". Throws std::invalid_argument.
std::unique_ptr<Schedule> make_flat(const std::string& name, Rank& rank, Group group);

// The backend hierarchical's, with shared memory within machines and a flat schedule across them.
class Hierarchical final : public Schedule {
 public:
  struct Settings {
    std::string across = "direct";
    uint64_t chunk_bytes = 4 << 20;  // backend.hierarchical.chunk_bytes
    uint64_t small_bytes = 32768;    // backend.hierarchical.small_bytes
    bool is_whole = true;            // see Group
  };
  Hierarchical(Rank& rank, const Settings& settings);
  void all_reduce(const Block& block) override;
  void reduce_scatter(const std::vector<Part>& parts) override;
  void all_gather(const std::vector<Part>& parts) override;

 private:
  struct Chunk;
  using Stage = std::function<void(const Chunk&, int lanes)>;
  using Across = std::function<void(const std::vector<Part>&)>;
  void pipeline(const std::vector<Part>& parts, const Stage& first, const Across& cross,
                const Stage& last);
  void compare();
  bool is_one_machine() const { return rank_.layout().machine_count() == 1; }
  uint64_t repeats(uint64_t chunks) { return settings_.is_whole ? rank_.repeats(chunks) : chunks; }
  int lanes_for(uint64_t bytes) const;
  bool is_in(int lanes) const { return rank_.index() < lanes; }
  std::vector<Part> lane_parts(const Block& whole, int lanes) const;
  Chunk chunk_of(const std::vector<Part>& parts, uint64_t begin, uint64_t count, int lanes) const;

  Rank& rank_;
  const Settings settings_;
  std::unique_ptr<Schedule> across_;  // of the lane with this rank's local index; null: it has none
  std::unique_ptr<Worker> worker_;    // runs what is across; null likewise
};

// A schedule of all ranks: a flat one, or "hierarchical/" and the one across machines.
std::unique_ptr<Schedule> make_schedule(const std::string& name, Rank& rank, bool is_whole = true);

// A step of sharded training, as under fsdp: forward gathers each unit, backward gathers it again
// and reduces its gradient. Two units are gathered ahead; reductions overlap with computing.
struct ShardedStep {
  uint64_t units = 24;
  uint64_t unit_bytes = 100 << 20;
  double forward_seconds = 0.02;  // of a unit; backward takes twice as long
  std::string schedule = "direct";
};
void run_sharded_step(Rank& rank, const ShardedStep& step);

}  // namespace coupler::bench::simulated
