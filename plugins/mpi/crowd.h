// Inside: marks a thread that runs an MPI collective, for its own lifetime. A thread that waits in
// MPI spins, but the message it waits for may have to be sent by another thread, of this rank or of
// one on the same machine. When there are more such threads than cores, waiting threads yield their
// core whenever they find nothing; otherwise every operation would cost a scheduler time slice
// (milliseconds instead of microseconds). [any-thread].
#pragma once

#include <cstdint>

namespace db::mpi {

// From now on, waiting threads yield while at least this many of this process are inside. Does
// nothing if the MPI library has no such switch (only Open MPI has one).
void yield_when_crowded(int32_t threads);

class Inside {
 public:
  Inside();
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

}  // namespace db::mpi
