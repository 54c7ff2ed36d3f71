// PeerSource: fills the units of a sharded model from the ranks that own them. All ranks of the
// group fill the same unit at the same time: rank 0 of the group chooses it (a small broadcast
// before each gather), so that ranks that use units in different orders, or from several threads,
// agree. A rank whose peers never join gets an Error naming the unit.
#pragma once

#include <memory>
#include <vector>

#include "residency/source.h"
#include "strategy/shard_unit.h"

namespace coupler {

class PeerSource : public Source {
 public:
  // units and pool must outlive the source; units[i] is Unit number i of the Residency.
  PeerSource(std::vector<ShardUnit*>& units, std::shared_ptr<Communicator> comm, BufferPool& pool)
      : units_(units), comm_(std::move(comm)), pool_(pool) {}

  size_t agree(size_t wanted) override;
  void fill(size_t unit, void* memory) override;
  void store(size_t unit, const void* memory) override;

 private:
  [[noreturn]] void explain(size_t unit, const std::exception& cause) const;

  std::vector<ShardUnit*>& units_;
  std::shared_ptr<Communicator> comm_;
  BufferPool& pool_;
};

}  // namespace coupler
