// Inside: a thread that has a collective of MPI to do, for as long as it lives. A thread that waits
// in MPI spins, and the message it waits for may be another thread's to send, of this rank or of
// one beside it. As soon as there are more such threads than cores, those that wait give their core
// away each time they find nothing; otherwise every operation costs a time slice of the scheduler
// (milliseconds instead of microseconds). [any-thread].
#pragma once

#include <cstdint>

namespace db::mpi {

// From now on waiting threads yield while at least so many of this process are inside. Does nothing
// where the MPI library has no such switch (only Open MPI has), or never called.
void yield_when_crowded(int32_t threads);

class Inside {
 public:
  Inside();
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

}  // namespace db::mpi
