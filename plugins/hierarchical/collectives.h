// Collectives: carries out one operation on the bases of a Group.
//
// First the ranks compare what they called, within each machine and then among the leaders, so that
// ranks that differ all report the same two, and no data is touched. That alone is a barrier. If
// one base connects all ranks by itself, it carries the operation out, comparison included.
//
// Thread rule: the holder of the queue's turn.
#pragma once

#include <cstdint>
#include <vector>

#include "common/error.h"
#include "common/fingerprint.h"
#include "common/op.h"
#include "hierarchical/failure_board.h"
#include "hierarchical/group.h"
#include "hierarchical/stages.h"

namespace db::hierarchical {

struct Settings {
  uint64_t chunk_bytes = 0;
  uint64_t small_bytes = 0;
};

class Collectives {
 public:
  Collectives(const Group* group, const FailureBoard* board, const Settings& settings)
      : group_(group), board_(board), settings_(settings), scratch_(&group->nearest()) {}

  // A failure has already ended the operations of the bases.
  Failure run(const Op& op);

  // The base that op, a message, uses, and op as it sees it.
  const Base& base_of(const Op& op, db_op* message) const;

  // What to report of a failure: the reason of the first rank that failed. Ends everything on the
  // bases, here and for the peers.
  Failure give_up(const Op& op, Failure failure) const;

 private:
  Failure run_whole(const Base& base, const Op& op);
  Failure compare(const Op& op);
  Failure run_stages(const Op& op, Stages& stages);
  Failure run_pairwise(const Op& op);
  Manner manner_of(const Op& op) const;

  const Group* const group_;
  const FailureBoard* const board_;
  const Settings settings_;
  Scratch scratch_;        // of stages
  Scratch copy_{nullptr};  // of messages, which no other rank reads in place
  std::vector<Fingerprint> here_;
  uint64_t number_ = 0;  // of collectives, as messages are not counted by all ranks
};

// Whether an operation of that kind, dtype, reduction and count can be carried out.
bool supports(const Group& group, const db_op& op);

}  // namespace db::hierarchical
