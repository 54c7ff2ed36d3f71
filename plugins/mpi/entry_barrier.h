// EntryBarrier: where the ranks of one machine meet before they enter MPI together. Shared memory
// holds one slot per rank: a rank writes which operation it starts, and waits (a short spin, then
// asleep) until the others have written theirs. As a result,
//  - waiting for a late rank costs no processor time and can end: at the deadline, when a peer has
//    died, or when the communicator is aborted. Inside MPI none of that is possible;
//  - ranks that disagree on the operation get an error instead of a hang or wrong results.
// A communicator that spans machines has no entry barrier; there only the watchdog enforces
// deadlines.
//
// enter(): one thread at a time; withdraw(): [any-thread].
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/error.h"
#include "common/op.h"

namespace db::mpi {

class EntryBarrier {
 public:
  // Collective over comm. On every rank alike, *entry_barrier stays empty if the ranks are not all
  // on one machine or cannot map the same memory.
  static Failure create(MPI_Comm comm, std::unique_ptr<EntryBarrier>* entry_barrier);
  ~EntryBarrier();
  EntryBarrier(const EntryBarrier&) = delete;
  EntryBarrier& operator=(const EntryBarrier&) = delete;

  // Waits until every rank has arrived with the same operation. A failure kills the communicator,
  // and the peers are notified.
  Failure enter(const Op& op);

  // This rank takes part in no further operation: peers that wait for it, and its own enter(),
  // return at once.
  void withdraw() { withdraw(number_.load(std::memory_order_relaxed) + 1); }

 private:
  struct RankSlot;
  EntryBarrier(void* memory, size_t bytes, int32_t rank, int32_t size, bool oversubscribed);
  Failure wait_for(int32_t peer, uint32_t number, const Op& op);
  void withdraw(uint32_t from);
  bool is_gone(int32_t rank, uint32_t number) const;
  Failure lost(int32_t peer, const Op& op) const;
  RankSlot* slot(int32_t rank) const;

  void* const memory_;
  const size_t bytes_;
  const int32_t rank_;
  const int32_t size_;
  const bool
      oversubscribed_;  // more ranks than cores: spinning takes time from the ranks waited for
  std::atomic<uint32_t> number_{0};  // of the current or last operation
};

}  // namespace db::mpi
