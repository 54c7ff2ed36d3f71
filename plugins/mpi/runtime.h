// The MPI library of this process: started by the first create, finalized when the program exits.
// [any-thread].
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>

#include "common/error.h"

namespace db::mpi {

// InsideMpi: marks a thread that runs an MPI collective, for its own lifetime. A thread that waits
// in MPI spins, but the message it waits for may have to be sent by another thread, of this rank or
// of one on the same machine. When there are more such threads than cores, waiting threads yield
// their core whenever they find nothing; otherwise every operation would cost a scheduler time
// slice (milliseconds instead of microseconds). [any-thread].

class InsideMpi {
 public:
  InsideMpi();
  ~InsideMpi();
  InsideMpi(const InsideMpi&) = delete;
  InsideMpi& operator=(const InsideMpi&) = delete;
};

enum class Yield { kAuto, kAlways, kNever };

// Initializes MPI with MPI_THREAD_MULTIPLE unless the program has done so. Waits at most
// timeout_ns, then ends the process as the watchdog does. At exit with status 0, MPI_Finalize is
// called with a limit of ten seconds; with another status, or while a thread is stuck in MPI, it is
// not called at all, so that nothing waits for dead ranks.
Failure start(Yield yield, int32_t local_size, int64_t timeout_ns);

// False before start() and after MPI_Finalize; then no MPI function may be called.
bool is_up();

// Whether this process was started by an MPI launcher that Open MPI understands.
bool launched_by_mpi();

// The path of mpirun in PATH, or "".
std::string find_mpirun();

// "Open MPI 4.1.4", without starting MPI.
std::string library_version();

// The result of an MPI function as a failure that kills the communicator; what names the call.
Failure mpi_failure(int code, const std::string& what);

}  // namespace db::mpi
