// A backend against MPI's own calls in the same process: mpi, for the overhead of our interface
// over the calls it makes, on a separate communicator; or shm. Started by bench/run under `coupler
// launch` over mpi.
#include <fmt/format.h>
#include <mpi.h>

#include <stdexcept>

#include "session.h"

namespace coupler::bench {
namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  throw std::runtime_error(fmt::format("{} failed with MPI error {}", call, code));
}

void run(int argc, char** argv) {
  Session session(argc, argv);  // over mpi, it initializes and finalizes MPI
  int initialized = 0;
  check(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized == 0) check(MPI_Init(nullptr, nullptr), "MPI_Init");
  MPI_Comm raw = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &raw), "MPI_Comm_dup");
  const Candidate blocking{
      .name = "MPI_Allreduce", .prepare = [raw](float* data, uint64_t count) {
        return [raw, data, elements = static_cast<int>(count)] {
          check(MPI_Allreduce(MPI_IN_PLACE, data, elements, MPI_FLOAT, MPI_SUM, raw),
                "MPI_Allreduce");
        };
      }};
  const Candidate asynchronous{
      .name = "MPI_Iallreduce+MPI_Wait", .prepare = [raw](float* data, uint64_t count) {
        return [raw, data, elements = static_cast<int>(count)] {
          MPI_Request request = MPI_REQUEST_NULL;
          check(MPI_Iallreduce(MPI_IN_PLACE, data, elements, MPI_FLOAT, MPI_SUM, raw, &request),
                "MPI_Iallreduce");
          check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
        };
      }};
  session.hold({session.blocking(), blocking, session.asynchronous(), asynchronous});
  check(MPI_Comm_free(&raw), "MPI_Comm_free");
  if (initialized == 0) check(MPI_Finalize(), "MPI_Finalize");
}

}  // namespace
}  // namespace coupler::bench

int main(int argc, char** argv) {
  return coupler::bench::guarded([&] { coupler::bench::run(argc, argv); });
}
