// Gate: where the ranks of one machine meet before they enter MPI together. A page of shared memory
// with one line a rank: a rank writes what it is about to do, and waits (a short spin, then asleep)
// until the others have written theirs. So that
//  - waiting for a late rank costs no processor time, and may end: at the deadline, when a peer has
//    died, when the communicator is aborted. Inside MPI none of that is possible;
//  - ranks that disagree on the operation learn it instead of hanging or getting wrong numbers.
// A communicator that spans machines has no gate; there the watchdog alone keeps deadlines.
//
// pass() by one thread at a time; withdraw() is [any-thread].
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/error.h"
#include "common/op.h"

namespace db::mpi {

class Gate {
 public:
  // Collective over comm. *gate stays empty where the ranks are not all on one machine or cannot
  // map one piece of memory; on every rank alike.
  static Failure create(MPI_Comm comm, std::unique_ptr<Gate>* gate);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // Waits until every rank has come with the same operation. A failure kills the communicator, and
  // the peers learn of it.
  db_status pass(const Op& op, Failure* failure);

  // This rank takes part in no further operation: peers that wait for it, and its own pass(), end
  // at once.
  void withdraw() { withdraw(number_.load(std::memory_order_relaxed) + 1); }

 private:
  struct Line;
  Gate(void* memory, size_t bytes, int32_t rank, int32_t size, bool crowded);
  db_status wait_for(int32_t peer, uint32_t number, const Op& op, Failure* failure);
  void withdraw(uint32_t from);
  bool is_gone(int32_t rank, uint32_t number) const;
  db_status lost(int32_t peer, const Op& op, Failure* failure);
  Line* line(int32_t rank) const;

  void* const memory_;
  const size_t bytes_;
  const int32_t rank_;
  const int32_t size_;
  const bool crowded_;  // more ranks than cores: spinning takes the time from those we wait for
  std::atomic<uint32_t> number_{0};  // of the operation that passes or passed last
};

}  // namespace db::mpi
