// Contention: whether other programs, or other ranks that compute, keep this process from its
// cores. MPI polls while it waits, which is ruinous then: a thread that polls or yields uses up its
// turn and waits whole time slices (milliseconds) for the next, long after what it waits for has
// come; one that sleeps has its turn when it wakes. So once a polling thread finds that it lost its
// core, threads of this process that wait sleep in short pieces instead, for a tenth of a second at
// a time. [any-thread].
#pragma once

#include <cstdint>

namespace db::mpi {

// Whether a polling thread of this process lost its core within the last tenth of a second.
bool is_contended(int64_t now_ns);

// Reports that a thread only polled or yielded from one time to another; longer than a poll takes
// means that it lost its core.
void note_polling(int64_t from_ns, int64_t to_ns);

// Lets collectives of MPI sleep while contended. To be called once, after MPI has started. Does
// nothing if the MPI library cannot call back while it polls (only Open MPI can).
void sleep_in_mpi_when_contended();

// Around a thread's collectives: only there does what passes between two polls say something.
// yields: whether MPI yields the core after each poll, so that each can cost a time slice.
void begin_polling(bool yields);
void end_polling();

}  // namespace db::mpi
