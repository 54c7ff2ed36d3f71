// Joining: how the ranks of a new communicator, once they have met, come to share memory. Every
// other rank connects to rank 0, and both prove the job's secret (common/handshake.h). Then
//
//   every rank                        rank 0
//   its lifeline                  ->
//                                 <-  the segment, the lifelines of all the others
//   mapped, or why not            ->
//                                 <-  all have mapped it, or which rank has not
//
// so that if one rank cannot take part, all report the same. The connections are then closed.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/local_socket.h"
#include "shm/arena.h"
#include "shm/meeting.h"
#include "shm/peers.h"
#include "shm/segment.h"

namespace db::shm {

struct JoinOptions {
  int32_t rank = 0;
  int32_t size = 1;
  Bytes32 key{};             // of the job's secret; all zero if it has none
  uint64_t chunk_bytes = 0;  // as in Layout::of
  uint64_t arena_bytes = 0;  // likewise; rank 0's counts
  int64_t deadline_ns = 0;
  int64_t timeout_ns = 0;  // for messages
};

struct Joined {
  std::unique_ptr<Segment> segment;
  std::shared_ptr<Arena> arena;
  std::vector<Descriptor> lifelines;  // by rank; empty for this one
  Descriptor kept;                    // of this rank's own lifeline
  std::string note;                   // "": nothing to log
};

// Blocks until all ranks have joined. listening: rank 0's socket.
Failure join(const JoinOptions& options, const MeetingPlace& place, const Listening& listening,
             Joined* result);

}  // namespace db::shm
